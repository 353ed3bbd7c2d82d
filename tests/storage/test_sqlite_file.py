"""Opening and closing an SQLite file, and the errors and warnings about it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from stepwell import SQLiteStorage, State, Storage, open_storage
from stepwell.errors import DamagedStorage, InvalidOption, NewerSchema, StorageClosed, StorageUnavailable
from stepwell.storage.sqlite.connection import has_wal_reset_bug, is_network
from stepwell.storage.sqlite.schema import VERSION
from tests.constants import Constants

BOT = "bot"


# URLs and options


async def test_a_path_with_three_slashes_is_relative_and_with_four_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_storage("sqlite:///bot.db") as storage:
        await storage.set_state(BOT, 1, State("a", "b"))
    async with open_storage(f"sqlite:///{tmp_path}/bot.db") as storage:
        assert await storage.get_state(BOT, 1) == State("a", "b")


async def test_a_program_may_change_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = open_storage("sqlite:///bot.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    async with storage:
        await storage.set_state(BOT, 1, State("a", "b"))
    assert (tmp_path / "bot.db").exists()


async def test_a_path_may_be_escaped_in_the_url(tmp_path: Path) -> None:
    async with open_storage(f"sqlite:///{tmp_path}/my%20bot%3F.db"):
        pass
    assert (tmp_path / "my bot?.db").exists()


def test_options_may_be_given_in_the_url() -> None:
    storage = open_storage("sqlite:///bot.db?synchronous=normal&patience=3&sweep_every=5")
    assert isinstance(storage, SQLiteStorage)
    assert (storage.path, storage.synchronous) == (str(Path.cwd() / "bot.db"), "NORMAL")
    # A keyword argument overrides the URL.
    storage = open_storage("sqlite:///bot.db?synchronous=NORMAL", synchronous="FULL")
    assert isinstance(storage, SQLiteStorage)
    assert storage.synchronous == "FULL"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://bot.db",
        "sqlite:bot.db",
        "sqlite:/bot.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///bot.db?journal=off",
        "sqlite:///bot.db?patience=long",
        "sqlite:///bot.db?synchronous=OFF",
        "sqlite:///bot.db#x",
    ],
)
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption):
        open_storage(url)


async def test_a_storage_in_memory_is_empty_after_close() -> None:
    async with open_storage("sqlite:///:memory:") as storage:
        await storage.set_state(BOT, 1, State("a"))
        assert await storage.get_state(BOT, 1) == State("a")
    async with storage:
        assert await storage.get_state(BOT, 1) is None
    assert not Path(":memory:").exists()


def test_importing_the_library_does_not_load_the_driver() -> None:
    script = (
        "import sys, stepwell; assert 'apsw' not in sys.modules; stepwell.SQLiteStorage; assert 'apsw' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# Files


async def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with SQLiteStorage(str(tmp_path / "bot.db")) as storage:
            await storage.set_state(BOT, 1, State())
            files = sorted(tmp_path.iterdir())
            assert [file.name for file in files] == ["bot.db", "bot.db-shm", "bot.db-wal"]
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    finally:
        os.umask(before)


async def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match=r"folder .*nowhere does not exist; create it"):
        await SQLiteStorage(str(tmp_path / "nowhere" / "bot.db")).open()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs the file system of Linux")
async def test_a_folder_that_takes_no_files_is_not_called_missing() -> None:
    with pytest.raises(StorageUnavailable, match="no file can be created in the folder /proc; give the path of a file"):
        await SQLiteStorage("/proc/stepwell.db").open()


async def test_the_path_of_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="is a folder"):
        await SQLiteStorage(str(tmp_path)).open()


async def test_a_file_that_is_not_a_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 100)
    with pytest.raises(StorageUnavailable, match="is not an SQLite database"):
        await SQLiteStorage(str(path)).open()
    assert path.read_text() == "not a database, " * 100
    assert not leftover_threads()


async def test_the_database_of_another_program_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    shop = apsw.Connection(str(path))
    shop.execute("CREATE TABLE record (id)")
    shop.close()
    before = path.read_bytes()
    with pytest.raises(StorageUnavailable, match="another program"):
        await SQLiteStorage(str(path)).open()
    assert path.read_bytes() == before


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bot.db"
    async with SQLiteStorage(str(path)):
        pass
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(NewerSchema, match=f"has schema {VERSION + 1}, this release supports up to {VERSION}; upgrade"):
        await SQLiteStorage(str(path)).open()


async def test_a_storage_opens_after_the_error_is_fixed(tmp_path: Path) -> None:
    storage = SQLiteStorage(str(tmp_path / "later" / "bot.db"))
    with pytest.raises(StorageUnavailable):
        await storage.get_state(BOT, 1)
    (tmp_path / "later").mkdir()
    async with storage:
        await storage.set_state(BOT, 1, State("a"))


@pytest.mark.parametrize("action", ["delete", "replace"])
async def test_a_file_that_is_deleted_or_replaced_while_open_is_an_error(tmp_path: Path, action: str) -> None:
    path = tmp_path / "bot.db"
    async with SQLiteStorage(str(path)) as storage:
        await storage.set_state(BOT, 1, State("a"))
        path.rename(tmp_path / "away.db")
        if action == "replace":
            path.touch()
        for call in (storage.set_state(BOT, 2, State()), storage.get_state(BOT, 1), storage.clear(BOT, 1)):
            with pytest.raises(StorageUnavailable, match="was deleted or replaced while it was open"):
                await call
        (tmp_path / "away.db").rename(path)
        assert await storage.get_state(BOT, 1) == State("a")
        assert await storage.get_state(BOT, 2) is None


async def test_broken_pages_are_an_error_of_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "bot.db"
    async with SQLiteStorage(str(path)) as storage:
        for key in range(200):
            await storage.set_state(BOT, key, State(data={"text": "x" * 500}))
    pages = path.read_bytes()
    path.write_bytes(pages[:4096] + b"\xff" * (len(pages) - 4096))
    with pytest.raises(DamagedStorage, match="restore it from a backup"):
        async with SQLiteStorage(str(path)) as storage:
            for key in range(200):
                await storage.get_state(BOT, key)


# Permissions

AS_NOBODY = """
    import asyncio, os, sys
    from stepwell import State, open_storage
    from stepwell.errors import StorageUnavailable
    # Root may write everything. The user nobody may not, and may not be able to read Python's installation.
    open_storage(sys.argv[1])
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)

    async def main():
        try:
            async with open_storage(sys.argv[1]) as storage:
                await storage.set_state("bot", 1, State("a"))
        except StorageUnavailable as error:
            print("refused:", error)

    asyncio.run(main())
