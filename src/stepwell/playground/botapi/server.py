"""The server: a world, its webhooks and its HTTP side, from ``async with`` to its end."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from stepwell.errors import UsageError
from stepwell.extras import require
from stepwell.playground.botapi.app import make_app
from stepwell.playground.botapi.methods import perform
from stepwell.playground.botapi.params import Params
from stepwell.playground.botapi.person import Person
from stepwell.playground.botapi.webhook import Webhooks
from stepwell.playground.botapi.world import Bot, World

_uvicorn: Any = require("uvicorn", "playground")

__all__ = ["BotAPI"]


class BotAPI:
    """A local Bot API::

        async with BotAPI() as api:
            bot = api.bot("my_bot")
            # aiogram: TelegramAPIServer.from_base(api.url); python-telegram-bot: base_url(f"{api.url}/bot")
            chat = api.chat(bot)
            await chat.send("/register")
            assert await chat.answer() == "What's your name?"

    It listens on loopback, on a free port unless one is given, and delivers webhooks to this machine only;
    ``outside=True`` lets them go anywhere. All of it lives on the event loop that started it.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        hosts: tuple[str, ...] = (),
        outside: bool = False,
        webhook_pause: float = 0.5,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.world = world or World(clock=clock)
        self.host = host
        self.port = port
        #: Further names that the server answers to, as they stand in the Host header.
        self.hosts = hosts
        self.webhooks = Webhooks(self.world, self._perform, outside=outside, pause=webhook_pause)
        #: The ASGI application, for whoever serves it elsewhere.
        self.app = make_app(self.world, self.webhooks, self._hosts)
        self._server: Any = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The address, without the ``/bot<token>`` that frameworks add."""
        if not self.port:
            raise UsageError("the server has no address before it runs; use it inside 'async with'")
        return f"http://{self._netloc(self.host)}"

    def bot(self, name: str, *, token: str | None = None, **fields: Any) -> Bot:
        """Register a bot; ``bot.token`` is what it logs in with."""
        return self.world.bot(name, token=token, **fields)

    def chat(self, bot: Bot, user: int = 42, **fields: Any) -> Person:
        """A person in a private chat with a bot."""
        self.world.user(user, **fields)
        return Person(self.world, bot, user)

    async def __aenter__(self) -> Self:
        listening = socket.create_server(
            (self.host, self.port), family=socket.AF_INET6 if ":" in self.host else socket.AF_INET
        )
        self.port = listening.getsockname()[1]
        # No access log: every line of it would hold a token.
        config = _uvicorn.Config(self.app, log_config=None, access_log=False, lifespan="off", ws="none")
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]), name="bot-api")
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.005)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.webhooks.close()
        for bot in self.world.bots.values():
            bot.updates.stop()
        assert self._serving is not None
        self._server.should_exit = True
        # A client that keeps its connection open must not keep us.
        self._server.force_exit = True
        await self._serving

    def _netloc(self, host: str) -> str:
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def _hosts(self) -> set[str]:
        return {self._netloc(self.host), f"127.0.0.1:{self.port}", f"localhost:{self.port}", *self.hosts}

    async def _perform(self, bot: Bot, method: str, params: Params) -> Any:
        return await perform(self.world, self.webhooks, bot, method, params)


class _Server(_uvicorn.Server):  # type: ignore[misc]
    """Signals are for the program that we are a part of."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
