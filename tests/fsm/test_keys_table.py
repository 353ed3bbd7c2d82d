"""The keys are those of the table in docs/keys.md, for JSON and for every framework's objects."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiogram.types
import pytest
import telebot.types
import telegram

from stepwell.fsm import Update, keys
from stepwell.fsm.update import KINDS
from tests.fsm.updates import CASES, Case

DOCS = (Path(__file__).parents[2] / "docs" / "keys.md").read_text(encoding="utf-8")


def published() -> dict[str, dict[str, str]]:
    """Return the cells of each entry of the table."""
    _, table = DOCS.split("## The table")
    header, _, *rows = [line for line in table.splitlines() if line.startswith("|")]
    names = [cell.strip() for cell in header.strip("|").split("|")][1:]
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        entries, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        for entry in entries.replace("`", "").split(", "):
            found[entry] = dict(zip(names, cells, strict=True))
    return found


TABLE = published()


def expected(case: Case) -> dict[str, Any]:
    given = {"c": case.c, "t": case.t, "u": case.u}
    return {name: None if cell == "-" else eval(cell, given) for name, cell in TABLE[case.row].items()}


def found(update: Update) -> dict[str, Any]:
    names = ("ChatUser", "User", "Chat", "ChatTopic", "ChatTopicUser")
    return {name: getattr(keys, name)().extract(update) for name in names}


def as_aiogram(update: dict[str, Any]) -> object:
    return aiogram.types.Update.model_validate(update)


def as_ptb(update: dict[str, Any]) -> object:
    return telegram.Update.de_json(update, None)


def as_telebot(update: dict[str, Any]) -> object:
    # telebot 4.37 reads "from_user" here, but Telegram sends "from".
    if "purchased_paid_media" in update:
        update["purchased_paid_media"]["from_user"] = update["purchased_paid_media"].pop("from")
    return telebot.types.Update.de_json(update)


READERS: list[Callable[[dict[str, Any]], object]] = [dict, as_aiogram, as_ptb, as_telebot]
each_reader = pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
each_case = pytest.mark.parametrize("case", CASES, ids=str)


@each_reader
@each_case
def test_every_update_has_the_keys_of_the_published_table(case: Case, read: Callable[[dict[str, Any]], object]) -> None:
    update = Update.of(read(case.update))
    assert found(update) == expected(case)


@each_reader
@each_case
def test_the_updates_of_every_library_have_the_same_keys(case: Case, read: Callable[[dict[str, Any]], object]) -> None:
    given = read(case.update)
    update, plain = Update.of(given), Update.of(case.update)
    assert update.raw is given
    for name in ("kind", "update_id", "user", "chat", "thread_id", "text", "callback_data", "business_connection_id"):
        assert getattr(update, name) == getattr(plain, name), name
    assert update.kind == case.kind
    assert update.update_id == case.update["update_id"]
    for peer, twin in ((update.user, plain.user), (update.chat, plain.chat)):
        for name in ("language_code", "username", "first_name", "type", "title", "no_such_field"):
            assert getattr(peer, name, None) == getattr(twin, name, None), name


def test_the_table_has_every_kind_and_the_corpus_every_entry() -> None:
    in_table = {entry.split()[0] for entry in TABLE}
    assert in_table == set(KINDS) == {case.kind for case in CASES}
    assert set(TABLE) == {case.row for case in CASES}


@pytest.mark.parametrize(
    "known",
    [
        set(aiogram.types.Update.model_fields),
        set(vars(as_telebot({"update_id": 1}))),
        {name for name in telegram.Update.__slots__ if not name.startswith("_")},
    ],
    ids=["aiogram", "telebot", "ptb"],
)
def test_no_framework_has_a_kind_that_is_missing_here(known: set[str]) -> None:
    assert known - {"update_id"} <= set(KINDS)


def test_the_kinds_are_those_of_the_newest_framework() -> None:
    assert set(KINDS) == set(aiogram.types.Update.model_fields) - {"update_id"}


@pytest.mark.parametrize("read", [as_aiogram, as_ptb], ids=lambda read: read.__name__)
def test_a_kind_that_the_framework_does_not_know_is_read_from_its_extra_fields(
    read: Callable[[dict[str, Any]], object],
) -> None:
    update = {"update_id": 1, "holiday_greeting": {"user": {"id": 42}, "chat": {"id": -5, "type": "group"}}}
    assert keys.ChatUser().extract(Update.of(read(update))) == (-5, 42)


@each_case
def test_the_bare_events_of_aiogram_and_telebot_have_the_same_keys(case: Case) -> None:
    for given in (as_aiogram(case.update), as_telebot(case.update)):
        event = Update.of(getattr(given, case.kind))
        if case.kind == "my_chat_member":
            assert event.kind == "chat_member"
        else:
            assert event.kind == case.kind
        assert found(event) == expected(case)


def test_the_documented_custom_strategies_work() -> None:
    names: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL):
        exec(snippet, names)
    (message,) = [case.update for case in CASES if str(case) == "message: a command in a private chat"]
    (poll,) = [case.update for case in CASES if case.kind == "poll"]
    for given in (names["UserLanguage"], names["UserLanguage"](), names["user_language"]):
        strategy = keys.strategy(given)
        for read in READERS:
            assert strategy.extract(Update.of(read(dict(message)))) == (42, "en")
        assert strategy.extract(Update.of(poll)) is None
    event = {"team_id": "T1", "event_id": "Ev1", "event": {"type": "message", "user": "U1", "text": "hi"}}
    slack = keys.strategy(names["slack_key"])
    assert slack.extract(Update.of(event)) == ("T1", "U1")
    assert slack.extract(Update.of({"team_id": "T1", "event": {"type": "ping"}})) is None
