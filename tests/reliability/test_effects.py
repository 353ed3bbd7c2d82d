"""Calls that must not run twice, counted by a payment service, while workers are restarted and killed."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from stepwell import Storage
from stepwell.nodes import NodeFlow, Run
from stepwell.record import RUNS
from stepwell.slot import Slot
from tests.backends import Backend
from tests.reliability.dose import dose, seeded
from tests.reliability.effect_roles import charges
from tests.reliability.roles import BOT
from tests.reliability.workers import Worker, Workers
from tests.until import until

LEASE = 10.0

#: The number of worker processes.
AT_ONCE = 4
WHAT = ["goods", "tax", "freight"]


def charged(path: Path) -> Counter[tuple[str, str]]:
    """Return how often each thing was charged."""
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter((line.split()[0], line.split()[1]) for line in lines)


async def submit(flow: NodeFlow, numbers: range) -> None:
    for number in numbers:
        await flow.submit({"order": f"o{number}"}, flow_id=f"o{number}")


async def ended(flow: NodeFlow, count: int) -> list[Run]:
    """Return all runs, once none of them can continue by itself."""

    async def runs() -> list[Run]:
        return [await flow.status(f"o{number}") for number in range(count)]

    return await until(
        runs, lambda found: all(run.status in ("finished", "stuck") for run in found), patience=60 + count / 5
    )


async def settled(flow: NodeFlow, flow_id: str) -> Run:
    return await until(lambda: flow.status(flow_id), lambda run: run.status == "finished", patience=60)


async def test_a_rolling_restart_repeats_no_node_and_no_effect(
    shared_backend: Backend, workers: Workers, tmp_path: Path
) -> None:
    url, payments = shared_backend.place(), tmp_path / "payments"
    count, restarts = dose("CHARGES", 60, 100), dose("RESTARTS", 1, 20)
    flow = charges(shared_backend.storage(url), lambda *line: None)
    at_work = [workers.start("charge_all", url, payments=str(payments)) for _ in range(AT_ONCE)]
    seen = list(at_work)
    for number in range(restarts):
        await submit(flow, range(number * count, (number + 1) * count))
        for _ in range(AT_ONCE):
            oldest = at_work.pop(0)
            await oldest.wait_for("works")
            oldest.signal(signal.SIGTERM)
            at_work.append(workers.start("charge_all", url, payments=str(payments)))
            seen.append(at_work[-1])
            await oldest.wait_ended()
    found = await ended(flow, restarts * count)
    steps = Counter(line[1] for process in seen for line in process.reported("ran"))
    assert {run.status for run in found} == {"finished"}
    assert charged(payments) == {(f"o{number}", what): 1 for number in range(restarts * count) for what in WHAT}
    assert set(steps.values()) == {1}
    print(f"{len(found)} runs, {restarts * AT_ONCE} restarts, {len(steps)} nodes, none twice")


async def test_a_kill_runs_no_effect_twice_and_reports_each_interrupted_one_as_unknown(
    shared_backend: Backend, workers: Workers, tmp_path: Path
) -> None:
    if not shared_backend.durable:
        pytest.skip("this backend does not survive a kill")
    choose = seeded()
    url, payments = shared_backend.place(), tmp_path / "payments"
    count, kills = dose("CHARGES_KILLED", 80, 2000), dose("EFFECT_KILLS", 6, 300)
    storage = shared_backend.storage(url)
    flow = charges(storage, lambda *line: None)
    await submit(flow, range(count))

    def start() -> Worker:
        return workers.start("charge_all", url, payments=str(payments), seconds=0.1)

    at_work = [start() for _ in range(AT_ONCE)]
    for _ in range(kills):
        victim = at_work.pop(choose.randrange(AT_ONCE))
        await victim.wait_for("works")
        await asyncio.sleep(choose.uniform(0, 0.3))
        await victim.kill()
        at_work.append(start())
    found = await ended(flow, count)
    times = charged(payments)
    assert max(times.values()) == 1
    unknown = 0
    for run in found:
        made = [what for what in WHAT if times[run.flow_id, what]]
        final = await storage.get_data(RUNS, run.flow_id) or {}
        if run.status == "stuck":
            # In the last node: its charge was made, or not.
            assert run.reason is not None
            assert "the outcome of 'ship'" in run.reason
            assert made[:2] == ["goods", "tax"]
            unknown += 1
        elif "unknown" in final:
            unknown += 1
        else:
            assert made == WHAT
            assert len(final["receipts"]) == 3
    # What an operator says is the result.
    for run in found:
        if run.status == "stuck":
            await flow.complete(run.flow_id, "ship", result="by hand")
    for run in found:
        assert (await settled(flow, run.flow_id)).status == "finished"
    assert charged(payments) == times
    print(f"{count} runs, {kills} kills, {unknown} unknown outcomes, no charge twice")


async def test_after_a_kill_a_new_worker_continues_before_the_lease_has_ended(
    shared_backend: Backend, workers: Workers, tmp_path: Path
) -> None:
    url, payments = shared_backend.place(), str(tmp_path / "payments")
    storage: Storage = shared_backend.storage(url)
    flow = charges(storage, lambda *line: None)
    took = []
    for number in range(dose("TAKEOVERS", 1, 30)):
        flow_id = f"o{number}"
        await flow.submit({"order": flow_id}, flow_id=flow_id)
        first = workers.start("charge_all", url, payments=payments, seconds=600)
        await first.wait_for("ran")
        # Its intent is stored.
        await until(lambda: storage.beside(storage.address(RUNS, flow_id)), lambda it: it.holder is not None)
        await asyncio.sleep(random.uniform(0.2, 0.4))
        await first.kill()
        began = time.monotonic()
        second = workers.start("charge_all", url, payments=payments)
        await settled(flow, flow_id)
        took.append(time.monotonic() - began)
        await second.kill()
    assert max(took) < LEASE / 2
    print(f"{len(took)} kills, continued after {sum(took) / len(took):.2f} s, at most {max(took):.2f} s")


@pytest.mark.parametrize("kind", ["run", "conversation"])
async def test_after_a_kill_the_next_call_goes_on_before_the_lease_has_ended(
    shared_backend: Backend, workers: Workers, tmp_path: Path, kind: str
) -> None:
    url = shared_backend.place()
    storage: Storage = shared_backend.storage(url)
    if kind == "run":
        flow = charges(storage, lambda *line: None, str(tmp_path / "payments"))
        await flow.submit({"order": "o"}, flow_id="o")
        first = workers.start("charge_all", url, payments=str(tmp_path / "payments"), seconds=600)
        await first.wait_for("ran")
        await asyncio.sleep(0.3)
        await first.kill()
        began = time.monotonic()
        assert (await flow.run(flow_id="o", if_exists="resume"))["unknown"]
    else:
        first = workers.start("hold", url, key=1, lease=600, go=str(tmp_path / "never"))
        await first.wait_for("holds")
        await first.kill()
        began = time.monotonic()
        async with Slot(storage, BOT, 1) as slot:
            await slot.commit(force=True)
    took = time.monotonic() - began
    assert took < LEASE / 2
    print(f"continued after {took:.2f} s")
