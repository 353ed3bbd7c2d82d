"""Broadcasts to many chats against the local Bot API."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stepwell import SQLiteStorage, Storage
from stepwell.botapi import Bot, BotAPI
from stepwell.errors import InvalidOption, RecordReplaced, UsageError
from stepwell.nodes import Node, NodeFlow
from stepwell.telegram import (
    BotApiError,
    BotClient,
    BotUnavailable,
    BroadcastResult,
    SendLimits,
    broadcast,
    cancel_broadcast,
)

CHATS = list(range(1, 301))
CONCURRENCY = 10
#: Results that are committed together, and the calls under way.
REPEATED = 25 + CONCURRENCY


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with SQLiteStorage(tmp_path / "bot.db") as storage:
        yield storage


@pytest.fixture
async def unlimited(api: BotAPI, bot: Bot) -> AsyncIterator[BotClient]:
    for chat in CHATS:
        api.chat(bot, chat)
    async with BotClient(bot.token, api=api.url, limits=None, patience=0.5) as client:
        yield client


def received(api: BotAPI, bot: Bot) -> dict[int, list[str]]:
    """Return the texts that each chat got."""
    return {chat: [str(each["text"]) for each in api.world.private(bot, chat).messages.values()] for chat in CHATS}


async def cancelled_after(messages: int, client: BotClient, storage: Storage, text: str = "Hello") -> None:
    """Start a broadcast, and cancel it when so many chats are finished."""

    def on_progress(done: int, total: int) -> None:
        if done == messages:
            running.cancel()

    running = asyncio.create_task(
        broadcast(client, CHATS, text, storage=storage, flow_id="news", on_progress=on_progress)
    )
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_every_chat_gets_the_message_and_refusals_are_reported(
    api: BotAPI, bot: Bot, unlimited: BotClient, storage: Storage
) -> None:
    for chat in (7, 8, 9):
        await api.chat(bot, chat).block()
    bot.refuse(400, "Bad Request: not enough rights", chat=20)
    progress: list[tuple[int, int]] = []

    result = await broadcast(
        unlimited,
        [*CHATS, 999_999, 5],
        "Hello",
        storage=storage,
        flow_id="news",
        on_progress=lambda done, total: progress.append((done, total)),
    )

    assert result == BroadcastResult(
        sent=296,
        blocked=3,
        failed=2,
        blocked_chats=(7, 8, 9),
        errors={20: "Bad Request: not enough rights", 999_999: "Bad Request: chat not found"},
    )
    assert progress == [(done, 301) for done in range(1, 302)]
    texts = received(api, bot)
    assert [chat for chat in CHATS if texts[chat] != ["Hello"]] == [7, 8, 9, 20]


async def test_a_call_or_a_function_of_the_chat_makes_the_message(
    api: BotAPI, bot: Bot, unlimited: BotClient, storage: Storage
) -> None:
    call = {"method": "sendMessage", "text": "*Hello*", "parse_mode": "Markdown"}
    await broadcast(unlimited, [1, 2], call, storage=storage, flow_id="call")

    async def message(chat: int | str) -> str:
        return f"Hello, {chat}"

    await broadcast(unlimited, [1, 2], message, storage=storage, flow_id="async")
    await broadcast(unlimited, [1, 2], lambda chat: {**call, "text": str(chat)}, storage=storage, flow_id="def")
    texts = received(api, bot)
    assert [text.strip("*") for text in texts[2]] == ["Hello", "Hello, 2", "2"]


async def test_a_cancelled_broadcast_is_resumed_without_repeating_more_than_the_last_few(
    api: BotAPI, bot: Bot, unlimited: BotClient, storage: Storage
) -> None:
    await api.chat(bot, 3).block()
    await cancelled_after(100, unlimited, storage)
    before = sum(map(len, received(api, bot).values()))
    assert 99 <= before < 150

    result = await broadcast(unlimited, reversed(CHATS), "Hello", storage=storage, flow_id="news")

    assert (result.sent, result.blocked_chats) == (299, (3,))
    texts = received(api, bot)
    assert [chat for chat in CHATS if not texts[chat]] == [3]
    assert sum(map(len, texts.values())) - 299 <= REPEATED
    # A finished broadcast is not sent again.
    assert await broadcast(unlimited, CHATS, "Hello", storage=storage, flow_id="news") == result
    assert await broadcast(unlimited, None, "Hello", storage=storage, flow_id="news") == result
    assert received(api, bot) == texts


async def test_the_stored_list_of_chats_can_be_used_to_resume(
    api: BotAPI, bot: Bot, unlimited: BotClient, storage: Storage
) -> None:
    with pytest.raises(UsageError, match="there is no broadcast 'news' in this storage; give its chats"):
        await broadcast(unlimited, None, "Hello", storage=storage, flow_id="news")
    await cancelled_after(10, unlimited, storage)
    assert (await broadcast(unlimited, None, "Hello", storage=storage, flow_id="news")).sent == 300
    assert all(received(api, bot).values())


async def test_another_list_or_another_message_is_refused(
    api: BotAPI, bot: Bot, unlimited: BotClient, storage: Storage
) -> None:
    await cancelled_after(10, unlimited, storage)
    before = received(api, bot)
    with pytest.raises(UsageError, match=r"'news' was started with another list of chats; chats=None resumes it"):
        await broadcast(unlimited, CHATS[1:], "Hello", storage=storage, flow_id="news")
    with pytest.raises(UsageError, match=r"'news' was started with another message\. Give a new broadcast another"):
        await broadcast(unlimited, CHATS, "Bye", storage=storage, flow_id="news")
    assert received(api, bot) == before
    assert (await broadcast(unlimited, CHATS, "Hello", storage=storage, flow_id="news")).sent == 300
    with pytest.raises(UsageError, match="another list of chats"):
        await broadcast(unlimited, [1], "Hello", storage=storage, flow_id="news")


async def test_an_id_of_another_run_is_refused(unlimited: BotClient, storage: Storage) -> None:
    await NodeFlow(Node(name="other"), name="other").run({}, storage=storage, flow_id="other", keep=True)
    with pytest.raises(UsageError, match="run 'other' is not a broadcast"):
        await broadcast(unlimited, [1], "Hello", storage=storage, flow_id="other")


async def test_a_removed_broadcast_stops_and_begins_again(
    api: BotAPI, bot: Bot, unlimited: BotClient, storage: Storage
) -> None:
    removal: list[asyncio.Task[None]] = []

    def on_progress(done: int, total: int) -> None:
        if done == 50:
            removal.append(asyncio.ensure_future(cancel_broadcast("news", storage=storage)))

    with pytest.raises(RecordReplaced, match="run 'news' was removed"):
        await broadcast(unlimited, CHATS, "Hello", storage=storage, flow_id="news", on_progress=on_progress)
    await removal[0]
    assert sum(map(len, received(api, bot).values())) < 300
    assert (await broadcast(unlimited, [1], "Bye", storage=storage, flow_id="news")).sent == 1
    await cancel_broadcast("never started", storage=storage)


async def test_a_storage_may_be_given_as_a_url(api: BotAPI, bot: Bot, unlimited: BotClient, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    assert (await broadcast(unlimited, [1, 2], "Hello", storage=url, flow_id="news")).sent == 2
    await cancel_broadcast("news", storage=url)
    assert (await broadcast(unlimited, [1], "Bye", storage=url, flow_id="news")).sent == 1


async def test_an_outage_and_an_invalid_token_leave_a_run_that_can_be_resumed(
    api: BotAPI, bot: Bot, unlimited: BotClient, storage: Storage
) -> None:
    bot.refuse(502, "Bad Gateway", times=1000)
    with pytest.raises(BotUnavailable):
        await broadcast(unlimited, CHATS, "Hello", storage=storage, flow_id="news")
    bot.failures.clear()
    bot.refuse(401, "Unauthorized", times=CONCURRENCY)
    with pytest.raises(BotApiError, match="the token is not valid"):
        await broadcast(unlimited, CHATS, "Hello", storage=storage, flow_id="news")
    bot.failures.clear()
    assert (await broadcast(unlimited, CHATS, "Hello", storage=storage, flow_id="news")).sent == 300
    assert Counter(map(len, received(api, bot).values())) == {1: 300}


async def test_answers_of_the_bot_do_not_wait_for_the_whole_broadcast(
    api: BotAPI, bot: Bot, unlimited: BotClient, storage: Storage
) -> None:
    async with BotClient(bot.token, api=api.url, limits=SendLimits(per_second=100)) as client:
        answered = asyncio.get_running_loop().create_future()

        def on_progress(done: int, total: int) -> None:
            if done == 20:
                answer = asyncio.ensure_future(client.call("sendMessage", chat_id=1, text="answer"))
                answer.add_done_callback(lambda _: answered.set_result(counted()))

        def counted() -> int:
            return sum(map(len, received(api, bot).values()))

        await broadcast(client, CHATS, "Hello", storage=storage, flow_id="news", on_progress=on_progress)
        # The calls that waited before it, and those that were sent while its own answer was under way.
        assert await answered <= 20 + 5 * CONCURRENCY


@pytest.mark.parametrize(
    ("chats", "content", "words"),
    [
        ("@news", "Hello", "takes a list of chats"),
        ([True], "Hello", "True is not a chat"),
        ([1], "", "a broadcast takes a text"),
        ([1], {"text": "Hello"}, "a broadcast takes a text"),
        ([1], lambda chat: None, "a broadcast takes a text"),
    ],
)
async def test_wrong_arguments_are_named(
    unlimited: BotClient, storage: Storage, chats: list[int], content: str, words: str
) -> None:
    with pytest.raises(InvalidOption, match=words):
        await broadcast(unlimited, chats, content, storage=storage, flow_id="news")


@pytest.mark.parametrize("flow_id", [None, "", 7])
async def test_a_broadcast_without_an_id_is_refused(
    client: BotClient, bot: Bot, storage: Storage, flow_id: Any
) -> None:
    with pytest.raises(InvalidOption, match=r"broadcast\(flow_id=\.\.\.\) takes the id of the broadcast"):
        await broadcast(client, [42], "Hello", storage=storage, flow_id=flow_id)
    assert not bot.calls
