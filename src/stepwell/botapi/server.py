"""The local Bot API server."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from stepwell.botapi.errors import NotPossible
from stepwell.botapi.http.app import make_app
from stepwell.botapi.http.serving import HTTPServer, allowed_hosts, netloc
from stepwell.botapi.http.webhook import Webhooks
from stepwell.botapi.limits import FloodLimits
from stepwell.botapi.methods import perform
from stepwell.botapi.params import Params
from stepwell.botapi.person import Person
from stepwell.botapi.world import Bot, World

__all__ = ["BotAPI"]


class BotAPI:
    """A local Bot API::

        async with BotAPI() as api:
            bot = api.bot("my_bot")
            # aiogram: TelegramAPIServer.from_base(api.url); python-telegram-bot: base_url(f"{api.url}/bot")
            chat = api.chat(bot)
            await chat.send("/register")
            assert await chat.answer() == "What's your name?"

    It listens on loopback, on a free port by default, and delivers webhooks to this machine only unless
    ``outside=True``. It runs on the event loop that started it. ``limits=True`` refuses calls with 429 above
    Telegram's limits of messages per second, ``limits=FloodLimits(...)`` above others.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        hosts: tuple[str, ...] = (),
        outside: bool = False,
        limits: FloodLimits | bool = False,
        webhook_pause: float = 0.5,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.world: World = world or World(clock=clock)
        if limits:
            self.world.limits = FloodLimits() if limits is True else limits
        self.host = host
        self.port: int = port
        #: Further host names that clients may use.
        self.hosts = hosts
        self.webhooks: Webhooks = Webhooks(self.world, self._perform, outside=outside, pause=webhook_pause)
        #: The ASGI application, to serve it elsewhere.
        self.app: Any = make_app(self.world, self.webhooks, self._hosts)
        self._serving = HTTPServer(self.app, name="bot-api")

    @property
    def url(self) -> str:
        """The address, without the ``/bot<token>`` that frameworks add.

        Raises ``NotPossible`` before the server runs.
        """
        if not self.port:
            raise NotPossible("the server has no address before it runs; use it inside 'async with'")
        return f"http://{netloc(self.host, self.port)}"

    def bot(self, name: str, *, token: str | None = None, **fields: Any) -> Bot:
        """Register a bot, which logs in with ``bot.token``."""
        return self.world.bot(name, token=token, **fields)

    def chat(self, bot: Bot, user: int = 42, **fields: Any) -> Person:
        """Return a user in a private chat with a bot."""
        self.world.user(user, **fields)
        return Person(self.world, bot, user)

    async def __aenter__(self) -> Self:
        self.port = await self._serving.start(self.host, self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.webhooks.close()
        for timer in self.world.timers.values():
            timer.cancel()
        for bot in self.world.bots.values():
            bot.updates.stop()
        await self._serving.stop()

    def _hosts(self) -> frozenset[str]:
        return allowed_hosts(self.host, self.port, self.hosts)

    async def _perform(self, bot: Bot, method: str, params: Params) -> Any:
        return await perform(self.world, self.webhooks, bot, method, params)
