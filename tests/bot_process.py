"""A bot in a process of its own, for tests that kill it.

The child takes ``{"id": ..., "update": ...}`` a line, all lines at once, and gives ``{"id": ..., "calls": ...}`` when
one is handled. What it is told to hang at, it announces as ``{"hangs": ...}`` and then does nothing at all.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import Any

from stepwell.fsm import Context, LeaseLost, Router

MakeRouter = Callable[..., Router]


class BotProcess:
    """The parent's end. ``make`` names a function ``module:name`` of a URL that makes the router."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        #: Set once the child hangs where it was told to.
        self.hanging = asyncio.Event()
        self._ids = count()
        self._waiting: dict[int, asyncio.Future[list[dict[str, Any]] | None]] = {}
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, make: str, url: str, *, hang: str = "") -> BotProcess:
        command = [sys.executable, "-m", "tests.bot_process", make, url, hang]
        return cls(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE))

    def deliver(self, update: dict[str, Any]) -> asyncio.Future[list[dict[str, Any]] | None]:
        """The calls for an update; ``None`` if the process died before it told them."""
        number = next(self._ids)
        answered: asyncio.Future[list[dict[str, Any]] | None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        assert self.process.stdin is not None
        if self._reader.done():
            answered.set_result(None)
        else:
            self.process.stdin.write(json.dumps({"id": number, "update": update}).encode() + b"\n")
        return answered

    async def kill(self) -> None:
        """With no chance to tidy up."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reader

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            said = json.loads(line)
            if "hangs" in said:
                self.hanging.set()
            else:
                self._waiting.pop(said["id"]).set_result(said["calls"])
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_result(None)


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def hang_at(where: str) -> None:
    say(hangs=where)
    time.sleep(600)


def hanging(router: Router) -> Router:
    """The same bot; it never gets further than holding the conversation."""

    def stop_here(ctx: Context) -> bool:
        hang_at("holding")
        return False

    outer = Router(router.fsm)
    outer.on(stop_here)(lambda ctx: None)
    outer.include(router)
    return outer


async def serve(make: MakeRouter, url: str, hang: str) -> None:
    router = make(url)
    if hang == "holding":
        router = hanging(router)

    async def answer(number: int, update: dict[str, Any]) -> None:
        while True:
            try:
                calls = await router.handle(update)
                break
            except LeaseLost:
                # A machine too busy for so short a lease: nothing was written, and it is delivered again.
                continue
        if hang == "committed":
            hang_at(hang)
        say(id=number, calls=calls)

    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=2**20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with asyncio.TaskGroup() as group:
        async for line in lines:
            given = json.loads(line)
            group.create_task(answer(given["id"], given["update"]))
    assert router.fsm is not None
    await router.fsm.storage.close()


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    asyncio.run(serve(getattr(import_module(module), name), sys.argv[2], sys.argv[3]))
