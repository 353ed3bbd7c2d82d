"""Leases of processes that have died on this machine: ended at once, and never those of anybody else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell import Storage, open_storage
from stepwell.errors import Busy
from stepwell.slot import Slot, process
from stepwell.slot.process import has_died, process_mark
from stepwell.storage import Claim, Release
from tests.backends import Backend

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are recognised on Linux only")


def started(text: str = "import time; time.sleep(600)") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", text])


def mark_of(pid: int) -> str:
    """Return the mark that this process has."""
    place = process_mark().partition(".")[0]
    return f"{place}.{pid}.{process._started(pid)[1]}"


@pytest.fixture
async def storage(shared_backend: Backend) -> Storage:
    storage = shared_backend.storage()
    await storage.open()
    return storage


@pytest.fixture
def dead() -> str:
    """Return the token of a holder whose process was killed."""
    child = started()
    mark = mark_of(child.pid)
    child.kill()
    child.wait()
    return f"token{mark}"


def test_a_process_has_died_once_it_was_killed_even_before_its_parent_has_waited_for_it() -> None:
    child = started()
    token = f"token{mark_of(child.pid)}"
    assert not has_died(token)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert has_died(token)
    child.wait()
    assert has_died(token)


def test_another_process_that_has_got_its_id_is_not_taken_for_it() -> None:
    place, pid, began = process_mark().split(".")
    assert not has_died(f"token{place}.{pid}.{began}")
    assert has_died(f"token{place}.{pid}.{int(began) - 1}")


@pytest.mark.parametrize(
    "token", ["", "token", "token~", "token~1.2", "token~x.y.z", "~..", "a~b~c.1.99999999999999999999"]
)
def test_a_token_that_names_no_process_is_never_that_of_a_dead_one(token: str) -> None:
    assert not has_died(token)


@pytest.mark.parametrize("other", ["boot", "namespace", "name"])
def test_a_process_of_another_boot_container_or_machine_is_never_said_to_have_died(
    other: str, dead: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert has_died(dead)
    if other == "boot":
        real, fake = process._PROC, tmp_path
        (fake / "sys/kernel/random").mkdir(parents=True)
        (fake / "sys/kernel/random/boot_id").write_text("another")
        for name in ("self", str(os.getpid())):
            (fake / name).symlink_to(real / str(os.getpid()))
        monkeypatch.setattr(process, "_PROC", fake)
    elif other == "namespace":
        monkeypatch.setattr(Path, "readlink", lambda path: Path("pid:[1]"))
    else:
        monkeypatch.setattr(process.socket, "gethostname", lambda: "another")
    monkeypatch.setattr(process, "_known", (0, ""))
    assert process_mark()
    assert not has_died(dead)


def test_without_proc_tokens_name_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dead: str) -> None:
    monkeypatch.setattr(process, "_PROC", tmp_path)
    monkeypatch.setattr(process, "_known", (0, ""))
    assert process_mark() == ""
    assert not has_died(dead)


def test_a_forked_process_has_a_mark_of_its_own() -> None:
    mine = process_mark()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, process_mark().encode())
        os._exit(0)
    os.waitpid(child, 0)
    other = os.read(reader, 200).decode()
    os.close(reader), os.close(writer)
    assert other.startswith(mine.partition(".")[0])
    assert other != mine


@pytest.mark.parametrize("wait", [0, 5])
async def test_the_lease_of_a_dead_process_is_not_waited_for(storage: Storage, dead: str, wait: float) -> None:
    address = storage.address("bot", 1)
    await storage.perform(Claim(address, dead, 600))
    async with Slot(storage, "bot", 1, wait=wait) as slot:
        slot.data["a"] = 1
        await slot.commit()
    assert await storage.get_data("bot", 1) == {"a": 1}


async def test_the_lease_of_a_running_process_and_of_one_elsewhere_are_waited_for(storage: Storage, dead: str) -> None:
    elsewhere = dead.replace("~", "~0")
    for key, token in enumerate((f"token{process_mark()}", elsewhere, "token")):
        await storage.perform(Claim(storage.address("bot", key), token, 600))
        with pytest.raises(Busy):
            async with Slot(storage, "bot", key, wait=0.3):
                pass
        assert (await storage.beside(storage.address("bot", key))).holder == token


async def test_a_holder_that_came_after_a_dead_one_keeps_its_lease(
    storage: Storage, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiter has seen the dead holder, and then another one is quicker."""
    address = storage.address("bot", 1)
    await storage.perform(Claim(address, dead, 600))
    read = storage.beside

    async def overtaken(_: object) -> object:
        found = await read(address)
        monkeypatch.undo()
        await storage.perform(Release(address, dead))
        await storage.perform(Claim(address, "quicker", 600))
        return found

    monkeypatch.setattr(storage, "beside", overtaken)
    with pytest.raises(Busy):
        async with Slot(storage, "bot", 1, wait=0.2):
            pass
    assert (await storage.beside(address)).holder == "quicker"


async def test_a_conversation_goes_on_at_once_after_its_process_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bot.db"
    holds = (
        "import asyncio, time\n"
        "from stepwell import open_storage\n"
        "from stepwell.slot import Slot\n"
        "async def main():\n"
        f"    async with Slot(open_storage({url!r}), 'bot', 1, lease=600):\n"
        "        print('held', flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    child = subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert await asyncio.to_thread(child.stdout.readline) == b"held\n"
    async with open_storage(url) as storage:
        with pytest.raises(Busy):
            async with Slot(storage, "bot", 1, wait=0.2):
                pass
        child.kill()
        child.wait()
        child.stdout.close()
        async with asyncio.timeout(10), Slot(storage, "bot", 1) as slot:
            slot.data["a"] = 1
            await slot.commit()
