"""Albums: their messages are collected, and handled as one update."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stepwell import Storage
from stepwell.errors import StorageUnavailable
from stepwell.fsm import FSM, Context, Flow, Router, album, command, keys, kind, state, text
from stepwell.fsm.conversation.albums import MOST_ATTEMPTS
from stepwell.testing import Chat, Clock
from tests.backends import Backend
from tests.until import until

CLOSED = 2.0


class Photos(Flow, name="photos"):
    wait = state(to=["done"])
    done = state(to=[])
    default_state = wait


def make_router(storage: Storage | str, **options: Any) -> Router:
    router = Router(FSM("bot", storage=storage, flows=[Photos], **options))

    @router.on(album())
    async def photos(ctx: Context) -> None:
        if ctx.flow is not None:
            ctx.transition("done")
        ctx.profile["albums"] = ctx.profile.get("albums", 0) + 1
        names = " ".join(each.get("caption", "-") for each in ctx.album)
        ctx.answer(f"Album: {names}")

    @router.on(command("begin"))
    async def begin(ctx: Context) -> None:
        ctx.start_flow(Photos)

    @router.on(command("end"))
    async def end(ctx: Context) -> None:
        ctx.clear_flow()
        ctx.answer("Ended")

    @router.on(text())
    async def other(ctx: Context) -> None:
        ctx.answer(f"{ctx.text} in {ctx.state} with {ctx.album}")

    @router.on(kind("message"))
    async def single(ctx: Context) -> None:
        ctx.answer("One photo")

    return router


@pytest.fixture
def storage(backend: Backend, clock: Clock) -> Storage:
    return backend.storage(clock=clock)


@pytest.fixture
def chat(storage: Storage) -> Chat:
    return Chat(make_router, storage=storage)


async def send(chat: Chat, group: str, *captions: str) -> list[str]:
    answers: list[str] = []
    for caption in captions:
        answers += await chat.send(photo=[{"file_id": caption}], caption=caption, media_group_id=group)
    return answers


@pytest.mark.every_backend
async def test_the_messages_of_an_album_are_handled_as_one_update(chat: Chat) -> None:
    assert await send(chat, "1", "a", "b", "c", "d") == []
    assert await chat.advance(1) == []
    assert await chat.advance(1) == ["Album: a b c d"]
    assert await chat.advance(60) == []
    assert await chat.profile() == {"albums": 1}


@pytest.mark.every_backend
async def test_an_album_survives_a_restart_between_its_messages(chat: Chat) -> None:
    await send(chat, "1", "a", "b")
    await chat.restart()
    await send(chat, "1", "c", "d")
    assert await chat.advance(CLOSED) == ["Album: a b c d"]


async def test_an_album_waits_for_its_last_message_and_not_for_its_first(chat: Chat) -> None:
    await send(chat, "1", "a")
    await chat.advance(1)
    await send(chat, "1", "b")
    assert await chat.advance(1) == []
    assert await chat.advance(1) == ["Album: a b"]


async def test_a_message_that_is_delivered_twice_is_in_its_album_once(chat: Chat) -> None:
    await send(chat, "1", "a", "b")
    await chat.redeliver()
    assert await chat.advance(CLOSED) == ["Album: a b"]


async def test_messages_that_arrive_out_of_order_are_in_their_order_in_the_album(chat: Chat) -> None:
    await send(chat, "1", "b")
    first = chat.updates[-1]
    later = {**first, "update_id": first["update_id"] + 10**6}
    later["message"] = {**first["message"], "message_id": 0, "caption": "a"}
    await chat.deliver(later)
    assert await chat.advance(CLOSED) == ["Album: a b"]


async def test_the_next_update_of_the_sender_is_handled_after_the_album(chat: Chat) -> None:
    await chat.send("/begin")
    await send(chat, "1", "a", "b")
    assert await chat.send("done?") == ["done? in done with []"]
    assert [message["text"] for message in chat.messages if message["from"]["is_bot"]] == [
        "Album: a b",
        "done? in done with []",
    ]
    assert await chat.advance(CLOSED) == []


async def test_two_albums_of_a_sender_stay_two(chat: Chat) -> None:
    await send(chat, "1", "a", "b")
    await send(chat, "2", "c", "d")
    assert chat.last == "Album: a b"
    assert await chat.advance(CLOSED) == ["Album: c d"]


async def test_albums_of_several_senders_in_one_conversation_do_not_mix(storage: Storage) -> None:
    chat = Chat(lambda it: make_router(it, key=keys.Chat), storage=storage).group(-100)
    other = chat.user(43)
    await send(chat, "1", "a")
    await send(other, "2", "c")
    assert await other.send("/end") == ["Ended"]
    assert chat.messages[-2]["text"] == "Album: c"
    await send(chat, "1", "b")
    assert await chat.advance(CLOSED) == ["Album: a b"]


async def test_a_photo_without_an_album_is_an_update_of_its_own(chat: Chat) -> None:
    assert await chat.send(photo=[{"file_id": "1"}]) == ["One photo"]


async def test_without_the_filter_each_message_is_an_update_of_its_own(storage: Storage) -> None:
    router = Router(FSM("bot", storage=storage, flows=[]))
    router.on(~album())(lambda ctx: ctx.answer("never"))
    router.on()(lambda ctx: ctx.answer(str([each["caption"] for each in ctx.album])))
    chat = Chat(router)
    assert await send(chat, "1", "a", "b") == ["['a']", "['b']"]


async def test_an_album_without_a_key_is_handled_message_by_message(storage: Storage) -> None:
    router = Router(FSM("bot", storage=storage, flows=[], key=lambda update: None))
    router.on(album())(lambda ctx: ctx.answer(str([each["caption"] for each in ctx.album])))
    assert await send(Chat(router), "1", "a", "b") == ["['a']", "['b']"]


async def test_an_album_leaves_nothing_in_the_storage(chat: Chat, storage: Storage) -> None:
    router = Router(FSM("bot", storage=storage, flows=[]))
    router.on(album())(lambda ctx: ctx.answer("Thanks"))
    chat = Chat(router)
    await send(chat, "1", "a", "b")
    assert [entry async for entry in router.fsm.find()] == []  # type: ignore[union-attr]
    assert await chat.advance(CLOSED) == ["Thanks"]
    assert [entry async for entry in storage.scan("bot")] == []


async def test_an_album_is_handled_once_if_the_bot_is_killed_before_its_answers_are_sent(chat: Chat) -> None:
    await send(chat, "1", "a", "b")
    chat.kill_next(after_commit=True)
    assert await chat.advance(CLOSED) == []
    assert await chat.advance(60) == ["Album: a b"]
    assert await chat.profile() == {"albums": 1}


async def test_an_album_is_handled_again_if_the_storage_fails(storage: Storage) -> None:
    seen: list[int] = []
    router = Router(FSM("bot", storage=storage, flows=[]))

    @router.on(album())
    async def photos(ctx: Context) -> None:
        seen.append(len(ctx.album))
        if len(seen) <= 2 * MOST_ATTEMPTS:
            raise StorageUnavailable("away")
        ctx.answer("Thanks")

    router.on()(lambda ctx: ctx.answer("Hello"))
    chat = Chat(router)
    await send(chat, "1", "a", "b")
    assert await chat.advance(CLOSED) == []
    for _ in range(2 * MOST_ATTEMPTS - 1):
        with pytest.raises(StorageUnavailable):
            await chat.send("hi")
    assert await chat.send("hi") == ["Hello"]
    assert chat.messages[-2]["text"] == "Thanks"
    assert set(seen) == {2}


async def test_an_album_whose_handler_raises_is_dropped_and_logged(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router(FSM("bot", storage=storage, flows=[Photos]))

    @router.on(album())
    async def fail(ctx: Context) -> None:
        ctx.start_flow(Photos)
        raise LookupError("oh")

    router.on()(lambda ctx: ctx.answer(f"{ctx.flow}"))
    chat = Chat(router)
    await send(chat, "1", "a", "b")
    assert await chat.send("hi") == ["None"]
    assert await chat.advance(CLOSED) == []
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in failures] == ["the handler of an album failed (key (42, 42))"]


async def test_the_error_handler_of_a_router_answers_for_an_album(storage: Storage) -> None:
    router = Router(FSM("bot", storage=storage, flows=[]))

    @router.on(album(), attempts=2)
    async def fail(ctx: Context) -> None:
        raise LookupError("oh")

    router.on_error(lambda ctx, error: ctx.answer(f"Sorry: {error}, {len(ctx.album)} pictures"))
    chat = Chat(router)
    await send(chat, "1", "a", "b")
    assert await chat.advance(CLOSED) == ["Sorry: oh, 2 pictures"]


async def test_an_album_whose_process_dies_each_time_is_dropped(
    chat: Chat, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    deaths = 0

    class Death(BaseException):
        pass

    def dying(storage: Storage) -> Router:
        router = Router(FSM("bot", storage=storage, flows=[]))

        @router.on(album())
        async def die(ctx: Context) -> None:
            nonlocal deaths
            deaths += 1
            raise Death

        router.on()(lambda ctx: ctx.answer("Alive"))
        return router

    chat = Chat(dying, storage=storage)
    await send(chat, "1", "a", "b")
    for _ in range(MOST_ATTEMPTS):
        with pytest.raises(Death):
            await chat.send("hi")
    assert await chat.send("hi") == ["Alive"]
    assert deaths == MOST_ATTEMPTS
    assert "its process has ended each time" in caplog.text


async def test_an_album_that_ended_while_no_process_ran_waits_for_its_other_messages(
    storage: Storage, clock: Clock
) -> None:
    chat = Chat(make_router(storage))
    await send(chat, "1", "a", "b")
    clock.advance(600)
    sent: list[str] = []
    router = make_router(storage)
    fsm = router.fsm
    assert fsm is not None
    fsm.send = lambda call: sent.append(call["text"])
    async with fsm:
        await fsm.tick()
        assert sent == []
        await router.handle(
            {
                "update_id": 10**12,
                "message": {**chat.updates[-1]["message"], "message_id": 99, "caption": "c"},
            }
        )
        clock.advance(CLOSED)
        await until(lambda: sent, lambda it: it == ["Album: a b c"])
