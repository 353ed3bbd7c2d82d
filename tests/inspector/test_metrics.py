"""The page for Prometheus."""

from __future__ import annotations

import re

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from stepwell import MemoryStorage, State
from stepwell.inspector import inspector
from stepwell.nodes import Node, linear, worker
from stepwell.record import Change
from stepwell.storage import Apply, Storage
from stepwell.testing import Clock
from stepwell.turns import Turns
from tests.constants import Constants
from tests.inspector.conftest import HOST, TOKEN, Browser, app_of
from tests.turns.people import People

SAMPLE = re.compile(r'^([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\})? (\S+)$')


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Return the value of each sample by its name and labels; check that every line is valid."""
    found: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        if not re.match(r"# (HELP|TYPE) [a-z_]+ \S", line):
            match = SAMPLE.match(line)
            assert match is not None, line
            found[match[1], match[2] or ""] = float(match[3])
    return found


@pytest.mark.every_backend
async def test_it_has_the_numbers_of_the_overview(storage: Storage, browse: Browser) -> None:
    client = await browse(app_of(storage))
    while (found := parsed((await client.get("/metrics")).text))["stepwell_counts_complete", ""] == 0:
        pass
    assert found["stepwell_conversations", 'bot="shop",flow="order",state="address"'] == 2
    assert found["stepwell_conversations", 'bot="shop",flow="order",state="voucher"'] == 1
    assert found["stepwell_runs", 'flow="charging",status="failed"'] == 1
    assert found["stepwell_runs", 'flow="approval",status="queued"'] == 1
    assert found["stepwell_timer_late_seconds", 'bot="shop"'] == 0
    assert found["stepwell_processes", 'kind="worker"'] == 0


async def test_it_counts_conversations_with_an_agent_by_state(browse: Browser) -> None:
    clock, people = Clock(), People()
    async with MemoryStorage(clock=clock) as storage:
        turns = Turns("agent", storage=storage, collect=1.0)
        for chat in (-1, -2):
            await turns.admit(people.message("hi", chat=chat))
        clock.advance(11)
        client = await browse(app_of(storage))
        found = parsed((await client.get("/metrics")).text)
    assert found["stepwell_turns", 'name="turns",state="collecting"'] == 2
    assert found["stepwell_turns_oldest_write_seconds", 'name="turns",state="collecting"'] == 11
    assert found["stepwell_turns_late_seconds", ""] == 10


async def test_it_says_how_late_a_timer_is(browse: Browser) -> None:
    clock = Clock()
    async with MemoryStorage(clock=clock) as storage:
        address = storage.address("my_bot", 42)
        await storage.perform(Apply(address, Change(write=storage.ids(), deadline=10)))
        clock.advance(100)
        client = await browse(app_of(storage))
        found = parsed((await client.get("/metrics")).text)
    assert found["stepwell_timer_late_seconds", 'bot="my_bot"'] == 90


async def test_it_has_the_wait_in_the_queue_and_the_recoveries_of_workers(
    browse: Browser, constants: Constants
) -> None:
    constants(presence_first=0.05, presence_every=0.05)
    async with MemoryStorage() as storage:
        flow = linear(Node(name="work"), name="flow", storage=storage)
        client = await browse(app_of(storage))
        async with worker([flow]):
            waited: tuple[str, str] = ("stepwell_queue_wait_seconds", "")
            while waited not in (found := parsed((await client.get("/metrics")).text)):
                await (await flow.submit()).result(timeout=60)
    assert 0 <= found[waited] < 60
    assert found["stepwell_recovered_per_minute", ""] == 0
    assert found["stepwell_leases_lost_per_minute", ""] == 0


async def test_a_scraper_sends_the_token_as_a_bearer_token(storage: Storage) -> None:
    app = app_of(storage, allow_write=True)
    async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=httpx.ASGITransport(app=app)) as client:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        answer = await client.get("/metrics", headers=bearer)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers={"Authorization": "Bearer another"})).status_code == 401
        assert (await client.get("/metrics", headers={"Authorization": f"Basic {TOKEN}"})).status_code == 401
        assert (await client.get("/metrics", headers={**bearer, "Host": "evil.example"})).status_code == 403
        # The header opens this page only.
        assert (await client.get("/api/overview", headers=bearer)).status_code == 401
        writes = {**bearer, "Origin": f"http://{HOST}", "Content-Type": "application/json"}
        assert (await client.post("/api/clear", headers=writes, json={})).status_code == 401


async def test_a_mounted_inspector_has_it_below_its_prefix(storage: Storage) -> None:
    app = Starlette(routes=[Mount("/inspect", app_of(storage))])
    async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=httpx.ASGITransport(app=app)) as client:
        answer = await client.get("/inspect/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200


async def test_a_random_token_is_no_bearer_token(storage: Storage) -> None:
    app = inspector(storage)
    async with httpx.AsyncClient(base_url=f"http://{HOST}", transport=httpx.ASGITransport(app=app)) as client:
        answer = await client.get("/metrics", headers={"Authorization": f"Bearer {app.token}"})
    assert answer.status_code == 401


async def test_names_are_escaped(browse: Browser) -> None:
    async with MemoryStorage() as storage:
        await storage.set_state("my_bot", 42, State('a "quoted" \\flow', "b"))
        text = (await (await browse(app_of(storage))).get("/metrics")).text
    assert r'stepwell_conversations{bot="my_bot",flow="a \"quoted\" \\flow",state="b"} 1' in text
    parsed(text)
