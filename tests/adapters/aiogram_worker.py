"""aiogram bots in separate processes, with polling or a webhook, for tests that kill them.

Importing aiogram takes seconds, so it is done once: a nursery process imports everything that workers need, and forks
one for each line that it is given.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

SECRET = "s3cret"


class Worker:
    """A bot's process, as its parent sees it; ``make`` names a function ``module:name`` of a storage's URL."""

    def __init__(self, folder: Path, make: str, storage: str, api: str, token: str, *transport: str) -> None:
        about = {"make": make, "storage": storage, "api": api, "token": token, "transport": transport}
        self.pid = _nursery().born({**about, "log": str(folder / "worker.log")})
        self.running = True

    def kill(self) -> None:
        """Kill the process without cleanup."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
            self.running = False


class _Nursery:
    def __init__(self) -> None:
        command = [sys.executable, "-W", "error", "-m", "tests.adapters.aiogram_worker"]
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


@cache
def _nursery() -> _Nursery:
    return _Nursery()


def close_nursery() -> None:
    """Stop it and all workers."""
    if _nursery.cache_info().currsize:
        _nursery().close()
        _nursery.cache_clear()


async def work(make: str, storage: str, api: str, token: str, transport: list[str]) -> None:
    from aiogram import Bot
    from aiogram.client.session.aiohttp import AiohttpSession
    from aiogram.client.telegram import TelegramAPIServer
    from aiogram.webhook.aiohttp_server import SimpleRequestHandler, setup_application
    from aiohttp import web

    module, _, name = make.partition(":")
    dispatcher = getattr(import_module(module), name)(storage)
    bot = Bot(token, session=AiohttpSession(api=TelegramAPIServer.from_base(api)))
    if transport == ["poll"]:
        # One after the other: an update is confirmed when it is handled.
        await dispatcher.start_polling(bot, handle_as_tasks=False, polling_timeout=5)
        return
    app = web.Application()
    # Not in the background: a webhook is answered when its update is handled.
    hook = SimpleRequestHandler(dispatcher, bot, handle_in_background=False, secret_token=SECRET)
    hook.register(app, "/hook")
    setup_application(app, dispatcher, bot=bot)
    runner = web.AppRunner(app)
    await runner.setup()
    # Several workers share the port; the system spreads connections among them.
    await web.TCPSite(runner, "127.0.0.1", int(transport[1]), reuse_port=True).start()
    print("listening", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    for name in ("aiogram.webhook.aiohttp_server", "examples.aiogram_registration", "examples.aiogram_states",
                 "stepwell.storage.redis", "stepwell.storage.postgres", "stepwell.storage.sqlite",
                 "tests.adapters.walkers"):  # fmt: skip
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
        asyncio.run(work(**about))
        os._exit(0)


if __name__ == "__main__":
    main()
