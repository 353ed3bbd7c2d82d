"""The simulated worlds find planted bugs: of the table in docs/simulator.md, some whose seeds are quick."""

from __future__ import annotations

import pytest

from tests.simulation.sabotage import BUGS, fails
from tests.simulation.seeds import failure_of

#: The seeds of the table.
SEEDS = {
    "a stale holder may write": 7,
    "a batch is applied again, without its journal": 1,
    "an append without an answer is made again": 7,
    "a timer is judged by the clock of its process": 7,
    "an update is finished before it is handled": 7,
}


@pytest.mark.parametrize("name", SEEDS)
def test_the_seed_of_a_planted_bug_fails_with_it_and_passes_without(name: str) -> None:
    bug = next(bug for bug in BUGS if bug.name == name)
    assert fails(bug, SEEDS[name]) is not None
    assert failure_of(bug.world(SEEDS[name])) is None
