"""An inspector of a filled storage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from stepwell.inspector import Inspector, inspector
from stepwell.storage import Storage
from tests.backends import Backend
from tests.inspector import shop

HOST = "127.0.0.1:8643"
WRITE = {"Origin": f"http://{HOST}", "Content-Type": "application/json"}
TOKEN = "a token for the tests"

Browser = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture
async def storage(shared_backend: Backend) -> AsyncIterator[Storage]:
    """A storage with conversations and runs."""
    async with shared_backend.storage(shared_backend.place()) as storage:
        await shop.fill(storage)
        yield storage


def app_of(storage: Storage, **options: Any) -> Inspector:
    """Return an inspector with a session token."""
    return inspector(storage, shop.flows(), token=TOKEN, **options)


@pytest.fixture
async def browse() -> AsyncIterator[Browser]:
    """Opens a browser with a session."""
    clients: list[httpx.AsyncClient] = []

    async def opened(app: Inspector, token: str | None = None) -> httpx.AsyncClient:
        client = httpx.AsyncClient(base_url=f"http://{HOST}", transport=httpx.ASGITransport(app=app), headers=WRITE)
        clients.append(client)
        assert (await client.get("/", params={"token": token or app.token})).status_code == 200
        return client

    yield opened
    for client in clients:
        await client.aclose()
