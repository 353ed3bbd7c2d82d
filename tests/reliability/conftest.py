"""Worker processes for the tests of reliability."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stepwell import Storage
from tests.backends import Backend
from tests.constants import Constants
from tests.reliability.dose import LARGE
from tests.reliability.run_roles import LEASE
from tests.reliability.workers import Workers


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    workers = Workers(tmp_path_factory.mktemp("workers"))
    yield workers
    workers.close()


@pytest.fixture
def workers(_server: Workers) -> Iterator[Workers]:
    """Starts worker processes, and kills them after the test."""
    yield _server
    _server.end_all()


@pytest.fixture
def url(shared_backend: Backend) -> str:
    """Return a store for processes of runs that are killed."""
    if not shared_backend.durable:
        pytest.skip("this backend does not survive a kill")
    if not LARGE and shared_backend.name != "sqlite":
        pytest.skip("other backends with the large dose only")
    return shared_backend.place()


@pytest.fixture
async def storage(shared_backend: Backend, url: str, constants: Constants) -> Storage:
    """Return a storage for it, with the lease of its processes."""
    constants(lease=LEASE)
    storage = shared_backend.storage(url, sweep_every=None)
    await storage.open()
    return storage
