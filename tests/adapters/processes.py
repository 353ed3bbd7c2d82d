"""Bots in separate processes, with polling or a webhook, for tests that kill them.

Importing a framework may take seconds, so it is done once: a nursery process imports everything that workers need, and
forks one for each line that it is given.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from stepwell.botapi import Bot, BotAPI, Person
from stepwell.botapi.http.webhook import WebhookInfo
from tests.servers.process import free_port
from tests.until import until

SECRET = "s3cret"
#: Importing a framework takes long on a busy machine.
PATIENCE = 60.0


class Worker:
    """A bot's process, as its parent sees it. ``module`` has its function ``work``, which gets the rest."""

    def __init__(self, module: str, folder: Path, **about: Any) -> None:
        self.pid = _nursery(module).born({**about, "log": str(folder / "worker.log")})
        self.running = True

    def kill(self) -> None:
        """Kill the process without cleanup."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            self.running = False


class Bots:
    """The workers of one bot, and their Bot API. ``transport``: ``"poll"``, or another word for a webhook."""

    def __init__(self, module: str, api: BotAPI, folder: Path, transport: str) -> None:
        self.module, self.api, self.folder = module, api, folder
        self.bot: Bot = api.bot("registration_bot")
        self.transport = [transport] if transport == "poll" else [transport, str(free_port())]
        self.workers: list[Worker] = []

    def start(self, make: str, storage: str) -> Worker:
        """Start a worker; ``make`` names a function ``module:name`` of a storage's URL."""
        about = {"make": make, "storage": storage, "api": self.api.url, "token": self.bot.token}
        worker = Worker(self.module, self.folder, **about, transport=self.transport)
        self.workers.append(worker)
        return worker

    async def listen(self) -> None:
        """Set the webhook, as a bot's owner does once."""
        if self.transport[0] != "poll":
            url = f"http://127.0.0.1:{self.transport[1]}/hook"
            await self.api.webhooks.set(self.bot, WebhookInfo(url, SECRET, 40))

    def log(self) -> str:
        log = self.folder / "worker.log"
        return log.read_text() if log.exists() else ""

    async def until_listening(self, workers: int) -> None:
        await until(lambda: self.log().count("listening") >= workers)

    async def heard(self, chat: Person) -> str:
        """Return the next answer of the bot."""
        try:
            return await chat.answer(timeout=PATIENCE)
        except TimeoutError:
            raise AssertionError(f"no answer; the worker said:\n{self.log()[-3000:]}") from None

    async def settled(self, patience: float = PATIENCE) -> None:
        """Wait until every update is confirmed, which happens when it was handled."""
        try:
            await until(lambda: not self.bot.updates.pending, patience=patience)
        except TimeoutError:
            webhook = self.api.webhooks.of(self.bot)
            raise AssertionError(
                f"not confirmed: {self.bot.updates.pending}; {webhook}; the worker said:\n{self.log()[-3000:]}"
            ) from None

    def kill(self) -> None:
        """Kill all workers."""
        for worker in self.workers:
            worker.kill()


class _Nursery:
    def __init__(self, module: str) -> None:
        command = [sys.executable, "-W", "error", "-m", module]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def born(self, about: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(about) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate()


_nurseries: dict[str, _Nursery] = {}


def _nursery(module: str) -> _Nursery:
    if module not in _nurseries:
        _nurseries[module] = _Nursery(module)
    return _nurseries[module]


def close_nursery(module: str) -> None:
    """Stop it and all its workers."""
    nursery = _nurseries.pop(module, None)
    if nursery is not None:
        nursery.close()


def be_nursery(work: Callable[..., Awaitable[None]], modules: Sequence[str]) -> None:
    """Import the modules, and fork a worker that runs ``work`` for each line of the input."""
    for name in modules:
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        about = json.loads(line)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        log = os.open(about.pop("log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDWR)
        for old, new in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(old, new)
        asyncio.run(work(**about))  # type: ignore[arg-type]
        os._exit(0)
