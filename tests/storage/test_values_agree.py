"""Values of every supported type are decoded equal on every backend."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import os
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic

from stepwell import State, record_type
from tests.backends import Backend

RECORDS = 1000


@record_type(name="agree.Colour")
class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


@record_type(name="agree.Point")
@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    label: str | None = None


@record_type(name="agree.Item")
class Item(msgspec.Struct, frozen=True):
    name: str
    price: float


@record_type(name="agree.Person")
class Person(pydantic.BaseModel):
    name: str
    age: int


TEXTS = ["", "a", "NUL \0 inside", "\U0001f600", "é\u2028", '"quoted\\"', "$tag", "line\nbreak", "x" * 3000]
#: Names of flows and states have no control characters.
NAMES = [text for text in TEXTS[1:8] if text.isprintable()]
ZONES = [None, dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), ZoneInfo("Europe/Berlin")]

Make = Callable[[random.Random], Any]


def _moment(pick: random.Random) -> dt.datetime:
    moment = dt.datetime(pick.randint(1, 9998), pick.randint(1, 12), pick.randint(1, 28), pick.randint(0, 23))
    return moment.replace(microsecond=pick.randint(0, 999_999), tzinfo=pick.choice(ZONES), fold=pick.randint(0, 1))


FLAT: list[Make] = [
    lambda pick: None,
    lambda pick: pick.random() < 0.5,
    lambda pick: pick.choice([0, -1, 2**53 + 1, 2**63, -(2**63), 2**64, 10**40, pick.randint(-(10**9), 10**9)]),
    lambda pick: pick.choice([0.0, -0.0, 1e16, 1e-300, 1.7976931348623157e308, 5e-324, pick.uniform(-1e9, 1e9)]),
    lambda pick: pick.choice(TEXTS),
    lambda pick: pick.randbytes(pick.randint(0, 20)),
    _moment,
    lambda pick: _moment(pick).date(),
    lambda pick: _moment(pick).time(),
    lambda pick: dt.timedelta(pick.randint(-999, 999), pick.randint(0, 86399), pick.randint(0, 999_999)),
    lambda pick: Decimal(pick.choice(["0", "-0", "1.10", "1E+50", "Infinity", str(pick.uniform(-9, 9))])),
    lambda pick: UUID(int=pick.getrandbits(128)),
    lambda pick: pick.choice(list(Colour)),
    lambda pick: Point(pick.randint(0, 9), pick.choice([None, *TEXTS])),
]
DEEP: list[Callable[[random.Random, int], Any]] = [
    lambda pick, depth: [value(pick, depth) for _ in range(pick.randint(0, 3))],
    lambda pick, depth: tuple(value(pick, depth) for _ in range(pick.randint(0, 3))),
    lambda pick, depth: {flat(pick) for _ in range(pick.randint(0, 3))},
    lambda pick, depth: frozenset(flat(pick) for _ in range(pick.randint(0, 3))),
    lambda pick, depth: {flat(pick): value(pick, depth) for _ in range(pick.randint(0, 3))},
    lambda pick, depth: {pick.choice(TEXTS): value(pick, depth) for _ in range(pick.randint(0, 3))},
    lambda pick, depth: Item(pick.choice(TEXTS), pick.uniform(0, 9)),
    lambda pick, depth: Person(name=pick.choice(TEXTS), age=pick.randint(0, 99)),
]


def flat(pick: random.Random) -> Any:
    return pick.choice(FLAT)(pick)


def value(pick: random.Random, depth: int = 3) -> Any:
    return flat(pick) if depth == 0 or pick.random() < 0.6 else pick.choice(DEEP)(pick, depth - 1)


def record(pick: random.Random) -> State:
    names = [pick.choice(["name", "größe", "a b", *TEXTS[:8], 7, None, (1, "x")]) for _ in range(pick.randint(0, 6))]
    return State(
        pick.choice([None, "form", *NAMES]),
        pick.choice([None, "step", *NAMES]),
        {name: value(pick) for name in names},
    )


def exact(found: Any) -> Any:
    """Return a form that differs where ``==`` does not: 1, 1.0 and True, 0.0 and -0.0, the order of a dict."""
    kind = type(found)
    if kind is dict:
        return kind, [(exact(key), exact(item)) for key, item in found.items()]
    if kind in (list, tuple):
        return kind, [exact(item) for item in found]
    if kind in (set, frozenset):
        return kind, sorted((exact(item) for item in found), key=repr)
    return kind, repr(found), getattr(found, "fold", None)


async def test_a_thousand_random_records_of_every_type_are_read_back_identical(backend: Backend) -> None:
    seed = int(os.environ.get("STEPWELL_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"STEPWELL_SEED={seed}")
    pick = random.Random(seed)
    corpus = [record(pick) for _ in range(RECORDS)]
    kinds = {type(item) for state in corpus for item in state.data.values()}
    assert len(kinds) >= 20, f"a corpus of every type has more than {kinds}"
    url = backend.place()
    storage = backend.storage(url)
    await asyncio.gather(*(storage.set_state("bot", number, state) for number, state in enumerate(corpus)))
    if backend.shared:
        # A new storage object has nothing cached.
        await storage.close()
        storage = backend.storage(url)
    found = await asyncio.gather(*(storage.get_state("bot", number) for number in range(RECORDS)))
    for state, back in zip(corpus, found, strict=True):
        assert back is not None
        assert back == state
        # The order of the top-level fields is not promised.
        assert (back.flow, back.state) == (state.flow, state.state)
        assert {repr(name): exact(item) for name, item in back.data.items()} == {
            repr(name): exact(item) for name, item in state.data.items()
        }
