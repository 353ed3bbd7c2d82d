from __future__ import annotations

import asyncio
import os
import threading

import pytest

import stepwell
from stepwell.errors import InsideLoop


def test_sync_runs_an_awaitable_and_gives_its_result() -> None:
    storage = stepwell.MemoryStorage()
    stepwell.sync(storage.update_data("bot", 1, {"a": 1}))
    assert stepwell.sync(storage.get_data("bot", 1)) == {"a": 1}
    stepwell.sync(storage.close())


def test_sync_raises_what_the_awaitable_raises() -> None:
    with pytest.raises(stepwell.StepwellError, match="non-empty"):
        stepwell.sync(stepwell.MemoryStorage().get_state("", 1))


def test_all_calls_share_one_loop_in_one_thread() -> None:
    async def where() -> tuple[int, str]:
        return id(asyncio.get_running_loop()), threading.current_thread().name

    assert len({stepwell.sync(where()) for _ in range(3)}) == 1
    assert [thread.name for thread in threading.enumerate()].count("stepwell-loop") == 1


async def test_inside_a_running_loop_it_says_to_await() -> None:
    storage = stepwell.MemoryStorage()
    with pytest.raises(InsideLoop, match="await"):
        stepwell.sync(storage.get_state("bot", 1))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    stepwell.sync(asyncio.sleep(0))
    child = os.fork()
    if child == 0:
        stepwell.sync(asyncio.sleep(0))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
