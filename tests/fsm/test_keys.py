from __future__ import annotations

from typing import Any

import pytest

from stepwell.errors import InvalidOption
from stepwell.fsm import Update, keys
from tests.fsm.updates import CASES, Case, find

STRATEGIES = [keys.ChatUser(), keys.User(), keys.Chat(), keys.ChatTopic(), keys.ChatTopicUser()]


def key(strategy: keys.KeyStrategy, update: object) -> Any:
    return strategy.extract(Update.of(update))


def test_in_a_private_chat_the_chat_is_the_user() -> None:
    update = find("message", "a command in a private chat")
    assert [key(strategy, update) for strategy in STRATEGIES] == [(42, 42), (42,), (42,), (42, 0), (42, 0, 42)]


def test_two_users_of_one_chat_and_one_user_of_two_chats_differ() -> None:
    private = find("message", "a command in a private chat")
    topic = find("message", "text in a forum topic")
    group = find("message", "text in a group")
    assert len({key(keys.ChatUser(), update) for update in (private, topic, group)}) == 3


@pytest.mark.parametrize("strategy", [keys.ChatTopic, keys.ChatTopicUser])
@pytest.mark.parametrize("case", [case for case in CASES if case.t], ids=str)
def test_with_strict_topics_only_forum_topics_count(strategy: Any, case: Case) -> None:
    loose, strict = key(strategy(), case.update), key(strategy(strict_topics=True), case.update)
    if loose is None:
        assert strict is None
    else:
        assert (loose[1], strict[1]) == (case.t, case.strict_t)


def test_anonymous_administrators_share_telegrams_service_user() -> None:
    assert key(keys.User(), find("message", "an anonymous administrator")) == (1087968824,)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"from": {"id": 1}, "chat": {"id": -5}}, [(-5, 1), (1,), (-5,), (-5, 0), (-5, 0, 1)]),
        ({"user": {"id": 1}, "chat": {"id": -5}}, [(-5, 1), (1,), (-5,), (-5, 0), (-5, 0, 1)]),
        (
            {"user": {"id": 1}, "message": {"chat": {"id": -5}, "message_thread_id": 7}},
            [(-5, 1), (1,), (-5,), (-5, 7), (-5, 7, 1)],
        ),
        ({"user": {"id": 1}}, [(0, 1), (1,), None, None, None]),
        ({"chat": {"id": -5}}, [None, None, (-5,), (-5, 0), None]),
        ({"something": 1}, [None] * 5),
    ],
)
def test_a_kind_that_is_not_known_yet_is_read_by_its_fields(event: Any, expected: list[Any]) -> None:
    update = {"update_id": 1, "holiday_greeting": event}
    assert [key(strategy, update) for strategy in STRATEGIES] == expected
    assert Update.of(update).kind == "holiday_greeting"


@pytest.mark.parametrize(
    "update",
    [
        None,
        {},
        [],
        7,
        "message",
        object(),
        {"update_id": 1},
        {"update_id": 1, "message": None},
        {"update_id": 1, "message": "hello"},
        {"update_id": 1, "message": []},
        {"update_id": 1, "message": {}},
        {"update_id": 1, "message": {"from": {"id": "42"}, "chat": {"id": "42"}}},
        {"update_id": 1, "message": {"from": {"id": True}, "chat": {"id": 1.0}}},
        {"update_id": 1, "message": {"from": {"id": 0}, "chat": {"id": 0}}},
        {"update_id": 1, "message": {"from": 42, "chat": -5}},
        {"update_id": 1, 5: {"from": {"id": 1}}},
    ],
)
def test_a_malformed_update_has_no_key(update: object) -> None:
    assert [key(strategy, update) for strategy in STRATEGIES] == [None] * 5


@pytest.mark.parametrize("strategy", [keys.ChatUser(), keys.ChatTopicUser()])
def test_a_malformed_chat_does_not_count_as_no_chat(strategy: keys.KeyStrategy) -> None:
    message = find("message", "a command in a private chat")
    del message["message"]["chat"]
    pressed = find("callback_query", "in a private chat")
    del pressed["callback_query"]["message"]["chat"]
    unknown = {"update_id": 1, "greeting": {"user": {"id": 1}, "chat": {"title": "?"}}}
    assert [key(strategy, update) for update in (message, pressed, unknown)] == [None] * 3


