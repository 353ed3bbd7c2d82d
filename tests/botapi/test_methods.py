"""Each official method is real, accepted without effect, or refused by name; the docs list which."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import aiogram
import pytest
from aiogram.methods.base import TelegramMethod

from stepwell.botapi import Person
from stepwell.botapi.methods import METHODS, NO_EFFECT
from stepwell.botapi.methods.messages.sending import UNUSED
from stepwell.botapi.official import ALIASES, OFFICIAL
from tests.botapi.conftest import Client

PAGE = Path(__file__).parents[2] / "docs" / "botapi-methods.md"


def tables() -> str:
    """Return the generated part of the page."""
    support = {name: "no effect" if name in NO_EFFECT else "yes" for name in METHODS}
    methods = "".join(f"| `{name}` | {support.get(name, 'no')} |\n" for name in OFFICIAL)
    parameters = "".join(f"| `{name}` | {subject} |\n" for name, subject in UNUSED.items())
    return (
        f"## Methods\n\n| method | supported |\n|---|---|\n{methods}\n"
        "## Parameters without effect\n\n"
        "The methods that send accept these parameters. The local Bot API does not have their subjects.\n\n"
        f"| parameter | subject |\n|---|---|\n{parameters}"
    )


def test_the_tables_in_the_docs_are_current() -> None:
    """``STEPWELL_WRITE_DOCS=1 pytest tests/playground/test_methods.py`` writes them."""
    text = PAGE.read_text()
    head = text[: text.index("## Methods")]
    if os.environ.get("STEPWELL_WRITE_DOCS"):
        PAGE.write_text(head + tables())
    else:
        assert text == head + tables()


def test_the_official_names_are_complete() -> None:
    known = [each for each in vars(aiogram.methods).values() if isinstance(each, type)]
    names = {each.__api_method__ for each in known if issubclass(each, TelegramMethod) and each is not TelegramMethod}
    assert names - set(OFFICIAL) == set()
    assert METHODS.keys() - set(OFFICIAL) == set()
    assert set(ALIASES.values()) - set(OFFICIAL) == set()
    assert METHODS.keys() >= NO_EFFECT


async def test_a_method_that_only_telegram_has_is_refused_by_name(
    call: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="stepwell")
    expected = (501, "Not Implemented: method 'sendGift' is not supported by the local Bot API")
    assert await call("sendgift", gift_id="1") == expected
    assert [record.getMessage() for record in caplog.records] == [
        "a bot called sendGift, which the local Bot API does not support"]  # fmt: skip
    assert await call("setStickerSetThumb") == (501, expected[1].replace("sendGift", "setStickerSetThumb"))


async def test_names_are_found_in_any_case_and_by_their_former_name(call: Client, chat: Person) -> None:
    chat.group(-5)
    assert await call("GETCHATMEMBERCOUNT", chat_id=-5) == 2
    assert await call("getChatMembersCount", chat_id=-5) == 2
    assert await call("noSuchMethod") == (404, "Not Found: method not found")
