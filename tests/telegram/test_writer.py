"""A text is shown in a chat while it is written, at the pace of Telegram, and completed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from stepwell.telegram import BotClient, Sender, Writer
from tests.telegram.documented_api import DocumentedAPI
from tests.telegram.virtual_time import VirtualTimeLoop

USER, GROUP, TOKEN = 42, -1001234567890, "42:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
WORDS = [f"word{number} " for number in range(200)]
TEXT = "".join(WORDS).rstrip()

Scene = Callable[[DocumentedAPI, BotClient], Awaitable[None]]


def play(scene: Scene) -> DocumentedAPI:
    """Run a scene with a server and a client in virtual time."""

    async def run() -> DocumentedAPI:
        async with DocumentedAPI().serving() as api, BotClient(TOKEN, api=api.url) as client:
            await scene(api, client)
        return api

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())


async def stream(writer: Writer) -> float:
    """Write 200 words in 20 seconds, and return the most seconds that a write has taken."""
    now, slowest = asyncio.get_running_loop().time, 0.0
    for word in WORDS:
        began = now()
        writer.write(word)
        slowest = max(slowest, now() - began)
        await asyncio.sleep(0.1)
    return slowest


async def complete(client: BotClient, writer: Writer, **params: Any) -> list[dict[str, Any]]:
    calls = await writer.finish(**params)
    await Sender(client).send_all(calls)
    return calls


@pytest.mark.parametrize("wait", [0, 10])
def test_a_stream_in_a_private_chat_is_drafts_twice_a_second_and_one_message(wait: int) -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        if wait:
            api.ask_to_wait(USER, wait, after=10)
        async with Writer(client.try_call, USER, draft_id=7, can_stop=True) as writer:
            await asyncio.sleep(0.6)
            assert await stream(writer) == 0
            assert api.drafts[USER]["text"].startswith("word0 word1")
        calls = await complete(client, writer)
        assert [each["method"] for each in calls] == ["sendMessage"]

    api = play(scene)
    assert api.texts(USER) == [TEXT]
    drafts = api.times("sendMessageDraft")
    assert {method for _, method, *_ in api.requests} == {"sendMessageDraft", "sendMessage"}
    assert len(api.times("sendMessage")) == 1
    flags = {"draft_id": 7, "can_stop": True, "keep_on_stop": True}
    assert all(each.items() >= flags.items() for _, name, each, _ in api.requests if name != "sendMessage")
    # Telegram shows "Thinking...".
    assert api.requests[0][2]["text"] == ""
    pauses = [later - earlier for earlier, later in pairwise(drafts)]
    if wait:
        assert len(api.times("sendMessageDraft", 429)) == 1
        assert sum(pause > 9 for pause in pauses) == 1 and len(drafts) >= 18
    else:
        assert api.statuses() == {200}
        assert 38 <= len(drafts) <= 42 and max(pauses) < 0.7


@pytest.mark.parametrize("wait", [0, 10])
def test_a_stream_in_a_group_edits_one_message_within_the_limits_of_the_group(wait: int) -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        if wait:
            api.ask_to_wait(GROUP, wait, after=4)
        ids: list[int | None] = []
        async with Writer(client.try_call, GROUP, thread=5, on_message_id=ids.append) as writer:
            assert await stream(writer) == 0
        calls = await complete(client, writer)
        assert [each["method"] for each in calls] == ["editMessageText"]
        assert ids == [1]

    api = play(scene)
    assert api.texts(GROUP) == [TEXT]
    assert api.requests[0][2]["message_thread_id"] == 5
    assert len(api.times("sendMessage")) == 1
    assert len(api.times("sendMessage", 429) + api.times("editMessageText", 429)) == (1 if wait else 0)
    assert len(api.times("editMessageText")) in ((3, 4) if wait else (6, 7, 8))


def test_streams_of_minutes_leave_room_for_other_messages_of_the_group() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        now = asyncio.get_running_loop().time
        async with Writer(client.try_call, GROUP) as writer, Writer(client.try_call, GROUP, thread=5) as other:
            for minute in range(2):
                for _ in range(600):
                    writer.write("a ")
                    other.write("b ")
                    await asyncio.sleep(0.1)
                began = now()
                await client.call("sendMessage", chat_id=GROUP, text=f"minute {minute}")
                assert now() - began < 1
        await complete(client, writer)
        await complete(client, other)

    api = play(scene)
    assert api.statuses() == {200}
    assert sorted(api.texts(GROUP))[:2] == [("a " * 1200).rstrip(), ("b " * 1200).rstrip()]
    assert len(api.times("editMessageText")) > 26


def test_a_stream_in_a_chat_of_a_business_connection_edits_one_message_each_second() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        async with Writer(client.try_call, USER, params={"business_connection_id": "b"}) as writer:
            await stream(writer)
        await complete(client, writer)

    api = play(scene)
    assert api.texts(USER) == [TEXT]
    assert {each["business_connection_id"] for _, _, each, _ in api.requests} == {"b"}
    edits = api.times("editMessageText")
    assert 17 <= len(edits) <= 21 and len(api.times("sendMessage")) == 1


def test_after_a_crash_the_same_message_is_completed() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        stored: list[int | None] = []
        killed = Writer(client.try_call, GROUP, on_message_id=stored.append)
        task = asyncio.create_task(stream(killed))
        await asyncio.sleep(12)
        task.cancel()
        await killed.close()
        assert api.texts(GROUP)[0] != TEXT
        async with Writer(client.try_call, GROUP, message_id=stored[-1]) as writer:
            await stream(writer)
        await complete(client, writer)

    assert play(scene).texts(GROUP) == [TEXT]


def test_a_text_that_ends_within_a_second_is_one_message_without_an_edit() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        async with Writer(client.try_call, GROUP) as writer:
            writer.write("Hello")
        assert [each["method"] for each in await complete(client, writer)] == ["sendMessage"]

    assert [method for _, method, *_ in play(scene).requests] == ["sendMessage"]


def test_a_call_under_way_is_not_overtaken_by_the_last_one() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        held = asyncio.Event()

        async def slow(method: str, /, **params: Any) -> Any:
            await held.wait()
            return await client.try_call(method, **params)

        writer = Writer(slow, GROUP)
        writer.write("Hello")
        await asyncio.sleep(2)
        finishing = asyncio.create_task(writer.finish())
        await asyncio.sleep(5)
        assert not finishing.done()
        held.set()
        assert (await finishing)[0]["message_id"] == 1

    play(scene)


def test_a_draft_is_sent_again_before_telegram_removes_it() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        async with Writer(client.try_call, USER):
            await asyncio.sleep(65)

    drafts = play(scene).times("sendMessageDraft")
    assert len(drafts) == 4 and max(later - earlier for earlier, later in pairwise(drafts)) < 30


def test_a_long_text_shows_its_end_in_a_draft_and_its_beginning_in_a_message() -> None:
    words = "".join(f"word{number:04} " for number in range(1000))

    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        for chat in (USER, GROUP):
            async with Writer(client.try_call, chat) as writer:
                writer.write(words)
                await asyncio.sleep(3)
            if chat == USER:
                assert api.drafts[USER]["text"].endswith("word0999")
            else:
                assert api.texts(GROUP)[0].startswith("word0000") and api.texts(GROUP)[0].endswith("…")
            calls = await complete(client, writer, reply_markup={"inline_keyboard": []})
            assert len(calls) == 3
            assert ["reply_markup" in each for each in calls] == [False, False, True]

    api = play(scene)
    for chat in (USER, GROUP):
        assert " ".join(api.texts(chat)) == words.rstrip()
    assert api.statuses() == {200}


def test_flush_completes_the_text_before_another_message() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        for chat in (USER, GROUP):
            ids: list[int | None] = []
            writer = Writer(client.try_call, chat, draft_id=7, on_message_id=ids.append)
            writer.write("One moment.")
            await asyncio.sleep(2)
            await writer.flush()
            await client.call("sendMessage", chat_id=chat, text="Delete 3 files?")
            writer.write("Done.")
            await asyncio.sleep(2)
            await complete(client, writer)
            assert ids[-2:] == ([] if chat == USER else [None, ids[-1]])

    api = play(scene)
    for chat in (USER, GROUP):
        assert api.texts(chat) == ["One moment.", "Delete 3 files?", "Done."]
    assert {each["draft_id"] for _, name, each, _ in api.requests if name == "sendMessageDraft"} == {7, 8}


def test_a_message_that_a_user_has_deleted_is_sent_again() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        ids: list[int | None] = []
        async with Writer(client.try_call, GROUP, on_message_id=ids.append) as writer:
            writer.write("one ")
            await asyncio.sleep(2)
            api.messages.clear()
            writer.write("two")
            await asyncio.sleep(9)
        await complete(client, writer)
        assert ids == [1, 2]

    assert play(scene).texts(GROUP) == ["one two"]


def test_the_text_is_complete_where_telegram_refuses_drafts() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        async with Writer(client.try_call, GROUP, kind="private") as writer:
            await stream(writer)
        await complete(client, writer)

    api = play(scene)
    assert api.texts(GROUP) == [TEXT]
    assert len(api.times("sendMessageDraft", 400)) == 1


def test_markup_that_is_not_closed_yet_is_shown_as_text() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        async with Writer(client.try_call, USER, params={"parse_mode": "HTML"}) as writer:
            writer.write("Hello <b>wor")
            await asyncio.sleep(1)
            assert api.drafts[USER]["text"] == "Hello <b>wor"
            writer.write("ld</b>")
            await asyncio.sleep(1)
            assert api.drafts[USER]["text"] == "Hello world"
            assert api.drafts[USER]["entities"] == [{"type": "bold", "offset": 6, "length": 5}]
        await complete(client, writer)

    api = play(scene)
    assert api.requests[-1][2]["parse_mode"] == "HTML"


def test_an_error_of_on_message_id_reaches_the_one_who_finishes() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        def refuse(message_id: int | None) -> None:
            raise LookupError("no record")

        writer = Writer(client.try_call, GROUP, on_message_id=refuse)
        writer.write("Hello")
        await asyncio.sleep(2)
        with pytest.raises(LookupError):
            await writer.finish()

    play(scene)


def test_a_block_that_raises_completes_nothing() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        with contextlib.suppress(LookupError):
            async with Writer(client.try_call, GROUP) as writer:
                writer.write("Hello")
                raise LookupError
        assert not writer._task or writer._task.done()

    assert play(scene).requests == []
