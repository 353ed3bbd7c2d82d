"""How many bytes and fsyncs a write costs, and the size of the file and its WAL."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from stepwell import SQLiteStorage, State
from stepwell.record import DAY
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Claimed, Operation, Query, Release
from stepwell.storage.sqlite import connection
from stepwell.testing import Clock
from tests.constants import Constants
from tests.insides import file_of
from tests.until import until

BOT = "bot"


class Counted(SQLiteStorage):
    """Counts durable and other commits."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.durable = self.quick = self.applied = 0

    async def _open(self) -> None:
        await super()._open()
        write = self._file.write

        def counted(work: Callable[[], Any], *, durable: bool) -> Any:
            before = self._file.writer.total_changes()
            result = write(work, durable=durable)
            # NORMAL is 1, FULL is 2. It cannot change inside a transaction, so the commit used this level.
            assert self._file.writer.execute("PRAGMA synchronous").get == (2 if durable else 1)
            if self._file.writer.total_changes() > before:
                self.durable += durable
                self.quick += not durable
            return result

        self._file.write = counted  # type: ignore[method-assign]

    async def perform(self, operation: Operation) -> Any:
        self.applied += type(operation) is Apply
        return await super().perform(operation)


async def many_updates(storage: SQLiteStorage, tasks: int, each: int) -> None:
    async def one(task: int) -> None:
        for number in range(each):
            async with Slot(storage, BOT, task) as slot:
                slot.data["count"] = number
                await slot.commit()

    await asyncio.gather(*(one(task) for task in range(tasks)))


async def test_concurrent_commits_share_fsyncs(tmp_path: Path) -> None:
    async with Counted(str(tmp_path / "bot.db"), sweep_every=None) as storage:
        await many_updates(storage, 50, 10)
        assert storage.applied == 500
        assert storage.durable <= 20
        # Claims share commits too.
        assert storage.quick <= 20


async def test_a_claim_and_a_release_do_not_wait_for_the_disk(tmp_path: Path) -> None:
    async with Counted(str(tmp_path / "bot.db"), sweep_every=None) as storage:
        for _ in range(10):
            async with Slot(storage, BOT, 1):
                pass
        assert (storage.durable, storage.quick) == (0, 20)
        await many_updates(storage, 1, 10)
        assert storage.durable == 10


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed; the counter above still counts")
@pytest.mark.parametrize(
    ("tasks", "each", "least", "most"),
    [
        # One for each round of the 50 tasks, and a few to create, checkpoint and close the file.
        (50, 10, 10, 50),
        # One for each commit, none for its claim.
        (1, 40, 40, 55),
    ],
)
def test_the_kernel_sees_as_many_fsyncs_as_promised(
    tmp_path: Path, tasks: int, each: int, least: int, most: int
) -> None:
    script = """
        import asyncio, sys
        from stepwell import SQLiteStorage
        from stepwell.slot import Slot

        async def main():
            tasks, each = map(int, sys.argv[2:])
            async with SQLiteStorage(sys.argv[1]) as storage:
                async def one(task):
                    for number in range(each):
                        async with Slot(storage, "bot", task) as slot:
                            slot.data["count"] = number
                            await slot.commit()
                await asyncio.gather(*(one(task) for task in range(tasks)))

        asyncio.run(main())
    """
    traced = tmp_path / "trace"
    run = ["strace", "-f", "-e", "trace=fsync,fdatasync", "-o", str(traced), sys.executable, "-c"]
    arguments = [str(tmp_path / "bot.db"), str(tasks), str(each)]
    subprocess.run([*run, textwrap.dedent(script), *arguments], check=True, timeout=60)
    syncs = [line for line in traced.read_text().splitlines() if "sync(" in line]
    print(f"{len(syncs)} syncs for {tasks * each} commits")
    assert least <= len(syncs) <= most


async def test_changing_a_counter_does_not_rewrite_a_large_field(tmp_path: Path) -> None:
    def written() -> int:
        fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(fields["wchar"])

    async with SQLiteStorage(str(tmp_path / "bot.db"), sweep_every=None) as storage:
        await storage.set_state(BOT, 1, State("flow", "state", {"large": "x" * 10_000, "count": 0}))
        for number in range(20):
            await storage.update_data(BOT, 1, {"count": number})

        before = written()
        for number in range(200):
            await storage.update_data(BOT, 1, {"count": number})
        merging = (written() - before) / 200

        before = written()
        for number in range(200):
            async with Slot(storage, BOT, 1) as slot:
                slot.data["count"] = number
                await slot.commit()
        holding = (written() - before) / 200
    print(f"{merging:.0f} bytes per merge, {holding:.0f} bytes per claim, change and commit")
    assert merging < 5000
    assert holding < 5000


