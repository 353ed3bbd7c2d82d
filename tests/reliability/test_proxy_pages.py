"""HTML from a proxy in front of Telegram is no answer of Telegram."""

from __future__ import annotations

import asyncio

import pytest

from stepwell import MemoryStorage
from stepwell.fsm import FSM, Router
from stepwell.telegram import BotClient, BotUnavailable, broadcast, run_polling
from tests.reliability.dose import dose
from tests.reliability.poisoned import Runner, by_polling, by_webhook
from tests.reliability.raw_telegram import PAGES, RawTelegram, message
from tests.until import until


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("runner", [by_polling, by_webhook], ids=["polling", "webhook"])
async def test_pages_of_a_proxy_lose_no_answer_and_do_not_end_the_bot(runner: Runner, page: str) -> None:
    rounds = dose("PROXY_ROUNDS", 1, 50)
    async with runner() as bot:
        expected: dict[int, list[str]] = {1: [], 2: [], 3: []}
        number = 100
        for _ in range(rounds):
            bot.telegram.block(PAGES[page], 2, "sendMessage", "getUpdates")
            for chat, texts in expected.items():
                number += 1
                await bot.deliver(message(number, chat, str(number)))
                texts.append(f"got {number}")
            await bot.until(lambda: bot.telegram.sent == expected)
        assert bot.telegram.sent == expected
        assert not bot.ended
        assert bot.refused == []
        assert bot.telegram.given >= 2 * rounds
    print(f"{bot.telegram.given} pages, {3 * rounds} answers")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("runner", [by_polling, by_webhook], ids=["polling", "webhook"])
async def test_pages_of_a_proxy_lose_no_answer_of_a_job(runner: Runner, page: str) -> None:
    rounds = dose("PROXY_ROUNDS", 1, 50)
    async with runner() as bot:
        assert bot.router.fsm is not None
        for number in range(rounds):
            bot.telegram.block(PAGES[page], 2, "sendMessage")
            async with bot.router.fsm.conversation(key=(1, 1)) as ctx:
                ctx.answer(f"job {number}")
            await bot.until(lambda: len(bot.telegram.sent.get(1, ())) > number)
        assert bot.telegram.sent == {1: [f"job {number}" for number in range(rounds)]}
        assert not bot.ended
        assert bot.refused == []
    print(f"{bot.telegram.given} pages, {rounds} answers")


@pytest.mark.parametrize("page", PAGES)
async def test_a_bot_starts_when_a_proxy_that_has_answered_for_longer_than_its_patience_lets_it(page: str) -> None:
    async with RawTelegram() as telegram, BotClient("1:x", api=telegram.url, patience=0.2) as client:
        router = Router(FSM("my_bot", storage="memory://", flows=[]))
        telegram.block(PAGES[page], 1000, "getMe")
        with pytest.raises(BotUnavailable):
            await run_polling(router, client=client, wait_for_storage=False)
        started = asyncio.Event()
        running = asyncio.create_task(run_polling(router, client=client, on_start=lambda me: started.set()))
        before = telegram.given
        await until(lambda: telegram.given >= before + 5)
        telegram.pages.clear()
        async with asyncio.timeout(20):
            await started.wait()
        running.cancel()
        await asyncio.wait((running,))


@pytest.mark.parametrize("page", PAGES)
async def test_pages_of_a_proxy_block_no_chat_in_a_broadcast(page: str) -> None:
    chats = list(range(1, dose("PROXY_CHATS", 20, 2000) + 1))
    async with RawTelegram() as telegram, MemoryStorage() as storage:
        telegram.block(PAGES[page], 15, "sendMessage")
        async with BotClient("1:x", api=telegram.url, limits=None) as client:
            result = await broadcast(client, chats, "Hello", storage=storage, flow_id="news")
        assert (result.sent, result.blocked, result.failed) == (len(chats), 0, 0)
        assert telegram.sent == {chat: ["Hello"] for chat in chats}
        assert telegram.given == 15
    print(f"{telegram.given} pages, {len(chats)} chats")


async def test_a_call_that_gets_only_pages_while_others_are_accepted_is_not_refused() -> None:
    async with RawTelegram() as telegram:
        telegram.block(PAGES["502"], 100, "sendPhoto")
        async with BotClient("1:x", api=telegram.url, limits=None, patience=0.5) as client:
            photo = asyncio.create_task(client.call("sendPhoto", chat_id=1, photo="x"))
            await until(lambda: telegram.given)
            await client.call("sendMessage", chat_id=2, text="Hello")
            with pytest.raises(BotUnavailable):
                await photo
