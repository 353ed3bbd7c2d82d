from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

import stepwell
from stepwell.errors import InsideLoop, UsageError


def test_sync_runs_an_awaitable_and_returns_its_result() -> None:
    storage = stepwell.MemoryStorage()
    stepwell.sync(storage.update_data("bot", 1, {"a": 1}))
    assert stepwell.sync(storage.get_data("bot", 1)) == {"a": 1}
    stepwell.sync(storage.close())


def test_sync_raises_the_exception_of_the_awaitable() -> None:
    with pytest.raises(stepwell.StepwellError, match="non-empty"):
        stepwell.sync(stepwell.MemoryStorage().get_state("", 1))


@pytest.mark.parametrize("wrong", [5, None, asyncio.sleep])
def test_sync_refuses_objects_that_are_not_awaitable(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"sync\(\) takes an awaitable"):
        stepwell.sync(wrong)


def test_all_calls_share_one_loop_in_one_thread() -> None:
    async def where() -> tuple[int, str]:
        return id(asyncio.get_running_loop()), threading.current_thread().name

    assert len({stepwell.sync(where()) for _ in range(3)}) == 1
    assert [thread.name for thread in threading.enumerate()].count("stepwell-loop") == 1


async def test_inside_a_running_loop_the_error_says_to_await() -> None:
    storage = stepwell.MemoryStorage()
    with pytest.raises(InsideLoop, match="await"):
        stepwell.sync(storage.get_state("bot", 1))


def test_ctrl_c_cancels_the_work_and_waits_for_its_cleanup() -> None:
    code = """
import asyncio, os, signal, sys, threading, stepwell
async def work():
    try:
        # Until the main thread waits for this coroutine.
        while sys._current_frames()[threading.main_thread().ident].f_code.co_name != "_next":
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.2)
        print("cleaned up", flush=True)
stepwell.sync(work())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert done.stdout == "cleaned up\n"
    assert "KeyboardInterrupt" in done.stderr


def test_ctrl_c_ends_the_wait_even_if_it_does_not_interrupt_it() -> None:
    code = """
import asyncio, os, signal, stepwell
async def work():
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)
stepwell.sync(asyncio.sleep(0))
# The thread of the loop gets the signal, so it does not interrupt the wait of the main thread.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
try:
    stepwell.sync(work())
except KeyboardInterrupt:
    print("back", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "back\n"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_its_own_loop() -> None:
    stepwell.sync(asyncio.sleep(0))
    child = os.fork()
    if child == 0:
        stepwell.sync(asyncio.sleep(0))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_second_ctrl_c_does_not_wait_for_a_long_cleanup() -> None:
    code = """
import asyncio, os, signal, threading, time, stepwell

async def takes_long():
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(60)

def twice():
    for _ in range(2):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=twice, daemon=True).start()
try:
    stepwell.sync(takes_long())
except KeyboardInterrupt:
    print("back", flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "back\n"
