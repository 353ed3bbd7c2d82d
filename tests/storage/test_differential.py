"""Every backend returns the same result as the memory backend for each operation."""

from __future__ import annotations

import os
import random
from typing import Any

from stepwell import MemoryStorage, Storage
from stepwell.errors import StepwellError
from stepwell.record import DAY, KEEP, Address, Change, Head, Queue
from stepwell.storage import ANY, Apply, Claim, Claimed, Get, Guard, Operation, Query, Range, Release
from stepwell.testing import Clock
from tests.backends import Backend

ROUNDS, STEPS = (200, 400) if os.environ.get("STEPWELL_DOSE") == "large" else (3, 150)

ADDRESSES = [Address(namespace, key) for namespace in ("a", 'b\\"é/') for key in ("(1,1)", '"k"', '("x",None)')]
NAMES = ["count", "größe", "$[1]", "long", "x" * 40]
TEXTS = ["00000000 1", 'abcdef01 "é\U0001f600"', "12345678 " + "y" * 300, "00000000 " + "z" * 3000]


PARTS = ["p1", "p10", "p2", "P", "ö", "\U0001f600"]
TOKENS = ["t1", "t2"]
QUEUES = [Queue("q"), Queue("q", 5), Queue("q/1", -5), Queue("q/ü"), Queue("Q")]


class Script:
    """Random operations that often conflict: few addresses, few tokens, guards that were valid once."""

    def __init__(self, random: random.Random, queues: bool) -> None:
        self.random = random
        #: Whether the backend has queues.
        self.queues = queues
        self.writes = 0
        self.bases = [""]
        self.versions: list[Any] = []

    def operation(self) -> Operation:
        pick = self.random
        address = pick.choice(ADDRESSES)
        token = pick.choice(TOKENS)
        kind = pick.random()
        if kind < 0.15:
            return Get(address, self.parts())
        if kind < 0.35:
            return Claim(address, token, pick.choice([5.0, 30.0]), renew=pick.random() < 0.3)
        if kind < 0.42:
            return Release(address, token)
        return Apply(
            address,
            self.change(),
            self.guard(token),
            pick.choice(["release", "keep"]),
            pick.choice([5.0, 30.0]),
            returning=pick.random() < 0.5,
        )

    def parts(self) -> bool | Range | tuple[str, ...]:
        pick = self.random
        kind = pick.randrange(4)
        if kind < 2:
            return kind == 0
        return self.range() if kind == 2 else tuple(pick.sample([*PARTS, "never"], pick.randrange(4)))

    def range(self) -> Range:
        pick = self.random
        ends = [pick.choice([None, *PARTS, "p", "z"]) for _ in range(2)]
        return Range(*ends, pick.choice([None, 0, 1, 3]), pick.random() < 0.5)

    def guard(self, token: str) -> Guard | None:
        pick = self.random
        if pick.random() < 0.4:
            return None
        return Guard(
            token if pick.random() < 0.7 else None,
            pick.choice(self.bases[-4:]) if pick.random() < 0.3 else None,
            pick.choice(self.versions[-4:]) if self.versions and pick.random() < 0.2 else None,
            absent=self.queues and pick.random() < 0.15,
        )

    def change(self) -> Change:
        pick = self.random
        self.writes += 1
        write = f"w{self.writes}"
        memo = f"m {self.writes}" if pick.random() < 0.3 else KEEP
        if pick.random() < 0.2:
            return Change(write=write, delete=True, forget=pick.random() < 0.2, memo=memo)
        flow, state = pick.choice([None, "f", "g"]), pick.choice([None, "s", "t"])
        return Change(
            write=write,
            replace=pick.random() < 0.2,
            fresh=pick.random() < 0.3,
            head=Head(flow, state, f"head {flow} {state}") if pick.random() < 0.4 else KEEP,
            set={name: pick.choice(TEXTS) for name in pick.sample(NAMES, pick.randrange(3))},
            unset=tuple(pick.sample(NAMES, pick.randrange(2))),
            tags=tuple(pick.sample(["u1", "u2", "ü", "a b"], pick.randrange(3))) if pick.random() < 0.3 else KEEP,
            deadline=pick.choice([None, 3.0, 20.0, 100.0]) if pick.random() < 0.4 else KEEP,
            expiry=pick.choice([None, 10.0, 60.0]) if pick.random() < 0.4 else KEEP,
            memo=memo,
            parts={name: pick.choice([None, *TEXTS]) for name in pick.sample(PARTS, pick.randrange(4))},
            limit=pick.choice([2000, 6000, 100_000]),
            queue=pick.choice([None, *QUEUES]) if self.queues and pick.random() < 0.3 else KEEP,
            drop=self.range() if pick.random() < 0.2 else None,
        )

    def learn(self, result: Any) -> None:
        if isinstance(result, Claimed):
            self.bases.append(result.base)
        if getattr(result, "version", None) is not None:
            self.versions.append(result.version)
            self.bases.append(result.base)


