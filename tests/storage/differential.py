"""The same random operations against a storage and the reference: every result is equal."""

from __future__ import annotations

import random
from typing import Any

from stepwell import MemoryStorage, Storage
from stepwell.errors import StepwellError
from stepwell.record import KEEP, Change, Place, Version
from stepwell.storage import ANY, Apply, Claim, Due, Get, Guard, Operation, Query, Release
from stepwell.testing import Clock

BOTS = ["bot", "a/b", 'c\\"/', '/\\"']
NAMES = ["x", "y", "é", "", "$z", 7]
TOKENS = ["A", "B", "C"]
TAGS = ["user:1", "chat:-1", "a\nb", "a\\nb", "\\", ""]


class Script:
    """Draws operations that are likely to meet: few keys, few tokens, bases and versions that were seen."""

    def __init__(self, seed: int, storage: Storage) -> None:
        self.random = random.Random(seed)
        self.storage = storage
        self.bases = [""]
        self.versions = [Version(0, "")]
        self.writes = 0
        self.addresses = [storage.address(bot, key) for bot in BOTS for key in (1, (1, "é/{}"), "k")]

    def operation(self) -> Operation:
        draw = self.random
        address = draw.choice(self.addresses)
        kind = draw.random()
        if kind < 0.15:
            return Get(address, draw.random() < 0.5)
        if kind < 0.35:
            return Claim(address, draw.choice(TOKENS), draw.choice([0.5, 5, 50.25]), draw.random() < 0.2)
        if kind < 0.45:
            return Release(address, draw.choice(TOKENS))
        return Apply(
            address,
            self.change(address),
            self.guard() if draw.random() < 0.7 else None,
            draw.choice(["release", "keep"]),
            draw.choice([0.5, 5.0]),
            draw.random() < 0.5,
        )

    def guard(self) -> Guard:
        draw = self.random
        return Guard(
            draw.choice([*TOKENS, None]),
            draw.choice([None, None, *self.bases[-4:]]),
            draw.choice([None, None, None, None, *self.versions[-2:]]),
        )

    def change(self, address: Any) -> Change:
        draw = self.random
        seal = self.storage.seal(address)
        self.writes += 1
        write = f"w{self.writes}"
        memo = KEEP if draw.random() < 0.8 else seal.seal("m", "", draw.randrange(100))
        if draw.random() < 0.15:
            return Change(write=write, delete=True, forget=draw.random() < 0.3, memo=memo)
        names = list(seal.fields(dict.fromkeys(NAMES)))
        data = {name: "é" * draw.randrange(9) for name in draw.sample(NAMES, draw.randrange(4))}
        parts = {name: seal.seal("p", name, "p" * draw.randrange(9)) for name in draw.sample("pqr", draw.randrange(2))}
        flows = [None, "f", "g"]
        return Change(
            write=write,
            replace=draw.random() < 0.15,
            fresh=draw.random() < 0.2,
            head=KEEP if draw.random() < 0.5 else seal.head(Place(draw.choice(flows), draw.choice(flows))),
            set=seal.fields(data),
            unset=tuple(draw.choices(names, k=draw.randrange(4))),
            tags=KEEP if draw.random() < 0.7 else tuple(draw.sample(TAGS, draw.randrange(3))),
            deadline=draw.choice([KEEP, KEEP, None, 0.0, 3.3, 30.0]),
            expiry=draw.choice([KEEP, KEEP, KEEP, None, 7.7, 70.0]),
            memo=memo,
            parts={**parts, **dict.fromkeys(draw.sample("pqr", draw.randrange(2)))},
            limit=draw.choice([60, 100, 10_000]),
        )

    def saw(self, result: Any) -> None:
        for part in (result, getattr(result, "record", None)):
            if getattr(part, "base", ""):
                self.bases.append(part.base)
            if isinstance(getattr(part, "version", None), Version):
                self.versions.append(part.version)


def comparable(result: Any) -> Any:
    return (type(result), str(result)) if isinstance(result, StepwellError) else result


async def listed(storage: Storage, clock: Clock, limit: int) -> dict[str, Any]:
    """Everything that can be seen without knowing a key."""
    found: dict[str, Any] = {}
    for bot in BOTS:
        namespace = storage.address(bot, 1).namespace
        queries = [Query(namespace, tag=tag) for tag in TAGS]
        queries += [Query(namespace, flow, state) for flow in (ANY, None, "f") for state in (ANY, None, "g")]
        for query in queries:
            after, records, pages = None, [], 0
            while pages == 0 or after is not None:
                page, after = await storage.page(query, after, limit)
                assert len(page) <= limit
                records += page
                pages += 1
            addresses = [address for address, _ in records]
            assert len(set(addresses)) == len(addresses)
            found[f"{query}"] = sorted(records, key=lambda record: record[0])
        for tag in TAGS:
            found[f"{bot} traces {tag}"] = await storage.traces(namespace, tag)
        due: list[Due] = []
        while page := await storage.due(namespace, before=clock() + 1, limit=limit, after=due[-1] if due else None):
            due += page
        found[f"{bot} due"] = due
    return found


async def compare(storage: Storage, clock: Clock, seed: int, steps: int, batch: int = 6) -> None:
    """Fails with the seed at the first result that differs from the reference's."""
    reference = MemoryStorage(clock=clock, sweep_every=None)
    script = Script(seed, reference)
    for step in range(steps):
        operations = [script.operation() for _ in range(script.random.randrange(1, batch))]
        expected = [comparable(result) for result in await reference.run(operations)]
        actual = [comparable(result) for result in await storage.run(operations)]
        for operation, mine, theirs in zip(operations, expected, actual, strict=True):
            assert mine == theirs, f"seed {seed}, step {step}: {operation}\n{mine}\n{theirs}"
            script.saw(mine)
        clock.advance(script.random.choice([0.0, 0.0, 0.1, 1.0, 3.3, 20.0]))
        # The reference drops what is of no use any more when it is next looked at.
        looks = [Get(address) for address in script.addresses]
        assert await reference.run(looks) == await storage.run(looks), f"seed {seed}, step {step}"
        if script.random.random() < 0.05:
            limit = script.random.choice([1, 2, 100])
            assert await listed(reference, clock, limit) == await listed(storage, clock, limit), f"seed {seed}, {step}"
        if script.random.random() < 0.03:
            mine, theirs = await reference.sweep(), await storage.sweep()
            assert sorted(mine.expired) == sorted(theirs.expired), f"seed {seed}, step {step}"
