"""The health endpoint of workers, for the probes of an orchestrator."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import httpx
import pytest

from stepwell import MemoryStorage
from stepwell.dispatch import health
from stepwell.dispatch.health import Health, HealthServer
from stepwell.errors import InvalidOption, StorageUnavailable, UsageError
from stepwell.nodes import worker
from stepwell.storage.operations import Result
from tests.constants import Constants
from tests.nodes.test_queue import logged
from tests.servers.process import free_port
from tests.until import until


class Away(MemoryStorage):
    """A storage that can be unavailable."""

    away = False

    async def queued(self, *args: Any, **options: Any) -> Any:
        if self.away:
            raise StorageUnavailable("the server is away")
        return await super().queued(*args, **options)

    async def run(self, operations: Any) -> list[Result]:
        if self.away:
            raise StorageUnavailable("the server is away")
        return await super().run(operations)


async def ask(port: int, name: str = "ready", method: str = "GET") -> tuple[int, Any]:
    async with httpx.AsyncClient() as client:
        answer = await client.request(method, f"http://127.0.0.1:{port}/health/{name}")
    return answer.status_code, json.loads(answer.content or "null")


async def test_a_worker_is_ready_until_its_storage_is_away_and_again_afterwards(constants: Constants) -> None:
    constants(health_poll_age=0.5, presence_first=0.01, presence_every=0.05)
    storage, port = Away(), free_port()
    flow, _ = logged(storage)
    running = asyncio.create_task(worker([flow]).run(health=port))
    try:
        _, report = await until(lambda: _ready(port), lambda found: found[0] == 200)
        assert (report["ready"], report["problems"]) == (True, [])
        assert 0 <= report["seconds_since"]["poll"] < 60
        await until(lambda: ask(port), lambda found: found[1]["seconds_since"]["write"] is not None)
        storage.away = True
        _, report = await until(lambda: ask(port), lambda found: found[0] == 503)
        assert "the last poll that worked was" in report["problems"][0]
        status, report = await ask(port, "live")
        assert (status, report["live"]) == (200, True)
        storage.away = False
        await until(lambda: ask(port), lambda found: found[0] == 200)
        assert (await ask(port, "other"))[0] == 404
        assert (await ask(port, method="HEAD")) == (200, None)
        assert (await ask(port, method="POST"))[0] == 405
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await running
    with pytest.raises(httpx.ConnectError):
        await ask(port)


async def _ready(port: int) -> tuple[int, Any]:
    try:
        return await ask(port)
    except httpx.ConnectError:
        return 0, None


async def test_a_process_that_stops_is_not_ready_and_lives() -> None:
    stopping = asyncio.Event()
    async with HealthServer(0, Health(stopping.is_set)) as served:
        assert await ask(served.port) == (200, {"ready": True, "problems": [], "seconds_since": {}})
        stopping.set()
        assert (await ask(served.port))[1]["problems"] == ["it is stopping"]
        assert (await ask(served.port, "live"))[0] == 200


async def test_what_has_not_worked_yet_is_not_ready() -> None:
    process = Health(lambda: False)
    process.check("poll", lambda: None, 30)
    process.check("write", lambda: None, 30, needed=False)
    async with HealthServer(0, process) as served:
        status, report = await ask(served.port)
    assert (status, report["problems"]) == (503, ["no poll has worked yet"])
    assert report["seconds_since"] == {"poll": None, "write": None}


async def test_a_taken_port_is_refused_with_its_number() -> None:
    async with HealthServer(0, Health(lambda: False)) as served:
        with pytest.raises(UsageError, match=f"cannot use port {served.port} .*give another port"):
            await HealthServer(served.port, Health(lambda: False)).__aenter__()
    with pytest.raises(InvalidOption, match="health="):
        HealthServer(70_000, Health(lambda: False))


async def test_a_client_that_sends_nothing_is_disconnected(constants: Constants) -> None:
    constants(health_request_timeout=0.05)
    async with HealthServer(0, Health(lambda: False)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"x" * (2 * health.REQUEST_BYTES))
        assert await reader.read() == b""
        writer.close()
