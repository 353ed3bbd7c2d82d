"""The operations on one key are linearizable, across tasks and processes."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.backends import Backend
from tests.reliability.dose import dose, seeded
from tests.reliability.linear import Op, check
from tests.reliability.workers import Workers

PROCESSES, TASKS, KEYS = 4, 8, 50


async def test_operations_of_several_processes_are_linearizable(shared_backend: Backend, workers: Workers) -> None:
    choose = seeded()
    url = shared_backend.place()
    wanted = dose("OPERATIONS", 2500, 200_000)
    each = wanted // (PROCESSES * TASKS) + 1
    started = [
        workers.start("history", url, tasks=TASKS, each=each, keys=KEYS, seed=choose.randrange(1 << 32))
        for _ in range(PROCESSES)
    ]
    histories: dict[int, list[Op]] = defaultdict(list)
    for worker in started:
        await worker.wait_for("done", timeout=600)
        for _, *fields in worker.reported("op"):
            op = Op(*fields)
            histories[op.key].append(op)
    operations = sum(map(len, histories.values()))
    held = sum(op.held_from is not None for history in histories.values() for op in history)
    print(f"{operations} operations, {held} of them under a claim")
    assert operations >= wanted * 0.8
    assert held >= wanted * 0.05
    for history in histories.values():
        check(history)


def op(kind: str, start: float, end: float, number: int | None, held_from: float | None = None) -> Op:
    return Op(kind, 1, start, end, number, None if number is None else f"w{number}", held_from)


@pytest.mark.parametrize(
    "history",
    [
        [op("merge", 0, 1, 5), op("get", 2, 3, None)],
        [op("merge", 0, 1, 5), op("merge", 2, 3, 6), op("get", 4, 5, 5)],
        [op("merge", 0, 1, 5), op("merge", 2, 9, 6), op("get", 3, 4, 6), op("get", 5, 6, 5)],
        [op("merge", 0, 1, 5), op("delete", 2, 3, 6), op("get", 4, 5, 5)],
        [op("merge", 0, 1, 5), op("delete", 2, 3, 6), op("get", 4, 5, 6)],
        [op("merge", 0, 1, 6), op("merge", 2, 3, 5)],
        [op("merge", 0, 1, 5), op("merge", 0, 1, 5)],
        [op("get", 0, 1, 5), op("merge", 2, 3, 5)],
        [op("get", 0, 1, 7)],
        [op("merge", 3, 4, 5, held_from=1), op("merge", 5, 6, 6, held_from=2)],
        [op("merge", 0, 1, 5), op("nothing", 2, 3, None)],
    ],
)
def test_the_check_rejects_impossible_histories(history: list[Op]) -> None:
    with pytest.raises(AssertionError):
        check(history)


def test_the_check_accepts_possible_histories() -> None:
    check(
        [
            op("get", 0, 1, None),
            op("merge", 0, 5, 5),
            op("get", 1, 2, None),
            op("get", 1, 3, 5),
            op("delete", 6, 9, 6),
            op("get", 7, 8, 5),
            op("get", 7, 8, None),
            op("nothing", 10, 11, 6),
            op("merge", 12, 13, 7, held_from=11.5),
            op("merge", 15, 16, 8, held_from=14),
        ]
    )
