"""The pytest plugin: fixtures for tests of bots, flows and storages.

It is a module beside the package, so that pytest imports nothing of Stepwell before a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stepwell import Storage
    from stepwell.botapi import BotAPI
    from stepwell.testing import Chat, Clock

if TYPE_CHECKING:
    async_fixture = pytest.fixture
else:
    try:
        # In strict mode, pytest-asyncio runs only async fixtures of its own.
        from pytest_asyncio import fixture as async_fixture
    except ModuleNotFoundError:
        # anyio's plugin runs plain async fixtures.
        async_fixture = pytest.fixture

_STORAGE = "stepwell_storage"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and the setting for the URLs of storages."""
    text = "a URL for the fixture stepwell_storage; repeat it to run each test on several storages"
    group = parser.getgroup("stepwell")
    group.addoption("--stepwell-storage", action="append", metavar="URL", help=text)
    text = "seconds that the storage contract waits to see whether the store forgets; without it, that test is skipped"
    group.addoption("--stepwell-real-time", type=_positive, metavar="SECONDS", help=text)
    parser.addini(_STORAGE, help="URLs for the fixture stepwell_storage, one per line", type="linelist")


def _positive(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses ``stepwell_storage`` once for each URL, unless it has URLs of its own."""
    if _STORAGE not in metafunc.fixturenames:
        return
    if any(_STORAGE in _names(mark) for mark in metafunc.definition.iter_markers("parametrize")):
        return
    config = metafunc.config
    urls = config.getoption("stepwell_storage") or config.getini(_STORAGE) or ["memory://"]
    # A URL may have a password, so the id of a test is its scheme.
    schemes = [url.partition(":")[0] for url in urls]
    metafunc.parametrize(_STORAGE, urls, indirect=True, ids=schemes)


def _names(mark: pytest.Mark) -> list[str]:
    names = mark.args[0] if mark.args else mark.kwargs.get("argnames", "")
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


@pytest.fixture
def stepwell_clock() -> Clock:
    """Return a clock that moves only by ``advance()``. ``stepwell_storage`` and ``stepwell_chat`` use it too."""
    from stepwell.testing import Clock

    return Clock()


@async_fixture
async def stepwell_storage(request: pytest.FixtureRequest) -> AsyncIterator[Storage]:
    """Return an empty storage, and remove its records after the test.

    It is in memory, or at the URLs of ``--stepwell-storage``, of the setting ``stepwell_storage``, or of
    ``@pytest.mark.parametrize("stepwell_storage", [...], indirect=True)``.
    """
    from stepwell.testing.stores import new_storage

    clock = request.getfixturevalue("stepwell_clock") if "stepwell_clock" in request.fixturenames else None
    async with new_storage(request.param, request.getfixturevalue("tmp_path"), clock) as storage:
        yield storage


@async_fixture
async def stepwell_chat(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Chat]]:
    """Return a function that makes a ``Chat`` with a bot. It takes the arguments of ``Chat``."""
    from contextlib import AsyncExitStack

    from stepwell.fsm import Router
    from stepwell.testing import Chat
    from stepwell.turns import Turns

    async with AsyncExitStack() as chats:

        def make(bot: Any, **options: Any) -> Chat:
            # A storage that is an object has its own clock.
            opens = options.get("storage") is None or isinstance(options["storage"], str)
            if "stepwell_clock" in request.fixturenames and not isinstance(bot, Router | Turns) and opens:
                options.setdefault("clock", request.getfixturevalue("stepwell_clock"))
            chat = Chat(bot, **options)
            chats.push_async_exit(chat)
            return chat

        yield make


@async_fixture
async def bot_api() -> AsyncIterator[BotAPI]:
    """Start a local Bot API: ``bot = bot_api.bot("my_bot")``, ``chat = bot_api.chat(bot)``."""
    from stepwell.botapi import BotAPI

    async with BotAPI() as api:
        yield api