async def test_any_sequence_of_operations_has_the_results_of_memory(backend: Backend) -> None:
    seed = int(os.environ.get("STEPWELL_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"STEPWELL_SEED={seed}")
    succeeded = 0
    for number in range(ROUNDS):
        clock = Clock()
        theirs = backend.storage(clock=clock, sweep_every=None)
        async with MemoryStorage(clock=clock, sweep_every=None) as ours, theirs:
            queues = type(theirs).queued is not Storage.queued
            succeeded += await play(Script(random.Random(seed + number), queues), clock, ours, theirs)
    assert succeeded > ROUNDS * STEPS / 2


async def play(script: Script, clock: Clock, ours: Storage, theirs: Storage) -> int:
    succeeded = 0
    for _ in range(STEPS):
        clock.advance(script.random.choice([0.0, 0.001, 1.0, 7.5]))
        batch = [script.operation() for _ in range(script.random.choice([1, 1, 1, 2, 5]))]
        batch = [each for operation in batch for each in unheld(operation)]
        expected = await ours.run(batch)
        if len(batch) == 1 and script.random.random() < 0.7:
            found = [await performed(theirs, batch[0])]
        else:
            found = await theirs.run(batch)
        for operation, one, other in zip(batch, expected, found, strict=True):
            assert plain(one, operation) == plain(other, operation), operation
            script.learn(one)
            succeeded += not isinstance(one, StepwellError)
        if script.random.random() < 0.05:
            await compare_lists(script.random, ours, theirs, script.queues)
        if script.random.random() < 0.03:
            clock.advance(script.random.choice([0.0, 100.0, DAY + 1]))
            await compare_sweeps(ours, theirs)
    return succeeded


def unheld(operation: Operation) -> list[Operation]:
    """Release the address before ``forget``: backends differ in when they drop the base that a holder keeps."""
    if not isinstance(operation, Apply) or not operation.change.forget:
        return [operation]
    if operation.guard is not None and operation.guard.token is not None:
        return [operation]
    return [*(Release(operation.address, token) for token in TOKENS), operation]


async def performed(storage: Storage, operation: Operation) -> Any:
    try:
        return await storage.perform(operation)
    except StepwellError as error:
        return error


async def compare_lists(pick: random.Random, ours: Storage, theirs: Storage, queues: bool) -> None:
    namespace = pick.choice(ADDRESSES).namespace
    query = Query(
        namespace,
        pick.choice([ANY, None, "f"]),
        pick.choice([ANY, None, "s"]),
        pick.choice([None, None, "u1", "ü"]),
    )
    size = pick.choice([1, 2, 100])
    assert await pages(ours, query, size) == await pages(theirs, query, size), query
    tag = pick.choice(["u1", "ü", "a b"])
    traces = set(await theirs.traces(namespace, tag))
    # Memory removes an old tombstone at the next operation, other backends at the next sweep.
    assert traces >= set(await ours.traces(namespace, tag))
    before = pick.choice([None, 1_700_000_050.0, 2e9])
    after = None
    flow = pick.choice([ANY, None, "f"]) if queues else ANY
    while expected := await ours.due(namespace, before=before, limit=2, after=after, flow=flow):
        assert expected == await theirs.due(namespace, before=before, limit=2, after=after, flow=flow)
        after = expected[-1]
    assert await theirs.due(namespace, before=before, limit=2, after=after, flow=flow) == []
    if queues:
        name, prefix, limit = pick.choice(QUEUES).name, pick.choice(["", "q", "q/"]), pick.choice([1, 2, 100])
        assert await ours.queued(namespace, name, limit=limit) == await theirs.queued(namespace, name, limit=limit)
        for after_name in ("", "q"):
            names = [
                await each.queues(namespace, prefix=prefix, after=after_name, limit=limit) for each in (ours, theirs)
            ]
            assert names[0] == names[1]


async def pages(storage: Storage, query: Query, size: int) -> list[Any]:
    found: list[Any] = []
    after: Any = None
    while True:
        page = await storage.page(query, after, size)
        assert len(page.records) <= size
        found += [(address, plain(stored)) for address, stored in page.records]
        after = page.after
        if after is None:
            return sorted(found)


async def compare_sweeps(ours: Storage, theirs: Storage) -> None:
    expected, found = await ours.sweep(), await theirs.sweep()
    assert sorted(expected.expired, key=str) == sorted(found.expired, key=str)
    # Backends remove old leases and tombstones at different times: by a sweep, an operation or a server's TTL.
    assert found.removed >= len(found.expired)
    assert (await theirs.sweep()).removed == 0
    for namespace in {address.namespace for address in ADDRESSES}:
        for tag in ("u1", "u2", "ü", "a b"):
            assert await ours.traces(namespace, tag) == sorted(await theirs.traces(namespace, tag))


def plain(result: Any, operation: Any = None) -> Any:
    if isinstance(result, StepwellError):
        return type(result), str(result)
    return repr_of(result, isinstance(operation, Get) and isinstance(operation.parts, Range))


def repr_of(result: Any, ordered: bool) -> str:
    # The order of fields is not promised.
    for record in (result, getattr(result, "record", None)):
        if hasattr(record, "fields"):
            record.fields = dict(sorted(record.fields.items()))
            if record.parts is not None and not ordered:
                record.parts = dict(sorted(record.parts.items()))
    return repr(result)
