"""Stored texts with a valid checksum and an invalid format: only typed errors, and a copy in quarantine."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import random
from typing import Any

import pytest

from stepwell import MemoryStorage, State, Storage
from stepwell.codec.json import replaced
from stepwell.errors import CorruptRecord, Parked, StepwellError
from stepwell.fsm import FSM, Flow, state
from stepwell.nodes import BatchNode, Node, NodeFlow, Sleep, Wait, linear, parallel
from stepwell.record import RUNS, Address, Change, Head, Stored
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Get, Guard, Release
from tests.reliability.dose import dose, seeded

JUNK: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        7,
        1.5,
        "",
        "x",
        "wait:1:r/ask/1",
        "1x99999999999",
        [],
        {},
        [[]],
        [1, 2],
        {"a": 1},
        [None] * 6,
    ),
    *({"$tuple": [1]}, {"$tuple": 1}, {"$set": [[1]]}, {"$record": ["stepwell.Failed", 1]}, {"$record": 1}),
    *({"$datetime": ["2024-01-01", "America", 0]}, {"$dict": [[[], 1]]}, {"$int": "0x" + "f" * 30}, {"$unknown": 1}),
]


def mutated(choose: random.Random, value: Any) -> Any:
    """Return a copy of a JSON value with one place changed."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []
    found = [value]
    while found:
        at = found.pop()
        if isinstance(at, list | dict):
            keys = list(at) if isinstance(at, dict) else range(len(at))
            places += [(at, key) for key in keys]
            found += [at[key] for key in keys]
    junk = copy.deepcopy(choose.choice(JUNK))
    if not places or choose.random() < 0.1:
        return junk
    at, key = choose.choice(places)
    match choose.randrange(4):
        case 0:
            del at[key]
        case 1 if isinstance(at, list):
            at.insert(key, junk)
        case 2 if isinstance(at, dict):
            at[choose.choice(["", "status", "$x", "answer", "again"])] = junk
        case _:
            at[key] = junk
    return value


