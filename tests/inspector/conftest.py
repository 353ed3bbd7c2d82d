"""An inspector of a filled storage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from playwright import async_api
from playwright.async_api import expect

from stepwell.inspector import Inspector, inspector
from stepwell.inspector.server import InspectorServer
from stepwell.storage import Storage, open_storage
from tests.backends import Backend
from tests.inspector import shop
from tests.inspector.visit import Visit
from tests.playground.browser import PATIENCE, launched

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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[async_api.Browser]:
    async with launched() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def visits(browser: async_api.Browser, tmp_path: Path) -> AsyncIterator[Any]:
    """Open inspectors; check at the end that no page had errors or made requests to other servers."""
    opened: list[Visit] = []

    async def visit(
        *,
        width: int = 1280,
        dark: bool = False,
        flows: Any = None,
        fill: Any = None,
        token: str | None = None,
        **options: Any,
    ) -> Visit:
        storage = open_storage(f"sqlite:///{tmp_path}/shop.db")
        await storage.open()
        if not opened:
            await (fill or shop.fill)(storage)
        server = await InspectorServer(storage, flows or shop.flows(), **options).__aenter__()
        context = await browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
        )
        context.set_default_timeout(PATIENCE * 1000)
        opened.append(new := Visit(server, storage, context, await context.new_page()))
        await new.page.goto(server.url if token is None else f"{server.address}?token={token}")
        await expect(new.card("Timers")).to_be_visible()
        return new

    expect.set_options(timeout=PATIENCE * 1000)
    try:
        yield visit
    finally:
        for each in opened:
            await each.context.close()
            await each.server.__aexit__(None, None, None)
            await each.storage.close()
    for each in opened:
        assert each.problems == []
        assert {urlsplit(url).netloc for url in each.requests} == {urlsplit(each.server.address).netloc}
