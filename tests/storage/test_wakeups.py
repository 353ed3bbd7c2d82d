"""Wake-ups within one process."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from stepwell import MemoryStorage, SQLiteStorage
from stepwell.errors import InvalidOption


async def test_a_notice_of_another_thread_wakes_the_listener_in_its_own_loop() -> None:
    storage = MemoryStorage()
    woken: asyncio.Queue[int] = asyncio.Queue()
    end = storage.listen("runs:f", lambda: woken.put_nowait(threading.get_ident()))
    await asyncio.to_thread(asyncio.run, storage.notify("runs:f"))
    assert await asyncio.wait_for(woken.get(), 5) == threading.get_ident()
    end()
    await storage.notify("runs:f")
    await asyncio.sleep(0)
    assert woken.empty()


async def test_a_listener_that_is_removed_is_not_called_for_an_earlier_notice() -> None:
    storage = MemoryStorage()
    woken = asyncio.Event()
    end = storage.listen("t", woken.set)
    await storage.notify("t")
    end()
    await asyncio.sleep(0)
    assert not woken.is_set()


async def test_two_storages_in_memory_do_not_wake_each_other() -> None:
    one, other = MemoryStorage(), MemoryStorage()
    woken: list[str] = []
    end = one.listen("t", lambda: woken.append("one"))
    await other.notify("t")
    await asyncio.sleep(0)
    assert woken == []
    await one.notify("t")
    await asyncio.sleep(0)
    assert woken == ["one"]
    end()
    end()


async def test_storages_of_one_sqlite_file_wake_each_other(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    one, other = SQLiteStorage(str(tmp_path / "bot.db")), SQLiteStorage(str(tmp_path / "link" / "bot.db"))
    memory = SQLiteStorage(":memory:")
    woken: list[str] = []
    ends = [storage.listen("t", lambda: woken.append("woken")) for storage in (one, memory)]
    await other.notify("t")
    await SQLiteStorage(":memory:").notify("t")
    await asyncio.sleep(0)
    assert woken == ["woken"]
    for end in ends:
        end()


async def test_a_listener_left_in_a_closed_loop_does_not_stop_the_others() -> None:
    storage = MemoryStorage()

    async def leave() -> None:
        storage.listen("t", lambda: None)

    await asyncio.to_thread(asyncio.run, leave())
    woken = asyncio.Event()
    storage.listen("t", woken.set)
    await storage.notify("t")
    await asyncio.wait_for(woken.wait(), 5)


@pytest.mark.parametrize("topic", ["", "x" * 201, "é" * 101, None])
async def test_a_topic_has_at_most_200_bytes(topic: str) -> None:
    storage = MemoryStorage()
    with pytest.raises(InvalidOption, match="200 bytes"):
        await storage.notify(topic)
    with pytest.raises(InvalidOption, match="200 bytes"):
        storage.listen(topic, lambda: None)
