"""Worker processes for the tests of reliability."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