async def test_batches_of_many_tasks_use_prepared_statements(tmp_path: Path) -> None:
    async with SQLiteStorage(str(tmp_path / "bot.db"), sweep_every=None) as storage:

        async def count(key: int, number: int) -> None:
            async with Slot(storage, BOT, key) as slot:
                slot.data["count"] = number
                await slot.commit()

        async def prepared() -> int:
            found: dict[str, int] = await storage._opened_thread().call(file_of(storage).writer.cache_stats)
            # PRAGMA synchronous is never kept.
            return found["misses"] - found["no_cache"]

        for number in range(3):
            await asyncio.gather(*(count(key, number) for key in range(50)))
        # On a busy machine a lease may be released apart from its commit, which prepares a statement now and then.
        quiet = 0
        for number in range(3, 23):
            before = await prepared()
            await asyncio.gather(*(count(key, number) for key in range(50)))
            quiet += await prepared() == before
        assert quiet >= 3


async def test_a_write_touches_only_the_indexes_whose_columns_change(tmp_path: Path) -> None:
    async with SQLiteStorage(str(tmp_path / "bot.db"), sweep_every=None) as storage:
        await storage.set_state(BOT, 1, State("flow", "state", {"count": 0}))
        traced: list[str] = []
        file_of(storage).writer.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: traced.append(event["sql"]))
        await storage.update_data(BOT, 1, {"count": 1})
        async with Slot(storage, BOT, 1) as slot:
            slot.state = "other"
            await slot.commit()
        execute = file_of(storage).writer.execute
        sets = [re.findall(r"(\w+)=\?", sql) for sql in traced if sql.startswith("UPDATE record")]
        indexes = [row[1] for row in execute("PRAGMA index_list(record)")]
        columns = {row[2] for index in indexes for row in execute(f"PRAGMA index_info({index})")}
        columns -= {"namespace", "key"}
        assert columns == {"flow", "state", "deadline", "expires_at", "queue"}
        assert [columns.intersection(names) for names in sets] == [set(), {"state"}]


# The size of the file


async def test_expired_records_and_tombstones_are_removed_in_the_background(tmp_path: Path, clock: Clock) -> None:
    async with SQLiteStorage(str(tmp_path / "bot.db"), clock=clock, sweep_every=0.02) as storage:
        await storage.init(BOT, ttl=60)
        await asyncio.gather(*(storage.set_state(BOT, key, State("f", "s", {"a": key})) for key in range(300)))
        await storage.init("other")
        await storage.set_state("other", 1, State("f"))
        await storage.set_state("other", 2, State("f"))
        await storage.clear("other", 2)
        clock.advance(DAY + 61)
        await until(lambda: rows(storage) == {"record": 1, "field": 0, "part": 0, "memo": 0, "tag": 0, "lease": 0})
        assert await storage.get_state("other", 1) == State("f")


async def test_a_sweep_does_not_block_writers(tmp_path: Path, clock: Clock) -> None:
    async with SQLiteStorage(str(tmp_path / "bot.db"), clock=clock, sweep_every=None) as storage:
        await storage.init(BOT, ttl=60)
        await asyncio.gather(*(storage.set_state(BOT, key, State("f", "s", {"a": key})) for key in range(1000)))
        clock.advance(61)
        sweeping = asyncio.ensure_future(storage.sweep(1000))
        written = 0
        while not sweeping.done():
            await storage.update_data("other", 1, {"a": 1})
            written += 1
        assert (await sweeping).removed == 1000
        assert written >= 5


async def test_memos_of_idle_conversations_are_removed(tmp_path: Path, clock: Clock) -> None:
    async with SQLiteStorage(str(tmp_path / "bot.db"), clock=clock, sweep_every=None) as storage:
        for key in range(700):
            async with Slot(storage, BOT, key) as slot:
                slot.data["a"] = 1
                await slot.commit(memo=[1, 2, 3])
        assert rows(storage)["memo"] == 700
        clock.advance(DAY + 1)
        async with Slot(storage, BOT, 3) as slot:
            slot.data["a"] = 2
            await slot.commit(memo=[4])
        for _ in range(3):
            await storage.sweep()
        assert rows(storage)["memo"] == 1
        assert rows(storage)["record"] == 700


