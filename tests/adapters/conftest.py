"""Fixtures for bots with the local Bot API. A module whose bots run in processes names the module of its workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stepwell.botapi import BotAPI
from tests.adapters.processes import Bots, close_nursery
from tests.backends import Backend


@pytest.fixture
async def api() -> AsyncIterator[BotAPI]:
    async with BotAPI(webhook_pause=0.05) as api:
        yield api


@pytest.fixture(scope="module")
def nursery(request: pytest.FixtureRequest) -> Iterator[str]:
    """The module of the workers."""
    module: str = request.module.MODULE
    yield module
    close_nursery(module)


@pytest.fixture
def bots(nursery: str, api: BotAPI, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bots]:
    """The bots of a test with this transport."""
    bots = Bots(nursery, api, tmp_path, request.param)
    yield bots
    bots.kill()


@pytest.fixture
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    """The backend that a test names."""
    backend: Backend = request.param(tmp_path)
    yield backend
    await backend.close()
