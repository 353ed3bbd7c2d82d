"""Simulated worlds: whole systems in one thread, with faults at every step, from seeds that repeat exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell.storage import reference
from stepwell.testing.simulated_store import NETWORK_FAULTS, SimulatedStore
from tests.reliability.dose import dose
from tests.simulation.bots import PollingBot
from tests.simulation.faults import TELEGRAM_FAULTS, Fault, shrunk
from tests.simulation.records import Records
from tests.simulation.seeds import WORLDS, explain, failure_of, run_seeds, world_of

ROOT = Path(__file__).parents[2]
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_in_simulated_worlds(part: int) -> None:
    """Records, bots, turns and runs: see the worlds in tests/simulation for what each of them checks."""
    seeds = dose("SIMULATED_SEEDS", 800, 100_000)
    tally = run_seeds(range(part, seeds, PARTS))
    print(f"{tally}")
    assert [explain(seed) for seed in tally.failed[:3]] == []
    happened = {kind for kind, count in tally.faults.items() if count >= seeds / 200}
    assert happened >= {"kill", "pause", "stop", *NETWORK_FAULTS}, "a run in which nothing happens proves nothing"
    assert any(tally.faults[kind] for kind in TELEGRAM_FAULTS)


def test_a_seed_gives_the_same_run_in_another_process_whatever_the_hashes_of_texts_are() -> None:
    seeds = range(len(WORLDS))
    program = f"from tests.reliability.test_simulator import checksums; print(checksums(range({len(seeds)})))"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(checksums(seeds))


def checksums(seeds: range) -> list[str]:
    found = []
    for seed in seeds:
        world = world_of(seed)
        assert failure_of(world) is None
        found.append(world.simulation.checksum)
    return found


def _apply_again(self: SimulatedStore, process: Any, operations: Any) -> Any:
    results = [self.memory._do(operation) for operation in operations]
    for watcher in self.watchers:
        watcher(process, operations, results)
    return results


#: Bugs that the worlds must find, by name: the object and its attribute, and the bug.
BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a stale holder may write": (
        reference.Cell,
        "_refused",
        lambda self, guard, address, now: self.refusal(guard, address, now),
    ),
    "a batch is applied again": (SimulatedStore, "_apply", _apply_again),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found_and_its_seed_is_explained_in_one_line(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BUGS[bug])
    seed = next(seed for seed in range(0, 4000, len(WORLDS)) if failure_of(Records(seed)) is not None)
    line = explain(seed)
    assert line.startswith(f"make simulate SEED={seed}  # Records: AssertionError")
    assert "\n" not in line
    few = line.rpartition("suffice: ")[2].split("; ")
    assert set(few) <= set(map(str, Records(seed).faults)) | {"none"}


def test_the_answer_of_a_timer_does_not_overtake_that_of_an_update_whose_commit_is_unknown() -> None:
    for seed in range(40):
        world = PollingBot(seed, [Fault("silent", "bot", 5)])
        world.patience = 0.01
        world.run()


def test_a_schedule_is_shrunk_to_the_faults_that_matter() -> None:
    faults = [Fault("kill", "one", float(at)) for at in range(20)]

    def fails(some: list[Fault]) -> bool:
        return {3.0, 17.0} <= {fault.at for fault in some}

    assert [fault.at for fault in shrunk(faults, fails)] == [3.0, 17.0]
    assert shrunk(faults, lambda some: True) == []
