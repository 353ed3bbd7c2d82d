"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stepwell.testing import Clock
from tests import backends


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
