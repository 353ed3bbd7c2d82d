"""All backends behave like a plain dict under random operations."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from stepwell import State, Storage
from stepwell.errors import LeaseLost, RecordExists, RecordReplaced
from stepwell.record import Change, OpenedHead, Place, Queue
from stepwell.storage import Apply, Claim, Claimed, Guard, Release, Taken
from stepwell.testing import Clock
from tests.backends import Backend

EXAMPLES, STEPS = (1000, 50) if os.environ.get("STEPWELL_DOSE") == "large" else (10, 30)

BOTS = st.sampled_from(["a", "b:c"])
KEYS = st.sampled_from([(1, 1), (1, "1"), "k"])
NAMES = st.sampled_from(["x", "y", "$z", ""])
NAMED = st.sampled_from([None, "one", "two"])
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.binary(max_size=4),
    st.tuples(st.integers(0, 3)),
    st.lists(st.text(max_size=2), max_size=2),
    st.decimals(allow_nan=False),
    st.dictionaries(st.one_of(st.integers(), st.text(max_size=2)), st.integers(0, 3), max_size=2),
    st.frozensets(st.integers(0, 3)),
)
DATA = st.dictionaries(NAMES, VALUES, max_size=3)


class Model:
    """The model of one address, in plain Python."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.expires: float | None = None
        #: Priority (negated) and number of the write that set the queue.
        self.queue: tuple[int, int] | None = None
        #: Counts the writes that make a holder's commit fail.
        self.replaced = 0
        self.holder: tuple[str, float, int, bool] | None = None

    def seen(self, now: float) -> State | None:
        return None if self.expires is not None and self.expires <= now else self.state


