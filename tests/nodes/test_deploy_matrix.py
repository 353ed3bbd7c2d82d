"""The table of docs/deploys.md: what a deploy does to a run, by the change, its place and the state of the run."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from stepwell import MemoryStorage, Storage
from stepwell.errors import FlowChanged, Parked
from stepwell.nodes import BatchNode, Node, NodeFlow, Sleep, Wait, linear, parallel, step
from stepwell.nodes.graph import loaded
from stepwell.nodes.graph.base import BaseNode
from stepwell.nodes.run.ids import flow_of_wait
from stepwell.testing import Clock
from tests.backends import Backend
from tests.nodes.test_durable import Boom

PAGE = Path(__file__).parents[2] / "docs" / "deploys.md"
GOES_ON, STUCK = "goes on", "stuck"

#: For each change: what happens to a run if the change is before its position, at it while the run is inside the node
#: (parked, sleeping, half-way in a batch), at it while the run is at its start (failed), and after it.
MATRIX: dict[str, tuple[str, str, str, str]] = {
    "append a node": (GOES_ON, GOES_ON, GOES_ON, GOES_ON),
    "insert a node": (GOES_ON, GOES_ON, GOES_ON, GOES_ON),
    "remove a node": (GOES_ON, STUCK, STUCK, GOES_ON),
    "rename a node": (GOES_ON, STUCK, STUCK, GOES_ON),
    "rename a node, with `renamed`": (GOES_ON, GOES_ON, GOES_ON, GOES_ON),
    "reconnect a node": (GOES_ON, GOES_ON, GOES_ON, GOES_ON),
    "split a branch in two": (GOES_ON, STUCK, STUCK, GOES_ON),
    "change a batch, a wait or a sleep into a node": (GOES_ON, STUCK, GOES_ON, GOES_ON),
    "change a node into a flow": (GOES_ON, STUCK, GOES_ON, GOES_ON),
    "put a node into a nested flow": (GOES_ON, STUCK, STUCK, GOES_ON),
    "put a node into a nested flow, with `renamed`": (GOES_ON, GOES_ON, GOES_ON, GOES_ON),
    "change the class and the options": (GOES_ON, GOES_ON, GOES_ON, GOES_ON),
}
WHERE = ("before", "at", "after")
INSIDE = ("parked", "sleeping", "half-way")

#: The node of each place that a change is made to.
TARGETS = {"before": "b", "at": "p", "after": "y"}
BATCHES = {"before": "k0", "at": "p", "after": "k1"}
FANS = {"before": "fan0", "at": "fan", "after": "fan1"}


class Note(Node):
    """Notes its path when it completes, and raises if its list has an error."""

    def __init__(self, ran: list[str], name: str, fails: list[Exception] | None = None, **options: Any) -> None:
        super().__init__(name=name, **options)
        self.ran, self.fails = ran, fails or []

    async def exec(self, prep_res: Any) -> None:
        if self.fails:
            raise self.fails.pop()

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        self.ran.append(step().node)


class Other(Note):
    """Another class of the same kind."""


class Items(BatchNode):
    def __init__(self, ran: list[str], name: str, fails: list[Exception] | None = None, **options: Any) -> None:
        super().__init__(name=name, **options)
        self.ran, self.fails = ran, fails or []

    def prep(self, shared: dict[str, Any]) -> Any:
        return [1, 2, 3]

    async def exec(self, item: int) -> int:
        if item == 2 and self.fails:
            raise self.fails.pop()
        return item * 10

    def post(self, shared: dict[str, Any], items: Any, results: list[int]) -> None:
        assert results == [10, 20, 30]
        self.ran.append(step().node)


class OtherItems(Items):
    pass


class Ask(Wait):
    def __init__(self, ran: list[str], name: str) -> None:
        super().__init__(name)
        self.ran = ran

    def post(self, shared: dict[str, Any], question: Any, answer: Any) -> None:
        assert answer == "yes"
        self.ran.append(step().node)


class OtherAsk(Ask):
    pass


class Nap(Sleep):
    def __init__(self, ran: list[str], name: str, seconds: float = 60) -> None:
        super().__init__(seconds, name=name)


Made = Callable[[str], BaseNode]


class Release:
    """Builds the flow of one release: ``a b fan0 k0 p y fan1 k1 z``, with the position of the run at ``p``."""

    def __init__(self, situation: str, *, fails: bool = False) -> None:
        self.situation = situation
        #: The nodes that completed.
        self.ran: list[str] = []
        self.names = ["a", "b", "fan0", "k0", "p", "y", "fan1", "k1", "z"]
        self.fails: list[Exception] = [Boom()] if fails else []
        self.made: dict[str, Made] = {}
        self.split: set[str] = set()
        self.edges: list[tuple[str, str, str]] = []
        self.options: dict[str, Any] = {}

    def node(self, name: str) -> BaseNode:
        """Return a new node."""
        if name in self.made:
            return self.made[name](name)
        if name in ("fan0", "fan", "fan1"):
            suffix = name.removeprefix("fan")
            first, second = self.node(f"l{suffix}"), self.node(f"m{suffix}" if suffix else "p")
            right = Note(self.ran, f"r{suffix}")
            if name in self.split:
                return parallel(first, second, right, name=name)
            first >> second
            return parallel(first, right, name=name)
        if name.startswith("k"):
            return Items(self.ran, name)
        return self.position(name) if name == "p" else Note(self.ran, name)

    def position(self, name: str, *, other: bool = False) -> BaseNode:
        """Return the node that the run is at; ``other``: of another class, and with other options."""
        match self.situation:
            case "parked":
                return (OtherAsk if other else Ask)(self.ran, name)
            case "sleeping":
                return Nap(self.ran, name, 7 if other else 60)
            case "half-way":
                if other:
                    return OtherItems(self.ran, name, concurrency=2, max_retries=2)
                return Items(self.ran, name, self.fails)
            case _:
                return Other(self.ran, name, max_retries=2) if other else Note(self.ran, name, self.fails)

    def flow(self, storage: Storage) -> NodeFlow:
        nodes = {name: self.node(name) for name in self.names}
        flow = NodeFlow(start=nodes[self.names[0]], name="f", storage=storage, **self.options)
        skipped = {(source, action) for source, _, action in self.edges}
        for source, target in pairwise(self.names):
            if (source, "default") not in skipped:
                flow.connect(nodes[source], nodes[target])
        for source, name, action in self.edges:
            flow.connect(nodes[source], nodes.setdefault(name, self.node(name)), action)
        return flow

    def begin(self, change: str, where: str) -> None:
        """Arrange the flow so that this change can be made to it."""
        if where == "at" and change == "append a node":
            # The position is the last node.
            del self.names[self.names.index("p") + 1 :]
        if where == "at" and change == "split a branch in two":
            self.names[self.names.index("p")] = "fan"

    def change(self, change: str, where: str) -> None:
        """Change the flow for the next release."""
        names, target = self.names, TARGETS[where]
        new = f"{target}2"
        match change:
            case "append a node" if where == "before":
                self.edges.append(("b", "n", "more"))
            case "append a node":
                names.append("n")
            case "insert a node":
                names.insert(names.index(target), "n")
            case "remove a node":
                names.remove(target)
            case "rename a node" | "rename a node, with `renamed`":
                names[names.index(target)] = new
                self.made[new] = self.position if where == "at" else lambda name: Note(self.ran, name)
                if "with" in change:
                    self.options["renamed"] = {target: new}
            case "reconnect a node":
                at = names.index(target)
                self.edges += [(target, names[at + 2], "default"), (target, names[at + 1], "other")]
            case "split a branch in two":
                self.split.add(FANS[where])
            case "change a batch, a wait or a sleep into a node":
                # At the start of a node the kinds may change in both directions.
                into = Items if self.situation == "failed" and where == "at" else Note
                self.made[BATCHES[where]] = lambda name: into(self.ran, name)
            case "change a node into a flow":
                self.made[target] = lambda name: linear(Note(self.ran, "x"), Note(self.ran, "w"), name=name)
            case "put a node into a nested flow" | "put a node into a nested flow, with `renamed`":
                inner = self.position if where == "at" else lambda name: Note(self.ran, name)
                names[names.index(target)] = f"in_{target}"
                self.made[f"in_{target}"] = lambda name: linear(inner(target), name=name)
                if "with" in change:
                    self.options["renamed"] = {target: f"in_{target}/{target}"}
            case "change the class and the options":
                make = self.position if where == "at" else None
                self.made[target] = lambda name: (
                    Other(self.ran, name, max_retries=3) if make is None else make(name, other=True)
                )

    def rest(self, ran: list[str]) -> list[str]:
        """Return the nodes of a whole run from the position on."""
        at = next(number for number, name in enumerate(self.names) if name in ("p", "p2", "in_p", "fan", "y"))
        # In the parallel node, the run is at the second node of the first branch.
        done = ("fan/0/l", "fan/1/r")
        return [path for path in ran if path.partition("/")[0] in self.names[at:] and path not in done]


def in_order(ran: list[str]) -> list[str]:
    """Return the nodes with those of one parallel node sorted, because branches may overtake each other."""
    return [path for _, paths in groupby(ran, lambda path: path.partition("/")[0]) for path in sorted(paths)]


async def go_on(flow: NodeFlow, clock: Clock, given: str, value: Any = ...) -> None:
    """Resume a run to its end, over all its waits."""
    run = flow_of_wait(given) or given
    while True:
        try:
            await flow.resume(given, value)
        except Parked as parked:
            clock.advance(100)
            given, value = (parked.id, "yes") if parked.id else (run, ...)
        else:
            return


def released(change: str, where: str, situation: str, *, new: bool, fails: bool = False) -> Release:
    """Return the release before the change or after it."""
    release = Release(situation, fails=fails)
    release.begin(change, where)
    if new:
        release.change(change, where)
    return release


async def whole(change: str, where: str, situation: str, *, new: bool) -> tuple[list[str], list[str]]:
    """Run a release from its start to its end; return the nodes before the position, and those from it on."""
    key = (new, change if new or where == "at" else "", where, situation)
    if key not in _whole:
        _whole[key] = await _run_whole(change, where, situation, new=new)
    return _whole[key]


#: The results of ``whole``. Most flows before a change are the same.
_whole: dict[Any, tuple[list[str], list[str]]] = {}


async def _run_whole(change: str, where: str, situation: str, *, new: bool) -> tuple[list[str], list[str]]:
    clock, release = Clock(), released(change, where, situation, new=new)
    async with MemoryStorage(clock=clock) as storage:
        flow = release.flow(storage)
        with suppress(Parked):
            await flow.run(flow_id="whole", keep=True)
        await go_on(flow, clock, "whole")
    ran = in_order(release.ran)
    rest = release.rest(ran)
    return [path for path in ran if path not in rest], rest


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "_first_used", {})


@pytest.mark.parametrize("situation", [*INSIDE, "failed"])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("change", MATRIX)
async def test_a_deploy(backend: Backend, clock: Clock, change: str, where: str, situation: str) -> None:
    storage = backend.storage(clock=clock)
    old = released(change, where, situation, new=False, fails=True)
    new = released(change, where, situation, new=True)
    with pytest.raises((Parked, Boom)) as stopped:
        await old.flow(storage).run(flow_id="r")
    error = stopped.value
    given, value = (error.id, "yes") if isinstance(error, Parked) and error.id else ("r", ...)
    clock.advance(100)
    column = {"before": 0, "at": 1 if situation in INSIDE else 2, "after": 3}[where]
    if MATRIX[change][column] == STUCK:
        flow = new.flow(storage)
        with pytest.raises(FlowChanged):
            await flow.resume(given, value)
        run = await flow.status("r")
        assert (run.status, run.node) == ("stuck", "fan" if "fan" in old.names else "p")
        doing = {"parked": "waits for an answer at", "sleeping": "sleeps at", "half-way": "is half-way in the batch"}
        assert re.search(rf"it {doing.get(situation, 'is at')} '(fan/0/)?p', which is ", run.reason or "")
        assert new.ran == []
        # The release before it continues the run.
        new = released(change, where, situation, new=False)
        at_end = await whole(change, where, situation, new=False)
    else:
        at_end = await whole(change, where, situation, new=True)
    await go_on(new.flow(storage), clock, given, value)
    assert in_order(old.ran) == (await whole(change, where, situation, new=False))[0]
    assert in_order(new.ran) == at_end[1], "all nodes from the position on ran once, and no other node"


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("change", MATRIX)
async def test_a_deploy_before_a_queued_run_begins(backend: Backend, clock: Clock, change: str, where: str) -> None:
    storage = backend.storage(clock=clock)
    await released(change, where, "parked", new=False).flow(storage).submit(flow_id="r")
    new = released(change, where, "parked", new=True)
    await go_on(new.flow(storage), clock, "r")
    before, rest = await whole(change, where, "parked", new=True)
    assert in_order(new.ran) == in_order([*before, *rest])


def test_the_table_of_the_docs_has_these_cells() -> None:
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in PAGE.read_text().splitlines()
        if line.startswith("|") and not line.startswith("| ---")
    ]
    assert rows[1:] == [(change, *cells, GOES_ON) for change, cells in MATRIX.items()]