def forged(choose: random.Random, storage: Storage, address: Address, stored: Stored) -> Stored:
    """Return a record with one text, or the name of one field, replaced. The checksums are valid."""
    seal = storage.seal(address)
    found = copy.deepcopy(stored)
    texts = [("h", ""), *(("f", name) for name in found.fields), *(("p", name) for name in found.parts or {})]
    kind, name = choose.choice(texts)
    within = {"f": found.fields, "p": found.parts or {}}.get(kind, {"": found.head or ""})
    body = seal.body(kind, name, within[name])
    if kind == "f" and choose.random() < 0.2:
        del within[name]
        name = choose.choice(["", "$", "$[1]", '${"a":1}', '$"a"', "$1", "$null"])
    elif choose.random() < 0.1:
        body = choose.choice(["", "[", "nul", "1 2", '"', "\x00", body[: len(body) // 2], "[" * 3000])
    else:
        body = json.dumps(mutated(choose, json.loads(body)))
    within[name] = seal.seal_body(kind, name, body.encode())
    if kind == "h":
        found.head = within[""]
    return found


async def put(storage: Storage, address: Address, stored: Stored, memo: str | None = None) -> None:
    """Write a record with the texts of another one."""
    token = storage.ids()
    claimed = await storage.perform(Claim(address, token, 30.0))
    change = Change(
        write=storage.ids(),
        replace=True,
        head=Head(None, None, stored.head or ""),
        set=stored.fields,
        parts=stored.parts or {},
        deadline=0.0,
        limit=1 << 30,
    )
    if memo is not None:
        change = replaced(change, memo=memo)
    await storage.perform(Apply(address, change, Guard(token, claimed.base)))
    await storage.perform(Release(address, token))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


class Order(Flow, name="order", revision=2):
    cart = state(timeout=60, on_timeout="paid")
    paid = state()
    default_state = cart

    @staticmethod
    def migrate(revision: int, name: str | None, data: dict[Any, Any]) -> tuple[Any, Any]:
        return name, data


class Help(Flow, name="help"):
    topic = state()
    default_state = topic


async def test_forged_texts_of_a_conversation_give_typed_errors_only() -> None:
    choose = seeded()
    storage = MemoryStorage(sweep_every=None)
    fsm = FSM("bot", storage=storage, flows=[Order, Help], run_timers=False)
    address = storage.address("bot", 1)
    async with fsm.conversation(key=1, update_id=7) as ctx:
        ctx.start_flow(Order)
        ctx.set_state("cart")
        ctx.set_state("paid")
        ctx.update_data({"items": [{"n": 1}], "when": (1, 2), 5: b"x"})
        ctx.push_flow(Help, {"topic": "price"}, into="answer")
        ctx.set_state("topic")
    whole = await storage.perform(Get(address))
    memo_body = storage.seal(address).body("m", "", (await memo_of(storage, address)))
    for _ in range(dose("FORGED", 400, 20_000)):
        record, memo = whole, memo_body
        if choose.random() < 0.2:
            memo = json.dumps(mutated(choose, json.loads(memo_body)))
        else:
            record = forged(choose, storage, address, whole)
        await put(storage, address, record, storage.seal(address).seal_body("m", "", memo.encode()))
        with contextlib.suppress(StepwellError):
            await storage.get_state("bot", 1)
        with contextlib.suppress(StepwellError):
            async with fsm.conversation(key=1, update_id=7):
                pass
        for _ in range(2):
            with contextlib.suppress(StepwellError):
                async with fsm.conversation(key=1, update_id=choose.randrange(10, 1 << 40)) as ctx:
                    ctx.back()
                    ctx.pop_flow("done")
        with contextlib.suppress(StepwellError):
            async for entry in storage.scan("bot"):
                _ = entry.key, entry.place, entry.state
        await fsm.migrate()


async def memo_of(storage: Storage, address: Address) -> str:
    claimed = await storage.perform(Claim(address, "token", 30.0))
    await storage.perform(Release(address, "token"))
    assert claimed.memo is not None
    return str(claimed.memo)


class Step(Node):
    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
        shared[self.name] = 1


class Ask(Wait):
    def prep(self, shared: Any) -> Any:
        return {"sure?": ("yes", "no")}


class Items(BatchNode):
    def prep(self, shared: Any) -> Any:
        return list(range(600))

    def exec(self, item: Any) -> Any:
        if item == 599:
            raise LookupError(item)
        return [item]


def branching(storage: Storage) -> NodeFlow:
    branches = parallel(linear(Step(name="a"), Ask("ask", timeout=60)), linear(Step(name="b"), Sleep(60)), name="both")
    return linear(Step(name="first"), branches, Step(name="last"), name="branching", storage=storage)


def batching(storage: Storage) -> NodeFlow:
    inner = linear(Items(name="items", on_error="collect"), Step(name="after"), name="inner")
    return linear(Step(name="first"), inner, name="batching", storage=storage)


@pytest.mark.parametrize("make", [branching, batching])
async def test_forged_texts_of_a_run_give_typed_errors_only(make: Any) -> None:
    choose = seeded()
    storage = MemoryStorage(sweep_every=None)
    flow = make(storage)
    address = storage.address(RUNS, "r")
    with contextlib.suppress(Parked, ExceptionGroup):
        await flow.run({"x": [1, 2], "y": {"z": (1,)}}, flow_id="r", params={"p": 1}, keep=True)
    whole = await storage.perform(Get(address, parts=True))
    for _ in range(dose("FORGED", 200, 10_000)):
        await put(storage, address, forged(choose, storage, address, whole))
        for attempt in (
            lambda: storage.get_state(RUNS, "r"),
            lambda: flow.status("r"),
            lambda: flow.resume("r"),
            lambda: flow.resume("r", "yes"),
        ):
            try:
                await attempt()
            except StepwellError:
                pass
            except ExceptionGroup as errors:
                # The error of the item itself.
                assert all(type(error) is LookupError for error in errors.exceptions)
        with contextlib.suppress(StepwellError):
            _ = [run async for run in flow.runs()]


@pytest.mark.parametrize(
    "head",
    [
        *("null", "[]", '["flow"]', '[1,"state"]', '["flow",[]]', '["flow","state","1"]', '["flow","state",1,7]'),
        *('["flow","state",1,[1]]', '["flow","state",1,[],[["order"]]]', '["flow","state",1,[],[],{}]'),
        *('["flow","state",1,[],[],[],[1]]', '["flow","state",1,[],[],[],[],[7]]'),
        *('["f","s",1,[],[],[],[],[],[[1.5,0,"[]"]]]', '["f","s",1,[],[],[],[],[],[[1.5,0,"["]]]'),
        *('["f","s",1,[],[],[],[],[],[[1,0,"x"]]]', '["f","s",1,[],[],[],[],[],[],[]]'),
    ],
)
async def test_a_head_of_an_unknown_format_is_damage_with_a_copy_in_quarantine(head: str) -> None:
    storage = MemoryStorage(sweep_every=None)
    await storage.set_state("bot", 1, State("flow", "state", {"n": 1}))
    address = storage.address("bot", 1)
    stored = await storage.perform(Get(address))
    stored.head = storage.seal(address).seal_body("h", "", head.encode())
    await put(storage, address, stored)
    with pytest.raises(CorruptRecord):
        async with Slot(storage, "bot", 1):
            raise AssertionError("a handler ran on a damaged record")
    with pytest.raises(CorruptRecord):
        await storage.get_state("bot", 1)
    copied = await storage.quarantined("bot", 1)
    assert copied is not None
    assert copied["head"] == stored.head


@pytest.mark.parametrize("name", ["", "$[1]", '${"a":1}', "$nul"])
async def test_a_field_whose_name_is_no_key_is_damage(name: str) -> None:
    storage = MemoryStorage(sweep_every=None)
    await storage.set_state("bot", 1, State("flow", "state", {"n": 1}))
    address = storage.address("bot", 1)
    stored = await storage.perform(Get(address))
    stored.fields[name] = storage.seal(address).seal_body("f", name, b"1")
    await put(storage, address, stored)
    with pytest.raises(CorruptRecord):
        await storage.get_state("bot", 1)
    assert await storage.quarantined("bot", 1) is not None


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("graph::", '{"first":1}'),
        ("graph::", '{"":["flow",{}]}'),
        ("items:inner/items:0", '"abc"'),
        ("items:inner/items:0", "[1]"),
        ("done:inner/items:0", "[[1]]"),
        ("done:inner/items:0", '[[999,"x"]]'),
        ("done:inner/items:0", '[[0,null,"KeyError",1]]'),
        ("params::", "[]"),
    ],
)
async def test_a_part_of_an_unknown_format_is_damage_with_a_copy_in_quarantine(name: str, body: str) -> None:
    storage = MemoryStorage(sweep_every=None)
    flow = batching(storage)
    with contextlib.suppress(ExceptionGroup):
        await flow.run({}, flow_id="r", params={"p": 1})
    address = storage.address(RUNS, "r")
    stored = await storage.perform(Get(address, parts=True))
    assert name in stored.parts
    stored.parts[name] = storage.seal(address).seal_body("p", name, body.encode())
    await put(storage, address, stored)
    with pytest.raises(CorruptRecord):
        await flow.resume("r")
    copied = await storage.quarantined(RUNS, "r")
    assert copied is not None
    assert copied["parts"] == stored.parts


async def test_a_malformed_memo_is_treated_as_empty() -> None:
    storage = MemoryStorage(sweep_every=None)
    fsm = FSM("bot", storage=storage, flows=[Help], run_timers=False)
    address = storage.address("bot", 1)
    async with fsm.conversation(key=1, update_id=7) as ctx:
        ctx.start_flow(Help)
    whole = await storage.perform(Get(address))
    for body in ("1", "[]", '["', '[" 7 "]', '[" 7 ",1]', '[" 7 ",[1]]', '["7",[]]', '[" 7\\\\ ",[]]'):
        await put(storage, address, whole, storage.seal(address).seal_body("m", "", body.encode()))
        with contextlib.suppress(StepwellError):
            async with fsm.conversation(key=1, update_id=7) as ctx:
                ctx.update_data({"n": body})
        async with fsm.conversation(key=1, update_id=8) as ctx:
            ctx.update_data({"n": 1})
        with pytest.raises(StepwellError, match="8"):
            async with fsm.conversation(key=1, update_id=8):
                raise AssertionError("a duplicate was handled")
