"""``stepwell.testing.Chat``: users, chats, restarts, redelivery, workers, time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from examples.registration import make_router

from stepwell import MemoryStorage, State, Storage
from stepwell.errors import InvalidOption, UsageError
from stepwell.fsm import FSM, BotMethods, Context, Flow, Router, callback, command, keys, kind, state, text
from stepwell.nodes import Node, Sleep, linear
from stepwell.testing import Chat, Clock
from tests.backends import Backend


class Poll(Flow, name="poll"):
    asked = state(to=["answered"])
    answered = state(to=[])
    default_state = asked


def keyboard(*texts: str) -> dict[str, Any]:
    return {"inline_keyboard": [[{"text": each, "callback_data": each.lower()}] for each in texts]}


def make_poll(storage: Storage | str) -> Router:
    router = Router(FSM("poll_bot", storage=storage, flows=[Poll], key=keys.ChatTopicUser()))

    @router.on(command("ask"))
    async def ask(ctx: Context) -> None:
        ctx.start_flow(Poll)
        ctx.answer("Sure?", reply_markup=keyboard("Yes", "No"))

    @router.on(command("menu"))
    async def menu(ctx: Context) -> None:
        ctx.answer("Menu", reply_markup={"keyboard": [["/ask", {"text": "Hello"}]]})

    @router.on(command("site"))
    async def site(ctx: Context) -> None:
        ctx.answer("Look", reply_markup={"inline_keyboard": [[{"text": "Open", "url": "https://example.com"}]]})

    @router.on(command("tell"))
    async def tell(ctx: Context) -> None:
        ctx.answer("I told them.")
        ctx.answer("A word for you.", chat_id=int(ctx.args))

    @router.on(command("drop"))
    async def drop(ctx: Context) -> None:
        ctx.call("deleteMessage", chat_id=ctx.update.raw["message"]["chat"]["id"], message_id=int(ctx.args))

    @router.on(callback())
    async def pressed(ctx: Context) -> None:
        message = ctx.update.raw["callback_query"]["message"]
        ctx.transition("answered")
        ctx.answer_callback("Noted.")
        ctx.call(
            "editMessageText",
            chat_id=message["chat"]["id"],
            message_id=message["message_id"],
            text=f"You said {ctx.update.callback_data}.",
        )

    @router.on(text("boom"))
    async def boom(ctx: Context) -> None:
        raise ValueError("boom")

    @router.on(kind("edited_message"))
    async def edited(ctx: Context) -> None:
        ctx.answer(f"You now say {ctx.text}.")

    @router.on(kind("my_chat_member"))
    async def member(ctx: Context) -> None:
        ctx.answer("Hello, group.")

    @router.on(text())
    async def echo(ctx: Context) -> None:
        ctx.answer(f"{ctx.update.user.raw['first_name']}: {ctx.text}")  # type: ignore[union-attr]

    return router


# Messages


async def test_send_returns_the_answers_and_keeps_the_messages() -> None:
    chat = Chat(make_router)
    assert chat.last is None
    assert await chat.send("/register") == ["What's your name?"]
    assert await chat.send("Alice") == ["Got it, Alice! What's your email?"]
    assert chat.last == "Got it, Alice! What's your email?"
    assert [message["text"] for message in chat.messages][:2] == ["/register", "What's your name?"]
    assert chat.calls[0] == {"method": "sendMessage", "chat_id": 42, "text": "What's your name?"}
    assert str(chat).splitlines()[-2:] == ["User 42: Alice", "Bot: Got it, Alice! What's your email?"]
    assert await chat.record() == State("registration", "get_email", {"name": "Alice"})


async def test_an_update_has_the_format_of_the_bot_api() -> None:
    chat = Chat(make_poll)
    await chat.group(-1001234567890).topic(7).send("/ask now")
    [update] = chat.updates
    message = update["message"]
    assert isinstance(update["update_id"], int)
    assert message["from"] == {"id": 42, "is_bot": False, "first_name": "User 42", "language_code": "en"}
    assert message["chat"] | {"title": "..."} == {
        "id": -1001234567890,
        "title": "...",
        "type": "supergroup",
        "is_forum": True,
    }
    assert (message["message_thread_id"], message["is_topic_message"]) == (7, True)
    assert message["entities"] == [{"type": "bot_command", "offset": 0, "length": 4}]


async def test_frameworks_can_parse_its_updates() -> None:
    from aiogram.types import Update as AiogramUpdate

    chat = Chat(make_poll)
    await chat.send("/ask")
    await chat.press("Yes")
    await chat.send("hello")
    await chat.edit("hello!")
    for update in chat.updates:
        assert AiogramUpdate.model_validate(update).update_id == update["update_id"]
    for message in chat.messages:
        assert AiogramUpdate.model_validate({"update_id": 1, "message": message}).message


async def test_fields_of_the_bot_api_can_be_sent() -> None:
    chat = Chat(make_router)
    await chat.send(photo=[{"file_id": "AgAC", "file_unique_id": "AQAD", "width": 90, "height": 67}], caption="Me")
    assert chat.last == "Say /register to begin."
    assert chat.updates[-1]["message"]["caption"] == "Me"


async def test_any_update_can_be_delivered() -> None:
    chat = Chat(make_poll).group(-100)
    update = {"update_id": 1, "my_chat_member": {"chat": {"id": -100, "type": "group"}, "from": {"id": 42}}}
    assert await chat.deliver(update) == ["Hello, group."]


async def test_a_message_can_be_edited() -> None:
    chat = Chat(make_poll)
    with pytest.raises(UsageError, match="no message to edit"):
        await chat.edit("hallo")
    await chat.send("hello")
    assert await chat.edit("hallo") == ["You now say hallo."]
    assert [message["text"] for message in chat.messages] == ["hallo", "User 42: hello", "You now say hallo."]


async def test_an_exception_of_a_handler_reaches_the_test_and_the_update_can_be_redelivered() -> None:
    chat = Chat(make_poll)
    with pytest.raises(ValueError, match="boom"):
        await chat.send("boom")
    with pytest.raises(ValueError, match="boom"):
        await chat.redeliver()


# Buttons


async def test_pressing_a_button_of_the_last_message_edits_it() -> None:
    chat = Chat(make_poll)
    await chat.send("/ask")
    assert chat.buttons == ["Yes", "No"]
    assert await chat.press("Yes") == ["You said yes."]
    assert chat.last == "You said yes."
    assert chat.buttons == []
    assert [call["method"] for call in chat.calls] == ["sendMessage", "answerCallbackQuery", "editMessageText"]


async def test_a_press_that_the_bot_does_not_answer_gets_the_empty_answer_of_a_runner() -> None:
    def make_silent(storage: Storage) -> Router:
        router = Router(FSM("poll_bot", storage=storage, flows=[]))

        @router.on(command("menu"))
        async def menu(ctx: Context) -> None:
            ctx.answer("Menu", reply_markup=keyboard("Old", "Fail"))

        @router.on(callback("fail"))
        async def fail(ctx: Context) -> None:
            raise LookupError("oh")

        return router

    chat = Chat(make_silent)
    await chat.send("/menu")
    assert await chat.press("Old") == []
    query = chat.updates[-1]["callback_query"]["id"]
    answer = {"method": "answerCallbackQuery", "callback_query_id": query}
    assert chat.calls[1:] == [answer]
    await chat.redeliver()
    assert chat.calls[1:] == [answer]
    with pytest.raises(LookupError):
        await chat.press("Fail")
    assert chat.calls[-1]["callback_query_id"] == chat.updates[-1]["callback_query"]["id"]
    chat.kill_next()
    await chat.press("Old")
    assert len(chat.calls) == 3
    await chat.redeliver()
    assert chat.calls[-1]["callback_query_id"] == chat.updates[-1]["callback_query"]["id"]


async def test_pressing_a_missing_button_raises_and_lists_the_buttons() -> None:
    chat = Chat(make_poll)
    with pytest.raises(AssertionError, match="the bot has sent no message here"):
        await chat.press("Yes")
    await chat.send("/ask")
    with pytest.raises(AssertionError, match="'Sure\\?' has no button 'Maybe'; its buttons are: 'Yes', 'No'"):
        await chat.press("Maybe")
    await chat.send("hello")
    with pytest.raises(AssertionError, match="its buttons are: none"):
        await chat.press("Yes")
    with pytest.raises(AssertionError, match="sent no message 'Well\\?' here; it sent: 'Sure\\?', 'User 42: hello'"):
        await chat.press("Yes", on="Well?")
    await chat.send("/site")
    with pytest.raises(AssertionError, match="opens a page"):
        await chat.press("Open")


async def test_an_older_message_still_has_its_buttons() -> None:
    chat = Chat(make_poll)
    await chat.send("/ask")
    await chat.send("hello")
    assert await chat.press("No", on="Sure?") == ["You said no."]


async def test_a_button_of_a_reply_keyboard_sends_its_text() -> None:
    chat = Chat(make_poll)
    await chat.send("/menu")
    assert chat.buttons == ["/ask", "Hello"]
    assert await chat.press("Hello") == ["User 42: Hello"]


async def test_a_message_can_be_deleted_and_an_unknown_one_raises() -> None:
    chat = Chat(make_poll)
    await chat.send("hello")
    await chat.send(f"/drop {chat.messages[1]['message_id']}")
    assert [message["text"] for message in chat.messages] == ["hello", "/drop 2"]
    with pytest.raises(AssertionError, match="deleteMessage: there is no message 99 in chat 42"):
        await chat.send("/drop 99")


# Users and chats


async def test_users_groups_and_topics_share_one_bot() -> None:
    chat = Chat(make_poll)
    bob = chat.user(43, first_name="Bob", language_code="de")
    group = chat.group(-100)
    topic = group.topic(7)
    for where in (chat, bob, group, group.user(43), topic):
        await where.send("hello")
    assert (chat.last, bob.last) == ("User 42: hello", "Bob: hello")
    assert [message["text"] for message in group.messages] == ["hello", "User 42: hello", "hello", "User 43: hello"]
    assert [message["text"] for message in topic.messages] == ["hello", "User 42: hello"]
    assert group.user(43).messages == group.messages
    assert topic.user(43).messages == topic.messages
    assert len(chat.updates) == len(bob.updates) == 5


async def test_only_answers_in_this_chat_are_returned() -> None:
    chat = Chat(make_poll)
    assert await chat.send("/tell 43") == ["I told them."]
    assert chat.user(43).last == "A word for you."


async def test_record_returns_the_record_of_this_user_in_this_chat() -> None:
    chat = Chat(make_poll)
    topic = chat.group(-100).topic(7)
    await topic.send("/ask")
    assert await topic.record() == State("poll", "asked")
    assert await topic.user(43).record() is None
    assert await chat.group(-100).record() is None


def test_invalid_ids_are_refused() -> None:
    chat = Chat(make_poll)
    with pytest.raises(InvalidOption, match="a group must be below 0"):
        chat.group(100)
    with pytest.raises(InvalidOption, match="a user must be above 0"):
        chat.user(-1)
    with pytest.raises(UsageError, match="only groups have topics"):
        chat.topic(7)


async def test_a_text_that_is_no_str_is_refused() -> None:
    chat = Chat(make_poll)
    for write in (chat.send, chat.send_at_once, chat.edit):
        with pytest.raises(InvalidOption, match="text must be a str, got 5"):
            await write(5)  # type: ignore[arg-type,operator]


# Restart, redelivery, workers, time


async def test_a_conversation_continues_after_a_restart(backend: Backend) -> None:
    chat = Chat(make_router, storage=backend.storage())
    await chat.send("/register")
    await chat.restart()
    assert await chat.send("Alice") == ["Got it, Alice! What's your email?"]


async def test_every_worker_and_every_restart_opens_the_url_again(shared_backend: Backend) -> None:
    async with Chat(make_router, storage=shared_backend.place(), workers=2) as chat:
        await chat.send("/register")
        await chat.send("Alice")
        await chat.restart()
        assert await chat.send("alice@example.com") == ["Please confirm."]


async def test_a_restart_may_use_another_release() -> None:
    chat = Chat(make_router)
    await chat.send("/register")
    await chat.restart(make_poll)
    assert await chat.send("Alice") == ["User 42: Alice"]


async def test_a_redelivered_update_changes_nothing_and_is_answered_again(backend: Backend) -> None:
    chat = Chat(make_router, storage=backend.storage())
    with pytest.raises(UsageError, match="no update to deliver again"):
        await chat.redeliver()
    await chat.send("/register")
    await chat.send("Alice")
    before = await chat.record()
    assert await chat.redeliver() == ["Got it, Alice! What's your email?"]
    assert await chat.record() == before
    assert chat.updates[-1] == chat.updates[-2]


async def test_two_chats_over_one_storage_have_different_update_ids(backend: Backend) -> None:
    storage = backend.storage()
    await Chat(make_router, storage=storage).send("/register")
    assert await Chat(make_router, storage=storage).send("Alice") == ["Got it, Alice! What's your email?"]


async def test_workers_get_updates_in_turn(backend: Backend) -> None:
    made: list[Router] = []

    def make(storage: Storage | str) -> Router:
        made.append(make_router(storage))
        return made[-1]

    chat = Chat(make, storage=backend.storage(), workers=2)
    assert len(made) == 2
    assert made[0].fsm is not made[1].fsm
    handled: list[int] = []
    for number, router in enumerate(made):
        router.handle = _noting(router, handled, number)  # type: ignore[method-assign]
    await chat.send("/register")
    await chat.send("Alice")
    assert sorted(handled) == [0, 1]
    assert chat.last == "Got it, Alice! What's your email?"


def _noting(router: Router, handled: list[int], number: int) -> Any:
    handle = router.handle

    async def noted(update: Any) -> list[dict[str, Any]]:
        handled.append(number)
        return await handle(update)

    return noted


async def test_messages_sent_at_once_are_handled_one_after_the_other(backend: Backend) -> None:
    class Counting(Flow, name="counting"):
        on = state()
        default_state = on

    def make(storage: Storage | str) -> Router:
        router = Router(FSM("counter", storage=storage, flows=[Counting]))

        @router.on()
        async def count(ctx: Context) -> None:
            seen = ctx.data.get("seen", [])
            await asyncio.sleep(0)
            ctx.update_data(seen=[*seen, ctx.text])
            ctx.answer(f"{len(seen) + 1}")

        return router

    chat = Chat(make, storage=backend.storage(), workers=2)
    texts = [f"message {number}" for number in range(10)]
    answers = await chat.send_at_once(*texts)
    assert answers == [[str(number + 1)] for number in range(10)]
    assert (await chat.record() or State()).data == {"seen": texts}


async def test_advance_moves_the_clock_of_the_storage(clock: Clock) -> None:
    chat = Chat(make_router)
    await chat.send("/register")
    date = chat.messages[-1]["date"]
    await chat.advance(600)
    await chat.send("Alice")
    assert chat.messages[-1]["date"] == date + 600

    storage = MemoryStorage(clock=clock)
    before = clock.now
    await Chat(make_router(storage)).advance(5)
    await Chat(make_router, storage=storage).advance(5)
    await Chat(make_router, storage="memory://", clock=clock).advance(5)
    assert clock.now == before + 15


# Invalid use


async def test_a_storage_with_the_system_clock_cannot_be_advanced(shared_backend: Backend) -> None:
    async with Chat(make_router, storage=shared_backend.place()) as chat:
        with pytest.raises(UsageError, match="uses the system clock"):
            await chat.advance(1)


async def test_a_url_needs_a_clock_beside_it_to_be_advanced(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bot.db"
    async with Chat(make_router, storage=url) as chat:
        with pytest.raises(UsageError, match=r"pass the clock beside the URL: Chat\(make_router, storage=.*, clock="):
            await chat.advance(1)
    async with Chat(make_router, storage=url, clock=Clock()) as chat:
        await chat.advance(1)
        assert chat.messages == []


async def test_a_chat_with_a_router_cannot_restart() -> None:
    chat = Chat(make_router(MemoryStorage()))
    assert await chat.send("/register") == ["What's your name?"]
    with pytest.raises(UsageError, match="needs a function that makes the router"):
        await chat.restart()
    with pytest.raises(InvalidOption, match="a router already has its storage"):
        Chat(make_router(MemoryStorage()), workers=2)
    with pytest.raises(UsageError, match=r"kill_next.* needs a function that makes the router"):
        chat.kill_next()


def test_anything_but_a_router_or_its_factory_is_refused() -> None:
    with pytest.raises(InvalidOption, match="def make_router\\(storage\\)"):
        Chat(lambda: make_router("memory://"))  # type: ignore[arg-type, misc]
    with pytest.raises(InvalidOption, match="a function that makes one"):
        Chat(make_router(MemoryStorage()).fsm)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="must return a Router or Turns, got None"):
        Chat(lambda storage: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidOption, match="no machine"):
        Chat(Router())
    with pytest.raises(InvalidOption, match="workers must be 1 or more"):
        Chat(make_router, workers=0)
    with pytest.raises(InvalidOption, match="has its own clock"):
        Chat(make_router, storage=MemoryStorage(), clock=Clock())


async def test_a_message_that_is_deleted_again_by_a_repeated_update_is_refused_as_by_telegram(backend: Backend) -> None:
    def make(storage: Storage) -> Router:
        router = Router(FSM("deleting", storage=storage, flows=[]))

        @router.on(text())
        async def delete(ctx: Context) -> None:
            ctx.update_data(deleted=True)
            ctx.call("deleteMessage", chat_id=42, message_id=ctx.update.message_id)
            ctx.answer("Deleted.")

        return router

    chat = Chat(make, storage=backend.storage())
    assert await chat.send("Hi") == ["Deleted."]
    assert chat.refused == []
    assert await chat.redeliver() == ["Deleted."]
    assert [(call["method"], error.description) for call, error in chat.refused] == [
        ("deleteMessage", "Bad Request: message to delete not found"),
    ]  # fmt: skip


def make_kitchen(storage: Storage) -> Router:
    """A bot whose handler submits a run, which answers twice with a sleep between."""
    fsm = FSM("kitchen", storage=storage, flows=[])
    router = Router(fsm)

    class Tell(Node):
        async def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            async with fsm.conversation(key=shared["key"]) as ctx:
                ctx.answer(shared["texts"].pop(0))

    order = linear(Tell(name="begin"), Sleep(60), Tell(name="end"), name="order")
    router.run_workers(order)

    @router.on(text())
    async def take(ctx: Context) -> None:
        shared = {"key": ctx.key, "texts": [f"{ctx.text} is baking.", f"{ctx.text} is ready."]}
        await order.submit(shared, flow_id=f"order-{ctx.update_id}", storage=storage)
        ctx.answer("I am on it.")

    return router


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_runs_that_a_handler_has_submitted_run_while_the_time_advances(
    backend: Backend, clock: Clock, workers: int
) -> None:
    chat = Chat(make_kitchen, storage=backend.storage(clock=clock), workers=workers)
    assert await chat.send("Cake") == ["I am on it."]
    assert await chat.advance(0) == ["Cake is baking."]
    await chat.restart()
    assert await chat.advance(59) == []
    assert await chat.advance(1) == ["Cake is ready."]
    assert await chat.advance(100) == []


async def test_a_run_whose_handler_was_killed_runs_once() -> None:
    chat = Chat(make_kitchen)
    chat.kill_next()
    await chat.send("Cake")
    assert await chat.advance(0) == ["Cake is baking."]
    assert await chat.redeliver() == ["I am on it."]
    assert await chat.advance(60) == ["Cake is ready."]


async def test_the_functions_of_on_startup_are_called_once_in_each_process_before_its_first_update() -> None:
    seen: list[str] = []

    def make(storage: Storage) -> Router:
        router = Router(FSM("starting", storage=storage, flows=[]))

        @router.on_startup
        async def begin(bot: BotMethods) -> None:
            seen.append((await bot.get_me())["username"])

        @router.on_startup
        def count() -> None:
            seen.append("started")

        @router.on()
        async def hello(ctx: Context) -> None:
            ctx.answer(", ".join(seen))

        return router

    chat = Chat(make)
    assert seen == []
    for _ in range(2):
        assert await chat.send("Hi") == ["test_bot, started"]
    seen.clear()
    await chat.restart()
    assert await chat.advance(1) == []
    assert await chat.send("Hi") == ["test_bot, started"]


def test_chat_needs_no_pytest_and_the_contract_no_fsm() -> None:
    code = "import sys; from stepwell.testing import {0}; print({1!r} in sys.modules)"
    for name, module in (("Chat", "pytest"), ("Clock", "stepwell.fsm")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(name, module)], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "False"