"""


@pytest.mark.parametrize("case", ["file", "folder", "both", "new"])
async def test_a_read_only_file_or_folder_is_an_error_and_is_not_changed(case: str) -> None:
    # Only their owner may enter pytest's folders, so use another one.
    with opened_folder() as folder:
        path = folder / "bot.db"
        if case != "new":
            async with SQLiteStorage(str(path)) as storage:
                await storage.set_state(BOT, 1, State("before"))
            path.chmod(0o666 if case == "folder" else 0o444)
        folder.chmod(0o777 if case == "file" else 0o555)
        output = as_nobody(f"sqlite:///{path}")
        assert output.startswith("refused:")
        assert "cannot be written by this user; both the file and its folder must be writable" in output
        folder.chmod(0o777)
        path.exists() and path.chmod(0o600)
        async with SQLiteStorage(str(path)) as storage:
            assert await storage.get_state(BOT, 1) == (None if case == "new" else State("before"))


def as_nobody(url: str) -> str:
    script = textwrap.dedent(AS_NOBODY)
    return subprocess.run([sys.executable, "-c", script, url], check=True, stdout=subprocess.PIPE, text=True).stdout


class opened_folder:
    def __enter__(self) -> Path:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name)
        path.chmod(0o777)
        return path

    def __exit__(self, *_: object) -> None:
        Path(self.folder.name).chmod(0o777)
        self.folder.cleanup()


# Locks


async def test_a_transaction_of_another_program_is_an_error_after_the_patience(tmp_path: Path) -> None:
    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path, patience=0.3) as storage:
        await storage.set_state(BOT, 1, State("a"))
        foreign = apsw.Connection(path)
        foreign.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(StorageUnavailable, match=r"locked by another program for 0\.3 s; nothing was written"):
            await storage.set_state(BOT, 1, State("b"))
        assert time.monotonic() - started < 5
        # Readers do not wait for writers.
        assert await storage.get_state(BOT, 1) == State("a")
        foreign.execute("ROLLBACK")
        await storage.set_state(BOT, 1, State("c"))
        assert await storage.get_state(BOT, 1) == State("c")
        foreign.close()


async def test_the_loop_is_not_blocked_while_the_thread_waits_for_a_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path) as storage:
        await storage.set_state(BOT, 1, State("a"))
        foreign = apsw.Connection(path)
        foreign.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(storage.update_data(BOT, 1, {"a": 1}))
        longest, last = 0.0, time.monotonic()
        for _ in range(40):
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert not writing.done()
        # If the loop waited for the lock itself, it would be blocked for 10 s.
        assert longest < 3
        foreign.execute("ROLLBACK")
        assert await writing == {"a": 1}
        foreign.close()


async def test_a_write_continues_soon_after_a_lock_is_released(tmp_path: Path) -> None:
    path = str(tmp_path / "bot.db")
    async with SQLiteStorage(path) as storage:
        await storage.set_state(BOT, 1, State("a"))
        foreign = apsw.Connection(path)
        for _ in range(20):
            foreign.execute("BEGIN IMMEDIATE")
            writing = asyncio.ensure_future(storage.update_data(BOT, 1, {"a": 1}))
            await asyncio.sleep(0.15)
            foreign.execute("ROLLBACK")
            freed = time.monotonic()
            await writing
            # SQLite's own handler would sleep for up to a tenth of a second at a time.
            if time.monotonic() - freed < 0.05:
                break
        else:
            pytest.fail("no write continued within 0.05 s")
        foreign.close()


# Warnings


@pytest.mark.parametrize(
    ("version", "bad"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 6), True),
        ((3, 50, 7), True),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 54, 1), False),
    ],
)
def test_versions_with_the_wal_reset_bug(version: tuple[int, ...], bad: bool) -> None:
    assert has_wal_reset_bug(version) is bad


async def test_a_version_with_the_wal_reset_bug_logs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with SQLiteStorage(str(tmp_path / "bot.db")):
        assert not caplog.records
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.40.1")
    async with SQLiteStorage(str(tmp_path / "bot.db")):
        pass
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "SQLite 3.40.1 can damage a file" in caplog.text


async def test_a_network_file_system_logs_a_warning(
    tmp_path: Path, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/home {tmp_path}/the\\040share nfs4 rw 0 0\n")
    constants(mounts=str(mounts))
    (tmp_path / "the share").mkdir()
    async with SQLiteStorage(str(tmp_path / "bot.db")):
        assert not caplog.records
    async with SQLiteStorage(str(tmp_path / "the share" / "bot.db")):
        pass
    assert "is on a network file system (nfs4)" in caplog.text


def test_local_file_systems_are_not_network_file_systems() -> None:
    assert not any(map(is_network, ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", ""]))


# Closing


#: Threads of storages that earlier tests have not closed.
earlier_threads: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def note_earlier_threads() -> Iterator[None]:
    earlier_threads.update(threading.enumerate())
    yield
    earlier_threads.clear()


def leftover_threads() -> list[str]:
    new = set(threading.enumerate()) - earlier_threads
    return [thread.name for thread in new if thread.name == "stepwell-sqlite"]


async def test_close_ends_the_thread_and_closes_all_files(tmp_path: Path) -> None:
    def open_files() -> int:
        # The descriptor of the listed folder is closed by now.
        found = [file for file in Path("/proc/self/fd").iterdir() if file.exists()]
        return len([file for file in found if file.readlink().is_relative_to(tmp_path)])

    storage = SQLiteStorage(str(tmp_path / "bot.db"))
    for _ in range(3):
        async with storage:
            await storage.update_data(BOT, 1, {"a": 1})
            assert leftover_threads() == ["stepwell-sqlite"]
            assert open_files() > 0
        assert not leftover_threads()
        assert open_files() == 0
    # The WAL was copied into the file.
    assert [file.name for file in tmp_path.iterdir()] == ["bot.db"]


async def test_a_storage_that_is_collected_without_close_leaves_no_thread(tmp_path: Path) -> None:
    storage = SQLiteStorage(str(tmp_path / "bot.db"), sweep_every=None)
    await storage.update_data(BOT, 1, {"a": 1})
    assert leftover_threads()
    del storage
    async with asyncio.timeout(10):
        while leftover_threads():
            gc.collect()
            await asyncio.sleep(0.01)


async def test_run_on_a_closed_storage_raises(tmp_path: Path) -> None:
    storage = SQLiteStorage(str(tmp_path / "bot.db"))
    with pytest.raises(StorageClosed):
        await storage.run([])


def test_a_storage_works_in_a_new_loop(tmp_path: Path) -> None:
    storage = SQLiteStorage(str(tmp_path / "bot.db"))
    asyncio.run(storage.update_data(BOT, 1, {"a": 1}))

    async def again(storage: Storage) -> None:
        assert await storage.get_data(BOT, 1) == {"a": 1}
        await storage.close()

    asyncio.run(again(storage))
    assert not leftover_threads()


def test_a_forked_process_cannot_open_a_file_that_it_inherited(tmp_path: Path) -> None:
    script = """
        import asyncio, os, sys
        from stepwell import SQLiteStorage
        from stepwell.errors import UsageError

        def in_child(storage):
            child = os.fork()
            if child:
                return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            try:
                asyncio.run(write(storage, "child"))
            except UsageError as error:
                os._exit(3 if "was forked" in str(error) else 4)
            os._exit(0)

        async def write(storage, name):
            await storage.open()
            await storage.update_data("bot", 1, {name: 1})
            await storage.close()

        storage = SQLiteStorage(sys.argv[1])
        asyncio.run(storage.update_data("bot", 1, {"open": 1}))
        print(in_child(storage), in_child(SQLiteStorage(sys.argv[1])))
        asyncio.run(write(storage, "closed"))
        print(in_child(storage), in_child(SQLiteStorage(sys.argv[1])))
        print(sorted(asyncio.run(SQLiteStorage(sys.argv[1]).get_data("bot", 1))))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), str(tmp_path / "bot.db")],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
    )
    assert done.stdout.splitlines() == ["3 3", "0 0", "['child', 'closed', 'open']"]


async def test_an_error_of_the_disk_while_the_file_is_opened_names_the_file(tmp_path: Path) -> None:
    class Failing(apsw.VFS):
        def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
            raise apsw.IOError("disk I/O error")

    path, usual = tmp_path / "bot.db", apsw.vfs_names()[0]
    failing = Failing("failing", "", makedefault=True)
    try:
        with pytest.raises(StorageUnavailable, match=f"{path} cannot be read or written .*; check the disk"):
            await SQLiteStorage(str(path)).open()
    finally:
        apsw.set_default_vfs(usual)
        failing.unregister()
