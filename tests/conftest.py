"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from weakref import WeakSet

import pytest
from hypothesis import HealthCheck, settings

from stepwell import _portal, sync
from stepwell.storage import Storage
from stepwell.storage.base.sweeper import Sweeper
from stepwell.testing import Clock
from tests import backends
from tests.constants import Constants
from tests.reliability.dose import dose
from tests.servers import folders

# The modules of all tests live to the end. Collecting garbage while they are imported finds nothing and takes long.
gc.disable()

os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folders.root()))

# Some tests start pytest, and importing this plugin takes as long as the rest of its start.
os.environ["PYTEST_ADDOPTS"] = "-p no:langsmith_plugin"

# A shell starts background jobs with SIGINT ignored, and all processes of the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine any example may take long.
settings.register_profile(
    "busy machine",
    deadline=None,
    max_examples=dose("EXAMPLES", 50, 1000),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy machine")

#: Tests of these packages run on memory and SQLite: the backends have the contract, slot and reliability tests.
#: Files and tests marked with ``every_backend`` run on all backends there too.
ABOVE_STORAGE = (
    *(
        "tests.fsm.",
        "tests.nodes.",
        "tests.operate.",
        "tests.telegram.",
        "tests.turns.",
        "tests.adapters.",
        "tests.playground.",
        "tests.botapi.",
    ),
    *("tests.inspector.", "tests.cli.", "tests.test_cli", "tests.examples.", "tests.testing."),
)


def pytest_collection_finish() -> None:
    """Leave everything that was imported out of all garbage collections from now on."""
    gc.freeze()
    gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the backends of a test by its package and mark."""
    marked = metafunc.definition.get_closest_marker("every_backend") is not None
    every = marked or not metafunc.module.__name__.startswith(ABOVE_STORAGE)
    chosen = backends.ALL if every else backends.LOCAL
    for fixture, classes in {"backend": chosen, "shared_backend": [cls for cls in chosen if cls.shared]}.items():
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, classes, indirect=True, ids=lambda cls: cls.name)


@pytest.fixture
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[backends.Backend]:
    """Each backend that pytest_generate_tests chose for this test."""
    backend = request.param(tmp_path)
    yield backend
    await backend.close()


@pytest.fixture
async def shared_backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[backends.Backend]:
    """The same without backends that only one process can use."""
    backend = request.param(tmp_path)
    yield backend
    await backend.close()


#: The storages that tests have opened.
_opened: WeakSet[Storage] = WeakSet()
_start_sweeper = Sweeper.start


def _start(sweeper: Sweeper) -> None:
    if (storage := sweeper._storage()) is not None:
        _opened.add(storage)
    _start_sweeper(sweeper)


Sweeper.start = _start  # type: ignore[method-assign,assignment]


@pytest.fixture(autouse=True)
def _close_storages() -> Iterator[None]:
    """Close the storages that a test leaves open on the background loop, as the snippets of some pages do.

    This loop lives longer than the test: the sweep of such a storage would log in a later test that its file is gone.
    """
    yield
    for storage in list(_opened):
        if storage.loop is not None and storage.loop is _portal._loop:
            sync(storage.close())
    _opened.clear()


@pytest.fixture
def clock() -> Clock:
    """A clock that moves only by ``advance()``."""
    return Clock()


@pytest.fixture
def constants(monkeypatch: pytest.MonkeyPatch) -> Constants:
    """Times and sizes of the library that a test needs smaller."""
    return Constants(monkeypatch)
