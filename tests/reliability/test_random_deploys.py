"""Random flows, stopped at random, and random deploys: each run continues as its graph says, or is stuck."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import FlowChanged, Parked, StepwellError
from stepwell.nodes import BatchNode, Node, NodeFlow, Sleep, Wait, parallel, step
from stepwell.nodes.deploy import loading
from stepwell.nodes.deploy.position import new_path
from stepwell.nodes.graph import loaded
from stepwell.nodes.graph.base import BaseNode
from stepwell.testing import Clock
from tests.reliability.dose import dose, seeded


class Stop(Exception):
    """Stops a run in the middle of a node."""


@dataclass
class Story:
    """What happens to one run."""

    choose: random.Random
    #: The ids of the steps that completed.
    ran: list[str] = field(default_factory=list)
    #: Stop at the next but so many calls.
    until_stop: int = 0
    named: int = 0

    def tick(self) -> None:
        self.until_stop -= 1
        if self.until_stop == 0:
            raise Stop

    def name(self) -> str:
        self.named += 1
        return f"n{self.named}"


@dataclass(frozen=True)
class Spec:
    """A node of a random flow: its kind, its name, and the nodes inside it, by branch."""

    kind: str
    name: str
    inside: tuple[tuple[Spec, ...], ...] = ()


class Plain(Node):
    story: Story

    async def exec(self, prep_res: Any) -> None:
        self.story.tick()

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared[step().node] = 1
        self.story.ran.append(step().id)


class Batch(BatchNode):
    story: Story

    def prep(self, shared: dict[str, Any]) -> list[int]:
        return [0, 1, 2]

    async def exec(self, item: int) -> int:
        self.story.tick()
        return item

    def post(self, shared: dict[str, Any], items: Any, results: Any) -> None:
        assert results == [0, 1, 2]
        self.story.ran.append(step().id)


class Question(Wait):
    story: Story

    def post(self, shared: dict[str, Any], question: Any, answer: Any) -> None:
        self.story.tick()
        self.story.ran.append(step().id)


class Prepared(NodeFlow):
    story: Story

    def prep(self, shared: dict[str, Any]) -> str:
        return "prepared"

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> Any:
        assert prep_res == "prepared"
        self.story.tick()
        return exec_res


LEAVES, FLOWS = ("plain", "plain", "batch", "wait", "sleep"), ("flow", "prepared", "parallel")


def random_spec(story: Story, depth: int) -> Spec:
    choose = story.choose
    kind = choose.choice(LEAVES if depth > 1 else LEAVES + FLOWS)
    branches = 0 if kind in LEAVES else choose.randint(1, 3) if kind == "parallel" else 1
    inside = tuple(random_specs(story, depth + 1, choose.randint(1, 2)) for _ in range(branches))
    return Spec(kind, story.name(), inside)


def random_specs(story: Story, depth: int, count: int) -> tuple[Spec, ...]:
    return tuple(random_spec(story, depth) for _ in range(count))


def built(story: Story, specs: tuple[Spec, ...], flow: NodeFlow) -> NodeFlow:
    nodes = [node_of(story, spec) for spec in specs]
    flow.start(nodes[0])
    for source, target in pairwise(nodes):
        flow.connect(source, target)
    return flow


def node_of(story: Story, spec: Spec) -> BaseNode:
    node: Any
    match spec.kind:
        case "plain":
            node = Plain(name=spec.name)
        case "batch":
            node = Batch(name=spec.name)
        case "wait":
            node = Question(spec.name)
        case "sleep":
            node = Sleep(50, name=spec.name)
        case "parallel":
            node = parallel(*[built(story, each, NodeFlow(name="b")) for each in spec.inside], name=spec.name)
        case _:
            cls = Prepared if spec.kind == "prepared" else NodeFlow
            node = built(story, spec.inside[0], cls(name=spec.name))
    node.story = story
    return node  # type: ignore[no-any-return]


def changed(story: Story, specs: tuple[Spec, ...], renamed: dict[str, str], prefix: str = "") -> tuple[Spec, ...]:
    """Return the nodes after a random change, and add to ``renamed`` what a user would."""
    choose, nodes = story.choose, list(specs)
    at = choose.randrange(len(nodes))
    spec, name = nodes[at], story.name()
    tells = choose.random() < 0.6
    match choose.choice(["insert", "append", "remove", "rename", "replace", "swap", "nest", *["inside"] * 4]):
        case "insert":
            nodes.insert(at, random_spec(story, 2))
        case "append":
            nodes.append(random_spec(story, 2))
        case "remove" if len(nodes) > 1:
            del nodes[at]
        case "rename":
            nodes[at] = replace(spec, name=name)
            if tells:
                renamed[prefix + spec.name] = prefix + name
        case "replace":
            nodes[at] = replace(random_spec(story, 1), name=spec.name)
        case "swap":
            other = choose.randrange(len(nodes))
            nodes[at], nodes[other] = nodes[other], nodes[at]
        case "nest":
            nodes[at] = Spec(choose.choice(["flow", "prepared"]), name, ((spec,),))
            if tells:
                renamed[prefix + spec.name] = f"{prefix}{name}/{spec.name}"
        case "inside" if spec.inside:
            nodes[at] = replace(spec, inside=_changed_inside(story, spec, renamed, prefix + spec.name))
    return tuple(nodes)


def _changed_inside(story: Story, spec: Spec, renamed: dict[str, str], path: str) -> tuple[tuple[Spec, ...], ...]:
    choose, branches = story.choose, list(spec.inside)
    at = choose.randrange(len(branches))
    if spec.kind != "parallel":
        return (changed(story, branches[0], renamed, f"{path}/"),)
    match choose.choice(["change", "change", "add", "remove", "swap"]):
        case "add":
            branches.append(random_specs(story, 2, 1))
        case "remove" if len(branches) > 1:
            del branches[at]
        case "swap":
            branches[0], branches[at] = branches[at], branches[0]
        case _:
            branches[at] = changed(story, branches[at], renamed, f"{path}/{at}/b/")
    return tuple(branches)


def leaves(specs: tuple[Spec, ...], prefix: str = "") -> list[tuple[str, str]] | None:
    """Return path and kind of the nodes in the order of a run, or ``None`` if some of them run side by side."""
    found: list[tuple[str, str]] = []
    for spec in specs:
        if spec.kind == "parallel":
            return None
        inside = leaves(spec.inside[0], f"{prefix}{spec.name}/") if spec.inside else [(prefix + spec.name, spec.kind)]
        if inside is None:
            return None
        found += inside
    return found


async def resumed(story: Story, flow: NodeFlow, clock: Clock, asked: list[str], times: int) -> str:
    """Resume a run some times; return ``"ended"``, ``"stuck"`` or ``"open"``."""
    choose = story.choose
    for _ in range(times):
        clock.advance(100)
        story.until_stop = choose.randint(1, 8)
        waits = [wait.id for wait in (await flow.status("r")).waits if wait.id]
        asked += waits
        try:
            if waits and choose.random() < 0.7:
                await flow.resume(choose.choice(waits), 1)
            elif asked and choose.random() < 0.2:
                # A duplicate of any answer, as old as it may be.
                await flow.resume(choose.choice(asked), 1)
            else:
                await flow.resume("r")
        except (Parked, Stop):
            continue
        except FlowChanged as error:
            run = await flow.status("r")
            assert (run.status, bool(run.reason), error.stuck) == ("stuck", True, True)
            return "stuck"
        return "ended"
    return "open"


async def tell(seed: int, count: Counter[str]) -> None:
    """Start a random run, deploy random changes while it is stopped, and check it."""
    story, clock, asked = Story(random.Random(seed)), Clock(), list[str]()
    choose = story.choose
    loaded._first_used.clear()
    async with MemoryStorage(clock=clock) as storage:
        specs = random_specs(story, 0, choose.randint(2, 4))
        flow = built(story, specs, NodeFlow(name="f", storage=storage))
        story.until_stop = choose.randint(1, 12)
        try:
            await flow.run(flow_id="r", keep=True)
        except (Parked, Stop):
            outcome = await resumed(story, flow, clock, asked, choose.randint(0, 4))
        else:
            return
        for _ in range(3):
            if outcome == "ended":
                break
            renamed: dict[str, str] = {}
            after = changed(story, changed(story, specs, renamed), renamed) if choose.random() < 0.5 else specs
            after = changed(story, after, renamed)
            new = built(story, after, NodeFlow(name="f", storage=storage, renamed=renamed))
            position, done = (await new.status("r")).node, len(story.ran)
            outcome = await resumed(story, new, clock, asked, choose.randint(1, 4))
            count[outcome] += 1
            if outcome == "stuck":
                # The release before it still runs it.
                outcome = await resumed(story, flow, clock, asked, choose.randint(1, 3))
                assert outcome != "stuck"
            else:
                assert position is not None
                _check_order(position, renamed, after, story.ran[done:], ended=outcome == "ended")
                specs, flow = after, new
    assert [each for each, times in Counter(story.ran).items() if times > 1] == []


def _check_order(
    position: str, renamed: Mapping[str, str], specs: tuple[Spec, ...], ran: list[str], *, ended: bool
) -> None:
    """Check that the nodes from the position on ran in the order of the new graph, each once."""
    order, at = leaves(specs), new_path(position, renamed)
    if order is None or at not in [path for path, _ in order]:
        return
    first = [path for path, _ in order].index(at)
    expected = [path for path, kind in order[first:] if kind != "sleep"]
    got = [each.removeprefix("r/").rpartition("/")[0] for each in ran]
    assert got == (expected if ended else expected[: len(got)])


async def test_runs_of_random_flows_survive_random_deploys() -> None:
    choose, count = seeded(), Counter[str]()
    for _ in range(dose("DEPLOYS", 80, 20_000)):
        await tell(choose.randrange(1 << 48), count)
    print(dict(count))
    assert min(count["ended"], count["stuck"], count["open"]) > 0


def _never_misfits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "misfits", lambda stored, shape: [])


def _forgets_renames_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(journal: Any, renamed: Any) -> None: ...

    monkeypatch.setattr(loading, "_rename_parts", nothing)


def _forgets_former_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    real = loading._set_visits
    empty: Any = {"visits": {}, "renamed": []}
    monkeypatch.setattr(loading, "_set_visits", lambda journal, stored, _, left: real(journal, stored, empty, {}))


def _ignores_prep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_unprepared", lambda journal, stored: [])


#: Each with a seed that finds it now; another one does so after a change of the tests.
BUGS = [(_never_misfits, 21), (_forgets_renames_of_parts, 288), (_forgets_former_visits, 55), (_ignores_prep, 68)]


@pytest.mark.parametrize(("bug", "first"), BUGS)
async def test_the_check_finds_a_bug(bug: Any, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, StepwellError, KeyError, StopIteration, RuntimeError)):
        for seed in range(first, first + 3000):
            await tell(seed, Counter())
