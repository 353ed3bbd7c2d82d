"""A bot that runs against a ``RawTelegram``, by polling or by webhook."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from stepwell import MemoryStorage, Storage
from stepwell.fsm import FSM, Context, Router
from stepwell.telegram import run_polling, webhook
from stepwell.telegram.receiving.webhook import Webhook
from tests.reliability.raw_telegram import RawTelegram, RawUpdate
from tests.until import until

SECRET = "s3cret"


class PoisonedBot(ABC):
    """A bot that answers each message with ``got <text>``."""

    def __init__(self, telegram: RawTelegram, storage: Storage) -> None:
        self.telegram = telegram
        self.storage = storage
        #: Calls that were refused for good.
        self.refused: list[Any] = []
        self.ended = False
        self.router = Router(FSM("my_bot", storage=storage, flows=[]))

        @self.router.on()
        async def echo(ctx: Context) -> None:
            ctx.answer(f"got {ctx.text}")

    @abstractmethod
    async def deliver(self, update: RawUpdate) -> None: ...

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(lambda: condition() or self.ended)


class PollingBot(PoisonedBot):
    async def deliver(self, update: RawUpdate) -> None:
        self.telegram.put(update)


class WebhookBot(PoisonedBot):
    app: Webhook

    async def deliver(self, update: RawUpdate) -> None:
        """Deliver as Telegram does: again and again until the response is 200."""
        await until(lambda: self.app.handle(SECRET, update.raw), lambda it: it == 200)


Runner: TypeAlias = Callable[..., AbstractAsyncContextManager[PoisonedBot]]


@asynccontextmanager
async def by_polling(storage: Storage | None = None) -> AsyncIterator[PoisonedBot]:
    async with RawTelegram() as telegram:
        bot = PollingBot(telegram, storage or MemoryStorage())
        started = asyncio.Event()
        options: dict[str, Any] = {
            "on_send_error": lambda call, error: bot.refused.append(error),
            "on_start": lambda me: started.set(),
        }
        running = asyncio.create_task(run_polling(bot.router, "1:x", api=telegram.url, limits=None, **options))
        running.add_done_callback(lambda task: setattr(bot, "ended", True))
        try:
            await bot.until(started.is_set)
            yield bot
            assert not running.done(), running
        finally:
            running.cancel()
            await asyncio.wait((running,))


@asynccontextmanager
async def by_webhook(storage: Storage | None = None) -> AsyncIterator[PoisonedBot]:
    async with RawTelegram() as telegram:
        bot = WebhookBot(telegram, storage or MemoryStorage())
        options: dict[str, Any] = {"on_send_error": lambda call, error: bot.refused.append(error)}
        bot.app = webhook(bot.router, secret_token=SECRET, token="1:x", api=telegram.url, limits=None, **options)
        async with bot.app:
            yield bot
