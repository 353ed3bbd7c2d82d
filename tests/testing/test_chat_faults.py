"""``stepwell.testing.Chat``: refused calls, Telegram away, kills, and the history."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from stepwell import MemoryStorage, State, Storage
from stepwell.errors import BotApiError, BotBlocked, BotUnavailable, InvalidOption, UsageError
from stepwell.fsm import FSM, Context, Flow, Router, callback, command, kind, state, text
from stepwell.testing import Chat
from tests.backends import Backend
from tests.constants import Constants


async def remind(ctx: Context) -> None:
    ctx.answer("Are you still there?")
    ctx.answer("I can wait.")


class Order(Flow, name="order"):
    size = state(timeout=600, on_timeout=remind)
    default_state = size


def make(storage: Storage | str) -> Router:
    router = Router(FSM("shop", storage=storage, flows=[Order]))

    @router.on(command("order"))
    async def order(ctx: Context) -> None:
        ctx.start_flow(Order)
        handled.append(ctx.update_id)
        ctx.answer("Which size?", reply_markup={"inline_keyboard": [[{"text": "Large", "callback_data": "l"}]]})
        ctx.answer("Take your time.")

    @router.on(callback("l"))
    async def large(ctx: Context) -> None:
        ctx.profile["size"] = "large"
        ctx.answer_callback("Noted.")
        message = ctx.update.raw["callback_query"]["message"]
        ctx.call(
            "editMessageText",
            chat_id=message["chat"]["id"],
            message_id=message["message_id"],
            text="Large it is.",
        )

    @router.on(command("drop"))
    async def drop(ctx: Context) -> None:
        ctx.call("deleteMessage", chat_id=42, message_id=int(ctx.args))

    @router.on(command("long"))
    async def long(ctx: Context) -> None:
        ctx.answer("x" * int(ctx.args))
        ctx.answer("Done.")

    @router.on(command("data"))
    async def data(ctx: Context) -> None:
        button = {"text": "Press", "callback_data": "d" * int(ctx.args)}
        ctx.answer("Press", reply_markup={"inline_keyboard": ((button,),)})
        ctx.answer("Done.")

    @router.on(command("caption"))
    async def caption(ctx: Context) -> None:
        ctx.call("sendPhoto", chat_id=42, photo="file", caption="c" * int(ctx.args))

    @router.on(command("html"))
    async def html(ctx: Context) -> None:
        ctx.answer(ctx.args, parse_mode="HTML")

    @router.on(kind("my_chat_member"))
    async def member(ctx: Context) -> None:
        ctx.profile["left"] = ctx.update.raw["my_chat_member"]["new_chat_member"]["status"] == "kicked"

    @router.on(text())
    async def echo(ctx: Context) -> None:
        ctx.answer(ctx.text or "")

    return router


handled: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_handled() -> None:
    handled.clear()


# Refused calls


@pytest.mark.parametrize(
    ("fits", "too_long", "said"),
    [
        ("/data 64", "/data 65", "400 Bad Request: BUTTON_DATA_INVALID"),
        ("/html <b>bold</b>", "/html <b>bold", "400 Bad Request: can't parse entities"),
    ],
)
async def test_calls_that_telegram_refuses_raise(fits: str, too_long: str, said: str) -> None:
    chat = Chat(make)
    await chat.send(fits)
    with pytest.raises(BotApiError, match=said):
        await chat.send(too_long)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("sendMesage", "404 Not Found: Telegram has no method 'sendMesage'; did you mean 'sendMessage'?"),
        ("send_message", "404 Not Found: Telegram has no method 'send_message'; did you mean 'sendMessage'?"),
        ("hologram", "404 Not Found: Telegram has no method 'hologram' (Bot API 10.3)"),
    ],
)
async def test_a_method_that_telegram_does_not_have_is_refused_with_the_likely_one(given: str, said: str) -> None:
    router = Router(FSM("methods", storage=MemoryStorage(), flows=[]))

    @router.on()
    async def call(ctx: Context) -> None:
        ctx.call(ctx.text or "", chat_id=42, text="Hello")

    chat = Chat(router)
    with pytest.raises(BotApiError) as caught:
        await chat.send(given)
    assert str(caught.value) == f"{given} was refused: {said}"
    for known in ("postStory", "kickChatMember", "getchat"):
        assert await chat.send(known) == []


async def test_texts_that_are_too_long_arrive_as_several_messages() -> None:
    chat = Chat(make)
    assert await chat.send("/long 4097") == ["x" * 4096, "x", "Done."]
    await chat.send("/caption 1025")
    assert [call.get("caption", call.get("text")) for call in chat.calls[-2:]] == ["c" * 1024, "c"]


async def test_with_on_send_error_a_refused_call_does_not_stop_the_others() -> None:
    seen: list[tuple[str, str]] = []

    async def refused(call: dict[str, Any], error: BotApiError) -> None:
        seen.append((call["method"], error.description))

    chat = Chat(make, on_send_error=refused)
    assert await chat.send("/data 65") == ["Done."]
    assert seen == [("sendMessage", "Bad Request: BUTTON_DATA_INVALID")]
    assert [error.code for _, error in chat.refused] == [400]
    with pytest.raises(InvalidOption, match="on_send_error takes a function"):
        Chat(make, on_send_error=5)  # type: ignore[arg-type]


async def test_a_requested_refusal_is_recorded_and_the_other_calls_are_sent() -> None:
    chat = Chat(make)
    chat.refuse(400, "Bad Request: have no rights to send a message")
    assert await chat.send("/order") == ["Take your time."]
    [(call, error)] = chat.refused
    assert (call["text"], str(error)) == (
        "Which size?",
        "sendMessage was refused: 400 Bad Request: have no rights to send a message",
    )
    assert str(chat) == "User 42: /order\nBot (refused): Which size?\nBot: Take your time."
    assert await chat.user(43).send("hi") == ["hi"]


async def test_a_user_who_blocked_the_bot_gets_nothing() -> None:
    errors: list[BotApiError] = []
    chat = Chat(make, on_send_error=lambda call, error: errors.append(error))
    assert await chat.block() == []
    assert await chat.profile() == {"left": True}
    assert await chat.send("hi") == []
    assert [type(error) for error in errors] == [BotBlocked]
    assert await chat.user(43).send("hi") == ["hi"]
    await chat.unblock()
    assert await chat.send("hi again") == ["hi again"]
    assert await chat.profile() == {"left": False}
    with pytest.raises(UsageError, match="only a private chat can be blocked"):
        await chat.group(-100).block()


async def test_answers_that_telegram_did_not_take_come_with_the_redelivery() -> None:
    chat = Chat(make)
    chat.cut()
    with pytest.raises(BotUnavailable, match="Telegram cannot be reached"):
        await chat.send("/order")
    assert await chat.redeliver() == ["Which size?", "Take your time."]
    assert len(handled) == 1
    chat.refuse(502, "Bad Gateway")
    with pytest.raises(BotUnavailable, match="502 Bad Gateway"):
        await chat.send("hi")


# Timers


async def test_answers_of_a_timer_that_telegram_did_not_take_are_sent_later() -> None:
    chat = Chat(make)
    await chat.send("/order")
    chat.cut()
    assert await chat.advance(600) == []
    assert await chat.advance(60) == ["Are you still there?", "I can wait."]
    assert await chat.advance(600) == []


async def test_a_refused_answer_of_a_timer_does_not_stop_the_others() -> None:
    chat = Chat(make)
    await chat.send("/order")
    chat.refuse(400, "Bad Request: chat not found")
    assert await chat.advance(600) == ["I can wait."]
    assert len(chat.refused) == 1


async def test_an_answer_of_a_timer_that_telegram_would_refuse_fails_the_test(constants: Constants) -> None:
    chat = Chat(make)
    await chat.send("/order")
    constants(longest_text=15)
    with pytest.raises(BotApiError, match="message is too long"):
        await chat.advance(600)


@pytest.mark.parametrize("given", ["url", "router", "factory"])
async def test_time_passes_on_memory(given: str) -> None:
    chat = {
        "url": lambda: Chat(make, storage="memory://"),
        "router": lambda: Chat(make("memory://")),
        "factory": lambda: Chat(lambda storage: make("memory://")),
    }[given]()
    await chat.send("/order")
    assert await chat.advance(599) == []
    assert await chat.advance(2) == ["Are you still there?", "I can wait."]


async def test_workers_share_a_memory() -> None:
    chat = Chat(make, storage="memory://", workers=2)
    await chat.send("/order")
    await chat.restart()
    assert await chat.record() == State("order", "size")


# Kills


async def test_a_bot_that_is_killed_in_a_handler_handles_the_update_again(backend: Backend) -> None:
    chat = Chat(make, storage=backend.storage())
    chat.kill_next()
    assert await chat.send("/order") == []
    assert await chat.record() is None
    assert await chat.redeliver() == ["Which size?", "Take your time."]
    assert await chat.record() == State("order", "size")
    assert len(handled) == 2


async def test_a_bot_that_is_killed_after_its_commit_only_answers_again(backend: Backend) -> None:
    chat = Chat(make, storage=backend.storage())
    chat.kill_next(after_commit=True)
    assert await chat.send("/order") == []
    assert await chat.record() == State("order", "size")
    assert await chat.redeliver() == ["Which size?", "Take your time."]
    assert len(handled) == 1


async def test_answers_of_a_timer_survive_a_kill() -> None:
    chat = Chat(make)
    await chat.send("/order")
    chat.kill_next()
    assert await chat.advance(600) == []
    chat.kill_next(after_commit=True)
    assert await chat.advance(1) == []
    assert await chat.advance(60) == ["Are you still there?", "I can wait."]
    assert await chat.advance(600) == []


# History


async def test_the_history_shows_pressed_buttons_edits_and_deletions() -> None:
    chat = Chat(make)
    await chat.send("/order")
    await chat.press("Large", on="Which size?")
    await chat.send("/drop 3")
    await chat.edit("drop it")
    assert str(chat).splitlines() == [
        "User 42: /order",
        "Bot: Which size?",
        "Bot: Take your time.",
        "User 42: [Large]",
        "Bot (notice): Noted.",
        "Bot (edited): Large it is.",
        "User 42: /drop 3",
        "Bot (deleted): Take your time.",
        "User 42 (edited): drop it",
    ]
    assert str(chat.user(43)) == ""
    assert await chat.profile() == {"size": "large"}
    assert await chat.user(43).profile() == {}


def test_chat_needs_no_optional_package() -> None:
    code = (
        "import sys; from stepwell.testing import Chat; "
        "print([name for name in ('httpx', 'starlette', 'uvicorn', 'pytest') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_memory_keeps_the_system_clock_until_time_is_advanced() -> None:
    storage = MemoryStorage()
    chat = Chat(make, storage=storage)
    await chat.send("/order")
    assert storage.clock is None
    await chat.advance(601)
    assert chat.last == "I can wait."
