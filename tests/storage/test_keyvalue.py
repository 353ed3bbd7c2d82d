from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from examples.file_storage import FileStorage

from stepwell import State, Storage
from stepwell.errors import CorruptRecord, RecordExists, StorageError, StorageFull, Unsupported
from stepwell.fsm import FSM, Context, Flow, state
from stepwell.record import DAY, Address, Change, Queue
from stepwell.slot import Slot
from stepwell.storage import Apply, Get, Guard
from stepwell.testing import Clock, KeyValueContract


class TestFileStorage(KeyValueContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def open_storage(self, clock: Clock) -> Storage:
        return FileStorage(self.path, clock=clock)


async def test_records_survive_a_new_storage_object(tmp_path: Path) -> None:
    async with FileStorage(tmp_path) as storage:
        await storage.update_data("bot", 1, {"a": (1, 2)})
    async with FileStorage(tmp_path) as storage:
        assert await storage.update_data("bot", 1, {"b": 1}) == {"a": (1, 2), "b": 1}


async def test_clear_leaves_only_a_tombstone_for_a_day(tmp_path: Path, clock: Clock) -> None:
    async with FileStorage(tmp_path, clock=clock) as storage:
        await storage.update_data("bot", 1, {"a": 1})
        await storage.clear("bot", 1)
        clock.advance(100_000)
        assert await storage.get_state("bot", 1) is None
        assert list(tmp_path.iterdir()) == []


async def test_unsupported_features_raise(tmp_path: Path) -> None:
    async with FileStorage(tmp_path) as storage:
        with pytest.raises(Unsupported, match="FileStorage cannot list its records"):
            [entry async for entry in storage.scan("bot")]
        with pytest.raises(Unsupported, match="deadlines"):
            await storage.due("bot")
        with pytest.raises(Unsupported, match="sweep"):
            await storage.sweep()


async def test_a_damaged_file_affects_only_its_key(tmp_path: Path) -> None:
    async with FileStorage(tmp_path) as storage:
        await storage.update_data("bot", 1, {"a": 1})
        for path in tmp_path.iterdir():
            path.write_text(path.read_text()[:-20])
        await storage.update_data("bot", 2, {"a": 1})
        with pytest.raises(CorruptRecord):
            await storage.get_state("bot", 1)
        results = await asyncio.gather(
            storage.get_data("bot", 1), storage.get_data("bot", 2), storage.get_data("bot", 3), return_exceptions=True
        )
        assert [isinstance(result, CorruptRecord) for result in results] == [True, False, False]
        assert results[1:] == [{"a": 1}, None]


async def test_a_damaged_file_is_detected_copied_to_quarantine_and_can_be_replaced(tmp_path: Path) -> None:
    async with FileStorage(tmp_path) as storage:
        await storage.set_state("bot", 1, State("f", "s", {"a": 1}))
        (path,) = tmp_path.iterdir()
        good = path.read_bytes()
        for at in range(0, len(good), 3):
            path.write_bytes(good[:at] + bytes([good[at] ^ 0x81]) + good[at + 1 :])
            with pytest.raises(CorruptRecord):
                await storage.get_state("bot", 1)
            with pytest.raises(CorruptRecord):
                await storage.update_data("bot", 1, {"b": 1})
        assert await storage.quarantined("bot", 1) is not None
        await storage.set_state("bot", 1, State("f", "t"))
        assert await storage.get_state("bot", 1) == State("f", "t")
        path.write_bytes(good[:-3])
        await storage.clear("bot", 1)
        assert await storage.get_state("bot", 1) is None


async def test_a_failing_store_fails_one_operation_and_writes_the_others_once(tmp_path: Path) -> None:
    class Failing(FileStorage):
        async def read(self, address: Address) -> str | None:
            if address.key == "2":
                raise OSError(5, "no such luck")
            return await super().read(address)

        async def write(self, address: Address, text: str) -> None:
            if address.key == "3":
                raise OSError(28, "no space left")
            await super().write(address, text)

    async with Failing(tmp_path) as storage:
        await storage.get_data("bot", 0)
        results = await asyncio.gather(
            *(storage.update_data("bot", key, {"n": key}) for key in range(5)), return_exceptions=True
        )
        assert [type(result) for result in results] == [dict, dict, StorageError, StorageFull, dict]
        stored = await storage.perform(Get(storage.address("bot", 4)))
        assert stored.version.number <= int(stored.written_at * 1e6), "written once"
        with pytest.raises(ValueError, match="the handler's own"):
            async with Slot(storage, "bot", 1):
                storage.read = lambda address: 1 / 0  # type: ignore[method-assign,assignment]
                raise ValueError("the handler's own")


async def test_an_expired_record_is_removed_at_its_next_read(tmp_path: Path, clock: Clock) -> None:
    async with FileStorage(tmp_path, clock=clock) as storage:
        await storage.init("bot", ttl=10)
        await storage.update_data("bot", 1, {"a": 1})
        clock.advance(11)
        assert await storage.get_state("bot", 1) is None
        assert list(tmp_path.iterdir()) == []


def test_the_example_runs() -> None:
    done = subprocess.run([sys.executable, "examples/file_storage.py"], capture_output=True, text=True, check=True)
    assert "State(flow='registration', state='get_name', data={'name': 'Alice'})" in done.stdout


async def test_the_memo_is_kept_when_a_read_removes_an_expired_record(tmp_path: Path, clock: Clock) -> None:
    async with FileStorage(tmp_path, clock=clock) as storage:
        fsm = FSM("bot", storage=storage, flows=[], ttl=60)
        update = {"update_id": 7, "message": {"from": {"id": 1}, "chat": {"id": 1}, "text": "hi"}}
        for expected in ("handled", None):
            assert await fsm.handle(update, _remember) == expected
            clock.advance(61)
            assert await storage.get_state("bot", (1, 1)) is None
        clock.advance(DAY)
        assert await storage.get_state("bot", (1, 1)) is None
        assert list(tmp_path.iterdir()) == []


def _remember(ctx: Context) -> str:
    ctx.update_data(n=1)
    return "handled"


async def test_timeouts_without_a_poller_are_refused_at_the_start(tmp_path: Path) -> None:
    class Slow(Flow, name="slow"):
        a = state(timeout=60)
        default_state = a

    storage = FileStorage(tmp_path)
    with pytest.raises(Unsupported, match=r"FileStorage cannot find deadlines.*run_timers=False"):
        async with FSM("bot", storage=storage, flows=[Slow]):
            pass
    async with FSM("bot", storage=storage, flows=[Slow], run_timers=False) as fsm, fsm.conversation(key=1) as ctx:
        ctx.start_flow(Slow)


async def test_records_are_created_once_and_queues_are_not_supported(tmp_path: Path) -> None:
    async with FileStorage(tmp_path) as storage:
        address = storage.address("bot", 1)
        create = Apply(address, Change(write="w", queue=Queue("q", 1)), Guard(absent=True))
        await storage.perform(create)
        with pytest.raises(RecordExists):
            await storage.perform(create)
        stored = await storage.perform(Get(address))
        assert stored.queue == Queue("q", 1)
        for listing in (storage.queued("bot", "q"), storage.queues("bot"), storage.due("bot", flow="f")):
            with pytest.raises(Unsupported):
                await listing