@pytest.mark.parametrize("strategy", [keys.ChatTopic(), keys.ChatTopicUser()])
def test_a_malformed_thread_gives_no_key_of_a_topic(strategy: keys.KeyStrategy) -> None:
    update = find("message", "text in a forum topic")
    update["message"]["message_thread_id"] = "17"
    assert key(strategy, update) is None
    assert Update.of(update).thread_id is None


class Doubled:
    def extract(self, update: Update) -> tuple[int, int] | None:
        return (update.user.id, update.user.id) if update.user else None


def doubled(update: Update) -> tuple[int, int] | None:
    return Doubled().extract(update)


@pytest.mark.parametrize(
    "given", [Doubled, Doubled(), doubled, Doubled().extract], ids=["class", "instance", "function", "method"]
)
def test_a_strategy_may_be_an_instance_a_class_or_a_function(given: object) -> None:
    strategy = keys.strategy(given)
    assert key(strategy, find("message", "text in a group")) == (7000000001, 7000000001)
    assert key(strategy, find("poll", "a new vote")) is None


@pytest.mark.parametrize("given", [keys.ChatUser, keys.User, keys.Chat, keys.ChatTopic, keys.ChatTopicUser])
def test_the_built_in_strategies_may_be_classes(given: type) -> None:
    assert keys.strategy(given) == given()


@pytest.mark.parametrize("given", [None, "ChatUser", 5, int])
def test_the_error_for_a_value_that_is_not_a_strategy_lists_what_is(given: object) -> None:
    with pytest.raises(InvalidOption, match="ChatUser"):
        keys.strategy(given)


def test_the_error_for_a_strategy_class_that_needs_arguments_suggests_an_instance() -> None:
    with pytest.raises(InvalidOption, match="pass an instance"):
        keys.strategy(keys.Business)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_business_adds_the_connection_to_any_key(case: Case) -> None:
    update = Update.of(case.update)
    for inner in (*STRATEGIES, doubled, Doubled):
        plain = keys.strategy(inner).extract(update)
        expected = None if plain is None else (case.business or 0, plain)
        assert keys.Business(inner).extract(update) == expected


def test_one_customer_of_two_businesses_has_two_conversations() -> None:
    one = find("business_message", "from a customer")
    two = find("business_message", "from a customer")
    two["business_message"]["business_connection_id"] = "bc-other"
    strategy = keys.Business(keys.ChatUser())
    assert key(strategy, one) != key(strategy, two)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (keys.ChatUser(), ("user:7000000001", "chat:-4000123")),
        (keys.User(), ("user:7000000001",)),
        (keys.Chat(), ("chat:-4000123",)),
        (keys.ChatTopic(), ("chat:-4000123",)),
        (keys.ChatTopicUser(), ("user:7000000001", "chat:-4000123")),
        (keys.Business(keys.User()), ("user:7000000001",)),
        pytest.param(keys.strategy(doubled), ("user:7000000001",), id="a function"),
        pytest.param(
            keys.strategy(lambda update: ("x", (update.chat.id, b"y"))), ("chat:-4000123",), id="a nested key"
        ),
        pytest.param(keys.strategy(lambda update: f"{update.user.id}"), (), id="a text"),
    ],
    ids=repr,
)
def test_tags_name_the_users_and_chats_of_a_key(strategy: keys.KeyStrategy, expected: tuple[str, ...]) -> None:
    update = Update.of(find("message", "text in a group"))
    assert keys.tags_of(strategy, update, strategy.extract(update)) == expected


def test_a_strategy_may_define_its_tags() -> None:
    class Hashed:
        def extract(self, update: Update) -> str:
            return f"h{update.user.id * 7}" if update.user else "h"

        def tags(self, update: Update) -> list[str]:
            return [f"user:{update.user.id}"] if update.user else []

    update = Update.of(find("message", "text in a group"))
    assert keys.tags_of(Hashed(), update, Hashed().extract(update)) == ("user:7000000001",)


def test_an_update_without_a_chat_has_no_chat_tag() -> None:
    update = Update.of(find("inline_query", "typed in a group"))
    assert keys.tags_of(keys.ChatUser(), update, (0, 42)) == ("user:42",)
