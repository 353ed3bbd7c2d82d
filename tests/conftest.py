"""Fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stepwell.testing import Clock
from tests import backends

# A job in the background may be started with Ctrl-C ignored, which all processes of the tests would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=backends.ALL, ids=lambda cls: cls.name)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[backends.Backend]:
    """Every landed backend in turn."""
    backend = request.param(tmp_path)
    yield backend
    await backend.close()


@pytest.fixture(params=[cls for cls in backends.ALL if cls.shared], ids=lambda cls: cls.name)
async def shared_backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[backends.Backend]:
    """Every landed backend that several processes may use at once."""
    backend = request.param(tmp_path)
    yield backend
    await backend.close()


@pytest.fixture
def clock() -> Clock:
    """A clock that moves only when it is told to."""
    return Clock()
