"""Fixtures for the commands of an operator: calls in this process, on a storage with some records."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stepwell.cli import main
from stepwell.fsm import FSM, Flow, state
from stepwell.storage import Storage
from tests.backends import Backend

#: A line of the log of writes.
LOGGED = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (.*)\n", re.MULTILINE)


class Done(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert (self.code, LOGGED.sub("", self.err)) == (0, "")
        return json.loads(self.out)

    @property
    def logged(self) -> list[str]:
        """The writes that were logged: who, and what."""
        return LOGGED.findall(self.err)


Command = Callable[..., Awaitable[Done]]


class Order(Flow, name="order"):
    """The flow of the bot in these tests."""

    item = state(to=["address"])
    address = state(to=["paid"], timeout=600, on_timeout="item")
    paid = state(to=[])
    default_state = item


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Command]:
    """Runs a command in a thread, and returns its exit code and output."""
    # Commands import files of the tests, and make the modules beside them importable.
    monkeypatch.setattr(sys, "path", sys.path.copy())

    async def run(*arguments: str) -> Done:
        def call() -> int:
            try:
                return main(arguments)
            except SystemExit as exit_:
                return int(exit_.code or 0)

        capsys.readouterr()
        code = await asyncio.to_thread(call)
        return Done(code, *capsys.readouterr())

    yield run
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
async def url(shared_backend: Backend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The URL of a storage with three conversations of the bot ``shop``, for the commands too."""
    url = shared_backend.place()
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    storage = shared_backend.storage(url)
    await fill(storage)
    yield url


async def fill(storage: Storage) -> None:
    """Write the three conversations."""
    fsm = FSM("shop", storage=storage, flows=[Order], run_timers=False)
    for user, name, city in ((42, "Anna", "Rome"), (43, "Bob", "Oslo"), (44, "Cleo", "Rome")):
        async with fsm.conversation(key=(user, user)) as ctx:
            ctx.start_flow(Order)
            ctx.update_data(name=name, password="hunter2", to={"city": city})
            if user != 44:
                ctx.transition("address")
