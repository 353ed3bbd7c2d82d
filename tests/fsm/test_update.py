from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from types import MappingProxyType, SimpleNamespace
from typing import Any

import aiogram.types
import pytest

from stepwell.fsm import Update
from tests.fsm.updates import find


def message(text: str | None) -> Update:
    update = find("message", "text in a group")
    update["message"]["text"] = text
    return Update.of(update)


def test_an_update_is_read_by_name() -> None:
    raw = find("message", "text in a forum topic")
    update = Update.of(raw)
    assert update.raw is raw
    assert update.kind == "message"
    assert update.update_id == raw["update_id"]
    assert update.event is raw["message"]
    assert update.user is not None
    assert (update.user.id, update.user.language_code, update.user.no_such_field) == (42, "en", None)
    assert update.chat is not None
    assert (update.chat.id, update.chat.type, update.chat.is_forum) == (-1002222222222, "supergroup", True)
    assert update.thread_id == 17
    assert update.text == "Hats"
    assert update.callback_data is None


def test_an_update_of_an_update_is_itself() -> None:
    update = Update.of({"update_id": 1})
    assert Update.of(update) is update


def test_a_pressed_button_has_data_and_no_text() -> None:
    update = Update.of(find("callback_query", "in a private chat"))
    assert (update.callback_data, update.text) == ("yes", None)


def test_an_inaccessible_message_has_a_chat() -> None:
    raw = find("callback_query", "on a message that is no longer accessible")
    given = aiogram.types.Update.model_validate(raw)
    assert given.callback_query is not None
    assert type(given.callback_query.message).__name__ == "InaccessibleMessage"
    update = Update.of(given)
    assert update.chat is not None
    assert (update.chat.id, update.thread_id) == (-1001234567890, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/start", ("start", None, "")),
        ("/Start@Clerk_Bot  one  two ", ("start", "clerk_bot", "one  two")),
        ("/note\nfirst\nsecond", ("note", None, "first\nsecond")),
        ("/set_2fa on", ("set_2fa", None, "on")),
        ("start", None),
        ("say /start", None),
        ("/", None),
        ("/ start", None),
        ("/home/alice", None),
        ("/start-now", None),
        (None, None),
    ],
)
def test_a_text_may_be_a_command(text: str | None, expected: Any) -> None:
    assert message(text).command == expected


def test_a_peer_cannot_be_changed_and_equals_by_id() -> None:
    one, two = message("a").user, message("b").user
    assert one is not None
    assert one == two
    assert len({one, two}) == 1
    assert one != 7000000001
    with pytest.raises(AttributeError, match="cannot assign"):
        one.language_code = "fr"
    with pytest.raises(AttributeError):
        one.__wrapped__


def test_an_update_can_be_copied_and_pickled() -> None:
    update = message("hi")
    for twin in (copy.deepcopy(update), copy.copy(update), pickle.loads(pickle.dumps(update))):
        assert (twin.text, twin.user, twin.chat) == ("hi", update.user, update.chat)
    assert copy.deepcopy(update.user) == update.user


def test_an_update_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError, match="no_such"):
        Update.of({}).no_such


def test_a_null_field_is_not_the_kind() -> None:
    raw = {
        "update_id": 1,
        "message": None,
        "callback_query": find("callback_query", "in a private chat")["callback_query"],
    }
    assert Update.of(raw).kind == "callback_query"


@pytest.mark.parametrize(
    ("bare", "kind"),
    [
        (find("message", "text in a group")["message"], "message"),
        (find("edited_message", "in a private chat")["edited_message"], "edited_message"),
        (find("channel_post", "unsigned")["channel_post"], "channel_post"),
        (find("business_message", "from a customer")["business_message"], "business_message"),
        (find("callback_query", "in a private chat")["callback_query"], "callback_query"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bare_message_or_callback_query_is_recognised_by_its_fields(bare: dict[str, Any], kind: str) -> None:
    update = Update.of(bare)
    assert (update.kind, update.update_id) == (kind, None)
    assert update.chat is not None
    # A callback query is not read as the message that it contains.
    assert update.user is None or update.user.id != 123456


def test_any_mapping_and_any_object_can_be_read() -> None:
    user, chat = MappingProxyType({"id": 42}), SimpleNamespace(id=-5)
    raw = MappingProxyType({"update_id": 3, "message": SimpleNamespace(from_user=user, chat=chat, text="hi")})
    update = Update.of(raw)
    assert (update.update_id, update.text) == (3, "hi")
    assert update.user is not None and update.user.id == 42
    assert update.chat is not None and update.chat.id == -5


def test_an_update_may_have_the_id_0() -> None:
    body = {"from": {"id": 42}, "chat": {"id": 42}}
    updates = (
        {"update_id": 0, "message": body},
        {"update_id": 0, "edited_message": body},
        SimpleNamespace(update_id=0),
    )
    for raw in updates:
        assert Update.of(raw).update_id == 0
    assert Update.of({"update_id": False, "message": body}).update_id is None


def test_a_property_that_raises_reads_as_none() -> None:
    class Broken:
        update_id = 5

        @property
        def message(self) -> object:
            raise RuntimeError("not loaded")

    assert Update.of(Broken()).kind is None


def test_an_event_of_another_platform_is_unchanged() -> None:
    raw = {"object": "whatsapp_business_account", "entry": [{"id": "1"}]}
    update = Update.of(raw)
    assert update.raw is raw
    assert (update.kind, update.update_id, update.user, update.chat, update.text) == (None, None, None, None, None)


def test_no_framework_is_imported() -> None:
    script = (
        "import sys, stepwell.fsm\n"
        "print([name for name in ('aiogram', 'telegram', 'telebot', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
