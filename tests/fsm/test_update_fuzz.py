"""Reading a damaged update never fails, and its key has only ids of the update."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import aiogram.types
import telebot.types
import telegram
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.fsm import Update, keys
from tests.fsm.updates import CASES
from tests.reliability.dose import dose

STRATEGIES = [
    keys.ChatUser(),
    keys.User(),
    keys.Chat(),
    keys.ChatTopic(),
    keys.ChatTopic(strict_topics=True),
    keys.ChatTopicUser(),
    keys.Business(keys.ChatTopicUser()),
]
NAMES = st.text(max_size=6) | st.sampled_from(["message", "callback_query", "chat", "from", "user", "id"])
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.builds(list),
    st.builds(dict),
    st.builds(lambda: {"id": 5}),
    st.builds(lambda: [{"id": 5}]),
    st.builds(lambda: {"from": {"id": 5}, "chat": {"id": -5}, "message": {"chat": {"id": -6}}}),
    st.builds(object),
)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Return every node of a document as its container and its key or index there."""
    for place in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, place
        if isinstance(node[place], dict | list):
            yield from places(node[place])


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    update = draw(st.sampled_from(CASES)).update
    for _ in range(draw(st.integers(1, 4))):
        found = list(places(update))
        if not found:
            break
        holder, place = draw(st.sampled_from(found))
        what = draw(st.sampled_from(["drop", "replace", "rename"]))
        if what == "drop":
            del holder[place]
        elif what == "replace":
            holder[place] = draw(JUNK)
        elif isinstance(holder, dict):
            holder[draw(NAMES)] = holder.pop(place)
    return update


def numbers(node: Any) -> set[int]:
    """Return every int in a document."""
    if isinstance(node, dict):
        return set().union(*(numbers(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(numbers(value) for value in node))
    return {node} if type(node) is int else set()


def read_all(given: Any) -> list[Any]:
    update = Update.of(given)
    read = [update.kind, update.update_id, update.user, update.chat, update.chatless, update.thread_id, update.text]
    read += [update.callback_data, update.command, update.business_connection_id, update.event, repr(update)]
    for peer in (update.user, update.chat):
        if peer is not None:
            assert type(peer.id) is int
            read += [peer.language_code, peer.type]
    found = [strategy.extract(update) for strategy in STRATEGIES]
    for strategy, key in zip(STRATEGIES, found, strict=True):
        if key is not None:
            keys.tags_of(strategy, update, key)
    return found


@settings(max_examples=dose("UPDATES", 150, 4000))
@given(damaged())
def test_the_key_of_a_damaged_update_has_only_its_own_ids_or_is_none(update: Any) -> None:
    own = numbers(update) | {0}
    for key in read_all(update)[:-1]:
        assert key is None or (isinstance(key, tuple) and all(type(part) is int and part in own for part in key))


@settings(max_examples=dose("UPDATES", 50, 1000))
@given(damaged())
def test_a_damaged_update_that_a_framework_accepts_can_be_read(update: Any) -> None:
    for parse in (aiogram.types.Update.model_validate, telegram.Update.de_json, telebot.types.Update.de_json):
        try:
            parsed = parse(copy.deepcopy(update))
        except Exception:
            continue  # the framework itself refuses this update
        read_all(parsed)


@settings(max_examples=dose("UPDATES", 50, 2000))
@given(st.recursive(JUNK, lambda inner: st.dictionaries(NAMES, inner) | st.lists(inner)))
def test_every_field_of_any_value_can_be_read(value: Any) -> None:
    read_all(value)