async def test_the_file_does_not_grow_without_bound(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "bot.db"
    sizes = []
    async with SQLiteStorage(str(path), clock=clock, sweep_every=None) as storage:
        await storage.init(BOT, ttl=60)
        for round_ in range(24):
            await asyncio.gather(
                *(storage.set_state(BOT, (round_, key), State("f", "s", {"text": "x" * 200})) for key in range(300))
            )
            clock.advance(61)
            assert (await storage.sweep()).removed == 300
            file_of(storage).checkpoint(cut=True)
            sizes.append(path.stat().st_size)
    assert sizes[-1] <= sizes[11] * 1.1


async def test_the_wal_does_not_grow_without_bound(tmp_path: Path, constants: Constants) -> None:
    constants(checkpoint_pages=200)
    wal = tmp_path / "bot.db-wal"
    async with SQLiteStorage(str(tmp_path / "bot.db")) as storage:
        largest = 0
        for number in range(300):
            await asyncio.gather(*(storage.update_data(BOT, key, {"n": number}) for key in range(20)))
            largest = max(largest, wal.stat().st_size)
        assert await storage.get_data(BOT, 3) == {"n": 299}
    assert largest < 3 * 200 * 1048


async def test_the_wal_is_overwritten_rather_than_extended_by_commits_that_become_larger(
    tmp_path: Path, constants: Constants
) -> None:
    constants(checkpoint_commits=60)
    wal = tmp_path / "bot.db-wal"
    async with SQLiteStorage(str(tmp_path / "bot.db"), sweep_every=None) as storage:
        for number in range(70):
            await storage.update_data(BOT, 1, {"text": f"{number:04}" * 1_500})
        size = wal.stat().st_size
        for number in range(300):
            await storage.update_data(BOT, 1, {"text": f"{number:04}" * 2_000})
        assert wal.stat().st_size == size
        # Twice as large commits need a longer WAL, because checkpoints wait for the disk too.
        for number in range(100):
            await storage.update_data(BOT, 1, {"text": f"{number:04}" * 8_000})
        assert wal.stat().st_size > size


async def test_a_reader_that_never_ends_does_not_stop_the_writers(tmp_path: Path, constants: Constants) -> None:
    constants(checkpoint_pages=50)
    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path, patience=0.05) as storage:
        await storage.update_data(BOT, 1, {"n": 0})
        reader = apsw.Connection(path)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM field").get == 1
        for number in range(400):
            await storage.update_data(BOT, number % 7, {"n": number})
        reader.execute("ROLLBACK")
        for number in range(400, 500):
            await storage.update_data(BOT, number % 7, {"n": number})
        assert Path(path + "-wal").stat().st_size <= 8 * 50 * 1048 + 200_000
        reader.close()


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Collect whether each checkpoint copied the whole WAL."""
    outcomes: list[bool] = []
    original = connection.SQLiteFile.checkpoint

    def checkpoint(file: connection.SQLiteFile, *, cut: bool = False) -> bool:
        outcomes.append(original(file, cut=cut))
        return outcomes[-1]

    monkeypatch.setattr(connection.SQLiteFile, "checkpoint", checkpoint)
    return outcomes


async def test_a_reader_that_never_ends_does_not_cause_more_checkpoints(
    tmp_path: Path, constants: Constants, checkpoints: list[bool]
) -> None:
    constants(checkpoint_commits=60)
    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path, sweep_every=None) as storage:
        await storage.update_data(BOT, 1, {"n": 0})
        reader = apsw.Connection(path)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM field").get == 1
        for number in range(1, 300):
            await storage.update_data(BOT, 1, {"n": number})
        # It waits for the last checkpoint.
        await storage.sweep()
        assert checkpoints == [False] * 5
        reader.close()


async def test_a_wal_that_could_not_be_truncated_is_overwritten_to_its_end(
    tmp_path: Path, constants: Constants, checkpoints: list[bool]
) -> None:
    constants(checkpoint_commits=60)
    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path, sweep_every=None, patience=0.05) as storage:

        async def write(count: int, length: int) -> None:
            for number in range(count):
                await storage.update_data(BOT, 1, {"text": f"{number:04}" * length})
            await storage.sweep()

        await write(60, 1_500)
        await write(1, 1)
        assert checkpoints == [True]
        reader = apsw.Connection(path)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM field").get == 1
        assert not file_of(storage).checkpoint(cut=True)
        reader.close()
        await write(60, 1)
        # These commits are larger, but the file of the WAL still has the length of the first ones.
        await write(120, 500)
        assert checkpoints == [True, False, True, True, True]


async def test_reads_run_on_the_loop_and_keep_no_snapshot(tmp_path: Path) -> None:
    async with SQLiteStorage(str(tmp_path / "bot.db"), sweep_every=None) as storage:
        await storage.set_state(BOT, 1, State("a", data={"b": 1}))
        reading = storage.get_state(BOT, 1)
        # The coroutine ends without a suspension.
        with pytest.raises(StopIteration) as ended:
            reading.send(None)
        assert ended.value.value == State("a", data={"b": 1})
        assert file_of(storage).reader.txn_state() == apsw.SQLITE_TXN_NONE
        page = await storage.page(Query(BOT), None, 10)
        assert len(page.records) == 1
        assert file_of(storage).writer.txn_state() == apsw.SQLITE_TXN_NONE


async def test_the_loop_does_not_wait_for_the_lock_of_another_connection(tmp_path: Path) -> None:
    async with SQLiteStorage(str(tmp_path / "bot.db"), sweep_every=None) as storage:
        await storage.set_state(BOT, 1, State("a"))
        address = storage.address(BOT, 1)
        assert isinstance(await storage.perform(Claim(address, "B", 10.0)), Claimed)
        foreign = apsw.Connection(storage.path)
        foreign.execute("BEGIN IMMEDIATE")
        releasing = asyncio.ensure_future(storage.perform(Release(address, "B")))
        await asyncio.sleep(0.02)
        assert not releasing.done()
        foreign.execute("ROLLBACK")
        await releasing
        foreign.close()


def rows(storage: SQLiteStorage) -> dict[str, int]:
    count = file_of(storage).reader.execute
    return {
        table: count(f"SELECT count(*) FROM {table}").get
        for table in ("record", "field", "part", "memo", "tag", "lease")
    }
