"""Expired conversations are passed to ``on_expired``, even if another process sweeps or an update comes first."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from stepwell import State, open_storage
from stepwell.fsm import FSM, Flow, state
from stepwell.fsm.machine import Expired
from stepwell.fsm.timers.expiry import GRACE, RETRY
from stepwell.storage import Claim, Release, Storage
from stepwell.testing import Clock, FaultyStorage
from tests.backends import Backend
from tests.fsm.conftest import message

KEY = (42, 42)


class Short(Flow, name="short", ttl=10):
    a = state()
    b = state(timeout=6, on_timeout="c")
    c = state()
    default_state = a


@pytest.fixture
def storage(backend: Backend, clock: Clock) -> Storage:
    return backend.storage(clock=clock, sweep_every=None)


@pytest.fixture
def gone() -> list[Expired]:
    return []


@pytest.fixture
def fsm(storage: Storage, gone: list[Expired]) -> FSM:
    """Return a machine with ``on_expired``."""
    return FSM("bot", storage=storage, flows=[Short], on_expired=gone.append)


async def begin(fsm: FSM, at: str = "a", update_id: int | None = None) -> None:
    async with fsm.conversation(message(update_id=update_id)) as ctx:
        ctx.start_flow(Short)
        ctx.set_state(at)


async def test_a_sweep_in_another_process_does_not_lose_the_call(fsm: FSM, gone: list[Expired], clock: Clock) -> None:
    await begin(fsm)
    clock.advance(11)
    await fsm.storage.sweep()
    other = FSM("bot", storage=fsm.storage, flows=[Short])
    assert await other.tick() == 0
    assert await fsm.tick() == 1
    assert gone == [Expired(KEY, "short", "a")]
    assert await fsm.storage.get_state("bot", KEY) is None
    clock.advance(2 * RETRY)
    assert await fsm.tick() == 0
    assert len(gone) == 1


@pytest.mark.parametrize("listens", [True, False], ids=["a listener", "no listener"])
async def test_on_expired_is_called_too_if_an_update_comes_first(
    fsm: FSM, gone: list[Expired], clock: Clock, listens: bool
) -> None:
    here = fsm if listens else FSM("bot", storage=fsm.storage, flows=[Short])
    await begin(fsm, "b")
    clock.advance(11)
    async with here.conversation(message(update_id=7)) as ctx:
        assert (ctx.flow, ctx.state, ctx.data) == (None, None, {})
        ctx.start_flow(Short)
        ctx.set_state("b")
        ctx.update_data(new=True)
    async with here.conversation(message()) as ctx:
        assert ctx.state == "b", "the new state has not timed out"
    assert await fsm.tick() == 1
    assert gone == [Expired(KEY, "short", "b")]
    assert await fsm.storage.get_state("bot", KEY) == State("short", "b", {"new": True})
    clock.advance(7)
    assert await fsm.tick() == 1
    assert await fsm.storage.get_state("bot", KEY) == State("short", "c", {"new": True})
    clock.advance(11)
    assert await fsm.tick() == 1
    assert gone[1:] == [Expired(KEY, "short", "c")]


async def test_on_expired_is_called_although_the_new_conversation_ends_at_once(
    fsm: FSM, gone: list[Expired], clock: Clock
) -> None:
    await begin(fsm)
    clock.advance(11)
    async with fsm.conversation(message()) as ctx:
        ctx.start_flow(Short)
        ctx.clear_flow()
    await fsm.tick()
    assert gone == [Expired(KEY, "short", "a")]
    assert await fsm.storage.get_state("bot", KEY) is None
    assert [entry async for entry in fsm.find()] == []


async def test_on_expired_is_called_again_if_it_raises(
    storage: Storage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Expired] = []

    async def on_expired(gone: Expired) -> None:
        calls.append(gone)
        if len(calls) == 1:
            raise ZeroDivisionError
        # The key is not claimed during the call.
        await begin(fsm)

    fsm = FSM("bot", storage=storage, flows=[Short], on_expired=on_expired)
    await begin(fsm)
    clock.advance(11)
    assert await fsm.tick() == 0
    assert "ZeroDivisionError" in caplog.text
    clock.advance(RETRY - 1)
    assert await fsm.tick() == 0
    clock.advance(2)
    other = FSM("bot", storage=storage, flows=[Short], on_expired=on_expired)
    assert await other.tick() == 1
    assert calls == [Expired(KEY, "short", "a")] * 2
    assert await storage.get_state("bot", KEY) == State("short", "a", {})


async def test_the_next_conversation_expires_and_times_out_while_an_entry_waits(storage: Storage, clock: Clock) -> None:
    def on_expired(gone: Expired) -> None:
        raise ZeroDivisionError

    fsm = FSM("bot", storage=storage, flows=[Short], on_expired=on_expired)
    await begin(fsm)
    clock.advance(11)
    await begin(fsm, "b")
    assert await fsm.tick() == 0
    clock.advance(7)
    assert await fsm.tick() == 1
    assert await storage.get_state("bot", KEY) == State("short", "c", {})
    await begin(fsm, "b")
    clock.advance(7)
    async with fsm.conversation(message()) as ctx:
        assert ctx.state == "c"
    clock.advance(11)
    async with fsm.conversation(message()) as ctx:
        assert (ctx.flow, ctx.state) == (None, None)


async def test_an_update_during_the_call_does_not_make_another_worker_repeat_it(storage: Storage, clock: Clock) -> None:
    calls: list[Expired] = []

    async def on_expired(gone: Expired) -> None:
        calls.append(gone)
        await begin(fsm)
        async with fsm.conversation(message()) as ctx:
            ctx.clear_flow()
        await begin(fsm)
        assert await other.tick() == 0

    fsm, other = (FSM("bot", storage=storage, flows=[Short], on_expired=on_expired) for _ in range(2))
    await begin(fsm)
    clock.advance(11)
    assert await fsm.tick() == 1
    assert calls == [Expired(KEY, "short", "a")]
    clock.advance(2 * RETRY)
    assert await other.tick() == 1
    assert calls == [Expired(KEY, "short", "a")] * 2, "the second conversation has expired too"


async def test_several_workers_hand_over_each_entry_once(storage: Storage, gone: list[Expired], clock: Clock) -> None:
    async def on_expired(event: Expired) -> None:
        gone.append(event)
        await asyncio.sleep(0.01)

    workers = [FSM("bot", storage=storage, flows=[Short], on_expired=on_expired) for _ in range(4)]
    for user in range(1, 21):
        async with workers[0].conversation(message(user=user, chat=user)) as ctx:
            ctx.start_flow(Short)
    clock.advance(11)
    await asyncio.gather(*(worker.tick() for worker in workers))
    assert sorted(event.key for event in gone) == [(user, user) for user in range(1, 21)]


async def test_a_record_of_a_machine_without_on_expired_is_handed_over_after_its_next_write(
    fsm: FSM, gone: list[Expired], clock: Clock
) -> None:
    await begin(FSM("bot", storage=fsm.storage, flows=[Short], sliding=False), "b")
    clock.advance(1)
    fixed = FSM("bot", storage=fsm.storage, flows=[Short], sliding=False, on_expired=gone.append)
    async with fixed.conversation(message()) as ctx:
        ctx.update_data(n=1)
    clock.advance(6)
    assert await fixed.tick() == 1
    assert await fsm.storage.get_state("bot", KEY) == State("short", "c", {"n": 1})
    clock.advance(4)
    await fixed.tick()
    assert gone == [Expired(KEY, "short", "c")]


async def test_without_a_worker_with_on_expired_the_record_is_swept_after_a_week(
    fsm: FSM, gone: list[Expired], clock: Clock
) -> None:
    await begin(fsm)
    clock.advance(11 + GRACE)
    assert await fsm.storage.get_state("bot", KEY) is None
    assert len((await fsm.storage.sweep()).expired) == 1
    assert await fsm.tick() == 0
    assert gone == []


async def test_an_update_that_changes_nothing_still_costs_no_write(gone: list[Expired]) -> None:
    async with FaultyStorage() as storage:
        fsm = FSM("bot", storage=storage, flows=[Short], on_expired=gone.append)
        await begin(fsm, update_id=1)
        before = len(storage.batches)
        async with fsm.conversation(message(update_id=2)) as ctx:
            assert ctx.state == "a"
        assert [type(each) for batch in storage.batches[before:] for each in batch] == [Claim, Release]


async def test_a_process_that_sweeps_without_on_expired_leaves_the_call_to_a_worker_that_has_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bot.db"

    class Brief(Flow, name="brief", ttl=0.2):
        a = state()
        default_state = a

    gone: list[Expired] = []
    called = asyncio.Event()

    def on_expired(event: Expired) -> None:
        gone.append(event)
        called.set()

    async with open_storage(url, sweep_every=None) as storage:
        fsm = FSM("bot", storage=storage, flows=[Brief], on_expired=on_expired)
        async with fsm.conversation(message()) as ctx:
            ctx.start_flow(Brief)
        written = time.time()
        program = (
            "import asyncio, sys\n"
            "from stepwell import open_storage\n"
            "async def main():\n"
            f"    async with open_storage({url!r}, sweep_every=None) as storage:\n"
            f"        await asyncio.sleep(max({written} + 0.4 - __import__('time').time(), 0))\n"
            "        await storage.sweep()\n"
            "asyncio.run(main())\n"
        )
        sweeping = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        assert await sweeping.wait() == 0
        async with fsm, asyncio.timeout(10):
            await called.wait()
    assert gone == [Expired(KEY, "brief", "a")]
