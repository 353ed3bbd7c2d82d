"""Forgotten texts are removed from the file and from the WAL."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import apsw
import pytest

from stepwell import SQLiteStorage
from stepwell.fsm import FSM
from stepwell.slot import Slot
from tests.constants import Constants
from tests.fsm.conftest import Form, message
from tests.insides import file_of

SECRET = b"SECRET"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "bot.db")


def machine(storage: SQLiteStorage) -> FSM:
    return FSM("bot", storage=storage, flows=[Form], run_timers=False)


def found_in(path: str) -> list[str]:
    """Return the files that contain the secret."""
    return [file.name for file in sorted(Path(path).parent.iterdir()) if SECRET in file.read_bytes()]


async def talk(fsm: FSM, user: int, text: str, **data: Any) -> None:
    async with fsm.conversation(message(user=user, chat=user, text=text)) as ctx:
        if ctx.flow is None:
            ctx.start_flow(Form)
        ctx.update_data(text=text, **data)


async def fill(fsm: FSM, seed: int = 1) -> None:
    """Write, overwrite and remove values of all sizes, so that pages are split and merged and overflow."""
    choose = random.Random(seed)
    for turn in range(600):
        user = choose.randrange(1, 41)
        word = "SECRET" if user < 5 else "plain"
        size = choose.choice([1, 5, 30, 200, 1500])
        if choose.random() < 0.1:
            await fsm.storage.clear("bot", (user, user))
        else:
            await talk(fsm, user, f"{word} {turn} " * size, **{f"field{choose.randrange(5)}": word * size})


async def test_the_texts_of_a_forgotten_user_are_in_no_file(path: str) -> None:
    async with SQLiteStorage(path, synchronous="NORMAL") as storage:
        fsm = machine(storage)
        await fill(fsm)
        async with Slot(storage, "bot", (1, 1)) as slot:
            slot.data["text"] = "SECRET"
            await slot.commit(memo=["SECRET"], parts={"SECRET": "SECRET"}, tags=("user:1",))
        writer = file_of(storage).writer
        writer.execute("UPDATE field SET value = value || 'SECRET' WHERE key = '(1,1)' AND name = 'text'")
        with pytest.raises(Exception, match="quarantine"):
            await storage.get_data("bot", (1, 1))
        assert await storage.quarantined("bot", (1, 1)) is not None
        assert found_in(path) != []
        others = {entry.key: entry.state async for entry in fsm.find() if entry.key[0] > 4}
        for user in range(1, 5):
            forgotten = await fsm.forget(user=user)
            assert forgotten >= 1
            assert forgotten.erased
        assert found_in(path) == []
        assert await storage.traces("bot", "user:1") == []
        assert {entry.key: entry.state async for entry in fsm.find()} == others
    assert found_in(path) == []


async def test_erase_removes_texts_that_a_reader_kept_in_the_wal(path: str) -> None:
    async with SQLiteStorage(path, patience=0.2) as storage:
        fsm = machine(storage)
        await talk(fsm, 1, "SECRET")
        reader = apsw.Connection(path)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM field").fetchall()
        forgotten = await fsm.forget(user=1)
        assert (forgotten, forgotten.erased) == (1, False)
        assert found_in(path) != []
        assert not await storage.erase()
        reader.execute("ROLLBACK")
        reader.close()
        assert await storage.erase()
        assert found_in(path) == []


async def test_forget_succeeds_while_another_program_has_a_long_transaction(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with SQLiteStorage(path, patience=0.2) as storage:
        fsm = machine(storage)
        await talk(fsm, 1, "SECRET")
        other = apsw.Connection(path)

        async def forget(address: Any, **options: Any) -> None:
            await SQLiteStorage.forget(storage, address, **options)
            other.execute("BEGIN IMMEDIATE")

        storage.forget = forget  # type: ignore[method-assign]
        forgotten = await fsm.forget(user=1)
        assert (forgotten, forgotten.erased) == (1, False)
        assert "erase()" in caplog.text
        other.execute("ROLLBACK")
        other.close()
        assert await storage.erase()
        assert found_in(path) == []


async def test_erase_removes_texts_from_free_space_of_an_earlier_release(path: str) -> None:
    async with SQLiteStorage(path) as storage:
        await talk(machine(storage), 2, "plain")
    old = apsw.Connection(path)
    old.execute("PRAGMA secure_delete = 0").fetchall()
    old.execute("INSERT INTO field VALUES ('bot', '(1,1)', 'text', ?)", ("SECRET" * 5000,))
    old.execute("DELETE FROM field WHERE key = '(1,1)'")
    old.close()
    assert found_in(path) == ["bot.db"]
    async with SQLiteStorage(path) as storage:
        assert (await machine(storage).forget(user=1)).erased
        assert found_in(path) == []
        assert await storage.get_data("bot", (2, 2)) == {"text": "plain"}


async def test_forget_does_not_rewrite_a_large_file_but_erase_does(path: str, constants: Constants) -> None:
    constants(quick_erase_bytes=1024)
    async with SQLiteStorage(path, synchronous="NORMAL") as storage:
        fsm = machine(storage)
        await fill(fsm)
        size = Path(path).stat().st_size
        for user in range(1, 5):
            assert not (await fsm.forget(user=user)).erased
        assert Path(path).stat().st_size >= size
        assert Path(f"{path}-wal").stat().st_size == 0
        assert await storage.erase()
        assert found_in(path) == []


async def test_a_storage_in_memory_has_nothing_to_erase() -> None:
    async with SQLiteStorage(":memory:") as storage:
        fsm = machine(storage)
        await talk(fsm, 1, "SECRET")
        assert (await fsm.forget(user=1)).erased
