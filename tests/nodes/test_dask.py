"""Batches on Dask: a scheduler and two worker processes from the command line, one of them killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.nodes.dask_program import GATED, ITEMS
from tests.servers.process import Process
from tests.until import wait_until


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(*command: str) -> Process:
        log = tmp_path / f"{len(started)}.log"
        started.append(Process([sys.executable, "-m", "dask", *command, "--no-dashboard"], log))
        return started[-1]

    yield start
    for process in reversed(started):
        process.kill()


def wait_for(happened: Callable[[], bool], program: subprocess.Popen[str]) -> None:
    wait_until(lambda: happened() or program.poll() is not None)
    assert happened(), program.communicate()


def test_a_batch_goes_on_when_one_of_two_dask_workers_is_killed(tmp_path: Path, start: Callable[..., Process]) -> None:
    file = str(tmp_path / "scheduler.json")
    start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", file)
    worker = ["worker", "--scheduler-file", file, "--nthreads", "1", "--no-nanny", "--local-directory", str(tmp_path)]
    first, _ = start(*worker), start(*worker)
    folder = tmp_path / "items"
    folder.mkdir()
    program = Path(__file__).with_name("dask_program.py")

    def begun(pid: int | None = None) -> set[int]:
        names = [path.name.split(".") for path in folder.glob("*.*")]
        return {int(item) for who, item in names if int(item) >= GATED and (pid is None or int(who) == pid)}

    with subprocess.Popen([sys.executable, str(program), file, str(folder)], stdout=subprocess.PIPE, text=True) as run:
        # Both workers are at the gate, each with one item.
        wait_for(lambda: len(begun()) == 2, run)
        lost = begun(first.pid)
        assert len(lost) == 1
        first.kill()
        (folder / "gate").touch()
        output, _ = run.communicate(timeout=60)
    results = json.loads(output)
    assert results[7] == ["Failed", "r/SquareOnDask/1/7", 0]
    others = [result for index, result in enumerate(results) if index != 7]
    assert [value for _, value, _ in others] == [n * n for n in range(ITEMS) if n != 7]
    assert {kind for kind, _, _ in others} == {"Square"}
    (item,) = lost
    assert results[item][2] != first.pid
