"""``kill -9`` loses no acknowledged write and leaves no partial write."""

from __future__ import annotations

import asyncio

from stepwell import State, Storage
from stepwell.storage import Claim, Get, Taken
from tests.backends import Backend
from tests.reliability.dose import dose, seeded
from tests.reliability.roles import BOT, agreeing
from tests.reliability.workers import Workers
from tests.until import until

#: The leases of a killed worker expire while others work on the next set of keys.
SETS, KEYS = 6, 4


async def test_a_killed_writer_loses_no_acknowledged_write_and_leaves_no_partial_write(
    shared_backend: Backend, workers: Workers
) -> None:
    choose = seeded()
    kills = dose("KILLS", 12, 2000)
    url = shared_backend.place()
    storage = shared_backend.storage(url, sweep_every=None)
    await storage.open()
    acknowledged: dict[int, int] = {}
    writes = unanswered = 0
    for kill in range(kills):
        keys = [kill % SETS * KEYS + number for number in range(KEYS)]
        worker = workers.start("write", url, keys=keys, seed=choose.randrange(1 << 32))
        await worker.wait_for("wrote")
        # Every second worker is killed among its first writes.
        await until(lambda: kill % 2 == 0 or len(worker.reported("wrote")) >= 9)
        await asyncio.sleep(choose.uniform(0, 0.05))
        await worker.kill()
        await shared_backend.settled()
        for _, key, number in worker.reported("wrote"):
            writes += 1
            assert number > acknowledged.get(key, 0), f"key {key}: {acknowledged[key]} was acknowledged and is lost"
            acknowledged[key] = number
        for key in keys:
            number = await whole(storage, key)
            # One write may have been applied but not reported.
            assert number - acknowledged.get(key, 0) in (0, 1)
            unanswered += number - acknowledged.get(key, 0)
            acknowledged[key] = number
    print(f"{kills} kills, {writes} acknowledged writes, {unanswered} applied without an answer")
    assert writes >= 5 * kills


async def whole(storage: Storage, key: int) -> int:
    """Return the number that all parts of a record contain."""
    state = await storage.get_state(BOT, key)
    if state is None:
        return 0
    number: int = state.data["number"]
    assert state == State("flow", f"s{number}", agreeing(number))
    address = storage.address(BOT, key)
    seal = storage.seal(address)
    stored = await storage.perform(Get(address, parts=True))
    # set_state wrote the number after that of a commit. It removes the parts and keeps the tags.
    if stored.parts:
        assert seal.value("p", "part", stored.parts["part"]) == number
        assert stored.tags == (f"t{number}",)
    claimed = await storage.perform(Claim(address, "looker", 0.001))
    if not isinstance(claimed, Taken):
        assert number - seal.value("m", "", claimed.memo) in (0, 1)
    return number
