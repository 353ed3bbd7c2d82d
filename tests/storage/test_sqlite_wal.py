"""A damaged WAL: SQLite drops the writes behind the damage without an error, so opening the file warns."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stepwell import SQLiteStorage, State
from stepwell.operate.doctor import diagnose

BOT = "bot"
HEADER, FRAME = 32, 24 + 1024
WRITES = 20
#: A process that writes, and is killed by the last line.
KILLED = """
import asyncio, os, sys
import apsw
from stepwell import SQLiteStorage, State
from tests.insides import file_of

async def main():
    storage = SQLiteStorage(sys.argv[1], sweep_every=None)
    await storage.open()
    # The tables are in the file, and the records in the WAL.
    file_of(storage).checkpoint(cut=True)
    for number in range(20):
        await storage.set_state("bot", number, State("flow", "state", {"number": number}))
    {more}
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def killed(folder: Path, more: str = "") -> Path:
    """Return the file of a killed process."""
    path = folder / "bot.db"
    code = KILLED.replace("{more}", textwrap.indent(textwrap.dedent(more).strip(), "    ").strip())
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    path.with_name("bot.db-shm").unlink()
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed(tmp_path_factory.mktemp("killed"))


def damaged(original: Path, folder: Path, at: int) -> Path:
    """Return a copy of the file with a flipped bit in its WAL."""
    shutil.copy(original, folder)
    wal = bytearray(original.with_name("bot.db-wal").read_bytes())
    assert (len(wal) - HEADER) % FRAME == 0
    wal[at] ^= 4
    (folder / "bot.db-wal").write_bytes(wal)
    return folder / "bot.db"


async def survivors(path: Path) -> int:
    """Return how many records can be read. They are the first ones."""
    async with SQLiteStorage(str(path)) as storage:
        states = [await storage.get_state(BOT, number) for number in range(WRITES)]
    count = sum(state is not None for state in states)
    assert states == [State("flow", "state", {"number": number}) for number in range(count)] + [None] * (WRITES - count)
    return count


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def test_writes_behind_a_flipped_bit_in_the_wal_are_counted_in_a_warning(
    original: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = (original.with_name("bot.db-wal").stat().st_size - HEADER) // FRAME
    frame = HEADER + frames // 2 * FRAME
    # A bit of a page, of a page number, of a salt and of a checksum of a frame; then of the header of the WAL.
    for at in (frame + 500, frame + 3, frame + 9, frame + 17, 9, 17, 25):
        caplog.clear()
        survived = await survivors(damaged(original, tmp_path, at))
        assert survived < WRITES
        [warning] = warnings(caplog)
        assert warning.startswith(f"{tmp_path}/bot.db-wal is damaged: SQLite ignores the ")
        if at > HEADER:
            # Those behind the damaged frame, whose own transaction may have ended with it.
            assert survived > 0
            behind = frames - frames // 2 - 1
            assert f"ignores the {behind} intact frames" in warning
            assert any(f"with {WRITES - survived - more} commits" in warning for more in (0, 1))
        else:
            assert survived == 0
            assert f"with {WRITES} commits" in warning


@pytest.mark.parametrize(
    "more",
    [
        "",
        # Frames of an earlier WAL are behind the new ones.
        """
        file_of(storage).checkpoint()
        await storage.set_state("bot", 19, State("flow", "state", {"number": 19}))
        """,
        # Frames of a transaction that was rolled back are behind a shorter one.
        """
        await storage.close()
        other = apsw.Connection(sys.argv[1])
        other.execute("PRAGMA cache_size = 5; BEGIN; CREATE TABLE t (x); INSERT INTO t VALUES (zeroblob(100000))")
        other.execute("ROLLBACK; BEGIN; CREATE TABLE t (x); DROP TABLE t; COMMIT")
        """,
    ],
    ids=["killed", "an earlier WAL", "rolled back"],
)
async def test_a_sound_wal_of_a_killed_process_gets_no_warning(
    more: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = killed(tmp_path, more)
    assert path.with_name("bot.db-wal").stat().st_size > 50_000
    assert await survivors(path) == WRITES
    assert warnings(caplog) == []


async def test_doctor_reports_a_damaged_wal(original: Path, tmp_path: Path) -> None:
    async with SQLiteStorage(str(damaged(original, tmp_path, HEADER + 20 * FRAME + 500))) as storage:
        found = [each async for each in diagnose(storage) if each.check == "WAL"]
    assert [each.level for each in found] == ["fail"]
    assert "acknowledged writes are probably lost" in found[0].advice