class Machine(RuleBasedStateMachine):
    backend: Backend

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.storage = self.backend.storage(clock=self.clock, sweep_every=None)
        self.model: dict[tuple[str, Any], Model] = {}
        self.tokens = 0
        self.writes = 0
        self.has_queues = type(self.storage).queued is not Storage.queued

    def do(self, awaitable: Any) -> Any:
        async def run() -> Any:
            return await awaitable

        return self.runner.run(run())

    def at(self, bot: str, key: Any) -> Model:
        return self.model.setdefault((bot, key), Model())

    def written_from_outside(self, model: Model) -> None:
        if model.state is not None and model.seen(self.clock()) is None:
            model.state, model.expires, model.queue = None, None, None
            model.replaced += 1

    @rule(bot=BOTS, key=KEYS, flow=NAMED, state=NAMED, data=DATA)
    def set_state(self, bot: str, key: Any, flow: str | None, state: str | None, data: dict[Any, Any]) -> None:
        self.do(self.storage.set_state(bot, key, State(flow, state, data)))
        model = self.at(bot, key)
        model.state, model.expires, model.replaced = State(flow, state, dict(data)), None, model.replaced + 1
        model.queue = None

    @rule(bot=BOTS, key=KEYS, data=DATA)
    def set_data(self, bot: str, key: Any, data: dict[Any, Any]) -> None:
        self.do(self.storage.set_data(bot, key, data))
        model = self.at(bot, key)
        self.written_from_outside(model)
        old = model.state or State()
        model.state, model.replaced = State(old.flow, old.state, dict(data)), model.replaced + 1

    @rule(bot=BOTS, key=KEYS, data=DATA)
    def update_data(self, bot: str, key: Any, data: dict[Any, Any]) -> None:
        merged = self.do(self.storage.update_data(bot, key, data))
        model = self.at(bot, key)
        self.written_from_outside(model)
        old = model.state or State()
        model.state = State(old.flow, old.state, {**old.data, **data})
        assert merged == model.state.data

    @rule(bot=BOTS, key=KEYS)
    def clear(self, bot: str, key: Any) -> None:
        self.do(self.storage.clear(bot, key))
        model = self.at(bot, key)
        if model.state is not None:
            model.state, model.expires, model.replaced = None, None, model.replaced + 1
            model.queue = None

    @rule(bot=BOTS, key=KEYS)
    def read(self, bot: str, key: Any) -> None:
        seen = self.at(bot, key).seen(self.clock())
        assert self.do(self.storage.get_state(bot, key)) == seen
        assert self.do(self.storage.get_data(bot, key)) == (None if seen is None else seen.data)

    @rule(bot=BOTS, key=KEYS)
    def claim(self, bot: str, key: Any) -> None:
        self.tokens += 1
        token = f"T{self.tokens}"
        result = self.do(self.storage.perform(Claim(self.storage.address(bot, key), token, 10)))
        model, now = self.at(bot, key), self.clock()
        if model.holder is not None and model.holder[1] > now:
            assert isinstance(result, Taken)
            return
        assert isinstance(result, Claimed)
        seen = model.seen(now)
        assert (result.record is None) == (seen is None)
        model.holder = (token, now + 10, model.replaced, seen is None)
        self.bases = {**getattr(self, "bases", {}), token: result.base}

    @rule(bot=BOTS, key=KEYS, data=DATA, state=NAMED, expiry=st.sampled_from([None, 5.0, 15.0]))
    def commit(self, bot: str, key: Any, data: dict[Any, Any], state: str | None, expiry: float | None) -> None:
        model, now = self.at(bot, key), self.clock()
        if model.holder is None:
            return
        token, until, replaced, fresh = model.holder
        address = self.storage.address(bot, key)
        seal = self.storage.seal(address)
        change = Change(
            write=self.storage.ids(),
            fresh=fresh,
            set=seal.fields(data),
            head=seal.head(OpenedHead(Place("f", state))),
            expiry=expiry,
        )
        apply = Apply(address, change, Guard(token, self.bases[token]))
        if until <= now:
            with pytest.raises(LeaseLost):
                self.do(self.storage.perform(apply))
            return
        if replaced != model.replaced:
            with pytest.raises(RecordReplaced):
                self.do(self.storage.perform(apply))
            return
        self.do(self.storage.perform(apply))
        if fresh and model.seen(now) is None:
            model.state, model.queue = None, None
        old = model.state or State()
        model.state = State("f", state, {**old.data, **data})
        model.expires = None if expiry is None else now + expiry
        model.holder = None

    @rule(bot=BOTS, key=KEYS)
    def release(self, bot: str, key: Any) -> None:
        model = self.at(bot, key)
        if model.holder is not None:
            self.do(self.storage.perform(Release(self.storage.address(bot, key), model.holder[0])))
            model.holder = None

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.model)
    @rule()
    def sweep(self) -> None:
        self.do(self.storage.sweep())
        now = self.clock()
        for model in self.model.values():
            held = model.holder is not None and model.holder[1] > now
            if model.state is not None and model.seen(now) is None and not held:
                model.state, model.expires, model.queue = None, None, None
                model.replaced += 1

    @precondition(lambda self: self.has_queues)
    @rule(bot=BOTS, key=KEYS, priority=st.sampled_from([-1, 0, 1]), create=st.booleans())
    def enqueue(self, bot: str, key: Any, priority: int, create: bool) -> None:
        # Each entry has a time of its own.
        self.clock.advance(0.001)
        model = self.at(bot, key)
        seen = model.seen(self.clock())
        change = Change(write=self.storage.ids(), queue=Queue("q", priority))
        guard = Guard(absent=True) if create else None
        if create and seen is not None:
            with pytest.raises(RecordExists):
                self.do(self.storage.perform(Apply(self.storage.address(bot, key), change, guard)))
            return
        self.do(self.storage.perform(Apply(self.storage.address(bot, key), change, guard)))
        self.written_from_outside(model)
        self.writes += 1
        model.state, model.queue = model.state or State(), (-priority, self.writes)

    @precondition(lambda self: self.has_queues)
    @rule(bot=BOTS, limit=st.sampled_from([1, 10]))
    def list_queue(self, bot: str, limit: int) -> None:
        now = self.clock()
        queued = sorted(
            (model.queue, self.storage.address(bot, key))
            for (name, key), model in self.model.items()
            if name == bot and model.queue is not None and model.seen(now) is not None
        )
        namespace = self.storage.address(bot, 1).namespace
        assert self.do(self.storage.queued(namespace, "q", limit=limit)) == [address for _, address in queued][:limit]
        assert self.do(self.storage.queues(namespace)) == (["q"] if queued else [])

    @rule(bot=BOTS, flow=NAMED)
    def scan(self, bot: str, flow: str | None) -> None:
        async def listed() -> list[tuple[Any, State]]:
            return [(entry.key, entry.state) async for entry in self.storage.scan(bot, flow=flow, page=2)]

        now = self.clock()
        found = [(key, model.seen(now)) for (name, key), model in self.model.items() if name == bot]
        expected = [(key, state) for key, state in found if state is not None and state.flow == flow]
        assert sorted(self.do(listed()), key=repr) == sorted(expected, key=repr)

    def teardown(self) -> None:
        self.do(self.storage.close())
        self.runner.close()


def test_it_agrees_with_a_plain_dict(backend: Backend) -> None:
    machine = type("MachineOn" + backend.name.title(), (Machine,), {"backend": backend})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
