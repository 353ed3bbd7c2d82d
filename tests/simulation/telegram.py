"""Telegram in a simulated world: that of the local Bot API, behind a network that delays, loses and refuses calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from stepwell.botapi.errors import Refusal
from stepwell.botapi.http.forms import read_body
from stepwell.botapi.http.webhook import Webhooks
from stepwell.botapi.methods import perform
from stepwell.botapi.person import Person
from stepwell.botapi.world import Bot
from stepwell.botapi.world import World as TelegramWorld
from stepwell.telegram import BotClient
from stepwell.telegram.calls.connections import NoAnswer, Response
from stepwell.testing.simulated_loop import SimulatedProcess, current_process
from tests.simulation.faults import TELEGRAM_FAULTS
from tests.simulation.world import World

__all__ = ["Telegram"]

#: Seconds that a call or its result takes.
DELAY = 0.05


class Telegram:
    """The servers of Telegram, and the bot of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.telegram = TelegramWorld(clock=world.store.time)
        self.webhooks = Webhooks(self.telegram, self._no_webhook)
        self.bot: Bot = self.telegram.bot("my_bot")
        #: The servers, whose calls outlive the processes that make them.
        self.servers = world.simulation.process("Telegram")

    def client(self) -> BotClient:
        """Return the client of a process."""
        return _Client(self)

    def person(self, number: int) -> Person:
        self.telegram.user(number, first_name=f"Person{number}")
        return Person(self.telegram, self.bot, number)

    def close(self) -> None:
        self.servers.kill()

    async def _no_webhook(self, *_: Any) -> NoReturn:
        raise AssertionError("there are no webhooks here")

    async def post(self, target: bytes, body: bytes, timeout: float) -> Response:
        """Make a call over the network. Raises ``NoAnswer``."""
        loop, random = asyncio.get_running_loop(), self.world.simulation.random
        method = target.decode().rpartition("/")[2]
        process = current_process.get()
        fault = None if method == "getUpdates" else self.world.fault_at("telegram")
        assert fault is None or fault in TELEGRAM_FAULTS
        if fault is not None:
            self.world.simulation.note("Telegram", f"{fault}: {method} of {process and process.name}")
        await asyncio.sleep(random.random() * DELAY)
        if fault == "lost call":
            raise NoAnswer("the connection was closed")
        if fault == "429":
            wait = random.choice([1, 3])
            refusal = Refusal(429, f"Too Many Requests: retry after {wait}", retry_after=wait)
            return Response(429, str(wait), json.dumps(refusal.json()).encode())
        if fault == "500":
            return Response(502, "", b"<html>Bad Gateway</html>")
        answer: asyncio.Future[Response] = loop.create_future()
        # The call is performed whatever becomes of the process.
        self.servers.start(self._perform(method, body, answer, process), name=f"Telegram {method}")
        if fault == "slow":
            await asyncio.sleep(random.random() * 5)
        try:
            async with asyncio.timeout(timeout):
                if fault == "silent":
                    await asyncio.sleep(timeout)
                response = await answer
        except TimeoutError:
            raise NoAnswer(f"no response within {timeout:g} s") from None
        await asyncio.sleep(random.random() * DELAY)
        if fault == "lost result":
            raise NoAnswer("the connection was closed")
        return response

    async def _perform(
        self, method: str, body: bytes, answer: asyncio.Future[Response], process: SimulatedProcess | None
    ) -> None:
        try:
            params = read_body("application/json", body)
            result = await perform(self.telegram, self.webhooks, self.bot, method, params)
            response = Response(200, "", json.dumps({"ok": True, "result": result}).encode())
            if method.startswith(("send", "edit")) and process is not None:
                text = str(params.given.get("text", ""))
                self.world.simulation.note(process.name, f"{method}: {text}", to=f"chat {params.given.get('chat_id')}")
        except Refusal as refusal:
            response = Response(refusal.code, "", json.dumps(refusal.json()).encode())
        if not answer.done():
            answer.set_result(response)


class _Client(BotClient):
    """The client of the library, with the network of the world in place of sockets."""

    def __init__(self, telegram: Telegram) -> None:
        # Its limits are those of real time, and virtual time has no reason to be short.
        super().__init__(telegram.bot.token, api="http://telegram.invalid", patience=120.0)
        self._telegram = telegram

    def _open(self) -> Any:
        link = super()._open()
        link._fast = _Connections(self._telegram)
        return link


class _Connections:
    def __init__(self, telegram: Telegram) -> None:
        self.post = telegram.post

    async def close(self) -> None:
        pass
