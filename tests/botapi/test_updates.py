"""Updates: polling, offsets, allowed kinds, repeated deliveries."""

from __future__ import annotations

import asyncio

from stepwell.botapi import Bot, BotAPI, Person
from tests.botapi.conftest import Client


async def test_an_update_is_returned_until_it_is_confirmed(call: Client, chat: Person) -> None:
    await chat.send("/start now")
    (update,) = await call("getUpdates")
    message = update["message"]
    assert message["text"] == "/start now"
    assert message["entities"] == [{"type": "bot_command", "offset": 0, "length": 6}]
    assert message["chat"] == {"id": 42, "first_name": "Alice", "type": "private"}
    assert message["from"]["first_name"] == "Alice"
    assert await call("getUpdates") == [update]
    assert await call("getUpdates", offset=update["update_id"] + 1) == []
    assert await call("getUpdates") == []


async def test_a_negative_offset_keeps_only_the_last_updates(call: Client, chat: Person) -> None:
    await chat.send_at_once("a", "b", "c")
    assert [each["message"]["text"] for each in await call("getUpdates", offset=-1)] == ["c"]
    assert len(await call("getUpdates")) == 1


async def test_get_updates_returns_at_most_its_limit(call: Client, chat: Person) -> None:
    await chat.send_at_once(*map(str, range(7)))
    assert [each["message"]["text"] for each in await call("getUpdates", limit=3)] == ["0", "1", "2"]


async def test_a_long_poll_waits_for_the_next_update(call: Client, chat: Person) -> None:
    poll = asyncio.create_task(call("getUpdates", timeout=20))
    await asyncio.sleep(0.1)
    assert not poll.done()
    await chat.send("hello")
    assert (await poll)[0]["message"]["text"] == "hello"


async def test_a_second_poller_ends_the_first_with_409(call: Client, chat: Person) -> None:
    first = asyncio.create_task(call("getUpdates", timeout=20))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(call("getUpdates", timeout=20))
    code, why = await first
    assert code == 409
    assert "make sure that only one bot instance is running" in why
    await chat.send("for the second")
    assert len(await second) == 1


async def test_only_allowed_updates_are_delivered(call: Client, chat: Person) -> None:
    await call("getUpdates", allowed_updates=["callback_query"])
    await chat.send("unheard")
    assert await call("getUpdates") == []
    await call("getUpdates", allowed_updates=[])
    await chat.send("heard")
    assert len(await call("getUpdates")) == 1


async def test_update_ids_grow_after_a_restart_of_the_world(bot: Bot, chat: Person) -> None:
    await chat.send("before")
    later = BotAPI(clock=lambda: chat.world.clock() + 1)
    after = later.chat(later.bot("my_bot"))
    await after.send("after")
    assert after.updates[0]["update_id"] > chat.updates[-1]["update_id"]


async def test_a_confirmed_update_can_be_redelivered(call: Client, chat: Person) -> None:
    await chat.send("once")
    (update,) = await call("getUpdates")
    assert await call("getUpdates", offset=update["update_id"] + 1) == []
    await chat.redeliver()
    assert await call("getUpdates", offset=update["update_id"] + 1) == [update]
    assert await call("getUpdates", offset=update["update_id"] + 1) == []
