"""Submitted runs: their handles, and the workers that take them in order, each once, and share their places fairly."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import random
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from stepwell import MemoryStorage, StateStorage, Storage
from stepwell.dispatch import Dispatcher
from stepwell.errors import (
    CorruptRecord,
    InvalidGraph,
    InvalidOption,
    RunBusy,
    RunExists,
    RunFailed,
    UnknownRun,
    Unstorable,
    UsageError,
)
from stepwell.nodes import Limit, Node, NodeFlow, RunHandle, Wait, linear, step, worker
from stepwell.nodes.queue import partitions
from stepwell.nodes.queue.rates import Rate
from stepwell.nodes.workers.run_sources import sources_of
from stepwell.record import PARTITIONS, RATES, RUNS, Address, Change, Head, Queue
from stepwell.storage.operations import Apply, Get
from stepwell.testing import Clock
from tests.backends import Backend
from tests.constants import Constants
from tests.nodes.test_durable import Boom, Say, Watching
from tests.until import forever, until


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


class Seen:
    """The starts and the ends of runs, by the names in their shared state."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.at_once = self.most = 0

    @property
    def started(self) -> list[str]:
        return [name for what, name in self.log if what == "start"]


class Log(Node):
    """Records the start and the end of each run, and awaits ``during`` between them."""

    def __init__(self, during: Callable[[str], Any] | None = None) -> None:
        super().__init__(name="log")
        self.seen = Seen()
        self.during = during

    def prep(self, shared: dict[str, Any]) -> Any:
        return shared["name"]

    async def exec(self, name: str) -> str:
        seen = self.seen
        seen.log.append(("start", name))
        seen.at_once += 1
        seen.most = max(seen.most, seen.at_once)
        try:
            await asyncio.sleep(0)
            if self.during is not None:
                await self.during(name)
        finally:
            seen.at_once -= 1
            seen.log.append(("end", name))
        return name

    def post(self, shared: dict[str, Any], name: str, result: str) -> None:
        shared["done"] = result


def logged(storage: Storage, during: Callable[[str], Any] | None = None, name: str = "logged") -> tuple[NodeFlow, Seen]:
    node = Log(during)
    return linear(node, name=name, storage=storage), node.seen


async def results(handles: list[RunHandle]) -> list[dict[str, Any]]:
    return await asyncio.gather(*(handle.result(timeout=60) for handle in handles))


# Submitting


@pytest.mark.every_backend
async def test_a_submitted_run_is_queued_until_a_worker_runs_it(storage: Storage) -> None:
    flow, seen = logged(storage)
    handle = await flow.submit({"name": "a"}, flow_id="r")
    assert handle.id == "r"
    run = await handle.status()
    assert (run.status, run.node, run.flow, run.started_at) == ("queued", None, "logged", 0)
    assert [run.flow_id async for run in flow.runs("queued")] == ["r"]
    assert seen.log == []
    async with worker([flow]):
        assert await handle.result(timeout=60) == {"name": "a", "done": "a"}
    run = await handle.status()
    assert run.status == "finished"
    assert run.started_at > 0
    assert 86_000 < (run.expires_at or 0) - run.updated_at < 87_000
    assert await storage.queued(RUNS, "logged", limit=10) == []


async def test_an_id_is_submitted_once(storage: Storage) -> None:
    flow, seen = logged(storage)
    handles = await asyncio.gather(
        *(flow.submit({"name": f"a{number}"}, flow_id="r", on_exists="return") for number in range(5))
    )
    async with worker([flow]):
        finals = await results(list(handles))
    assert len({str(final) for final in finals}) == 1
    assert len(seen.log) == 2
    assert sum(handle.created for handle in handles) == 1
    again = await flow.submit({"name": "later"}, flow_id="r", on_exists="return")
    assert (await again.result(timeout=60))["name"] != "later"
    other, _ = logged(storage, name="other")
    with pytest.raises(RunExists, match="as a run of flow 'logged'"):
        await other.submit({}, flow_id="r")
    await StateStorage(storage).update_state("s", {"x": 1})
    with pytest.raises(RunExists, match="only a state"):
        await flow.submit({}, flow_id="s")


async def test_what_cannot_be_run_is_refused_when_it_is_submitted(storage: Storage) -> None:
    flow, _ = logged(storage)
    with pytest.raises(Unstorable, match="at the start"):
        await flow.submit({"x": object()})
    with pytest.raises(Unstorable, match="at the start"):
        await flow.submit(params={"x": object()})
    with pytest.raises(InvalidGraph):
        await NodeFlow(name="empty", storage=storage).submit()
    wrong: list[dict[str, Any]] = [
        *({"after": -1}, {"after": "soon"}, {"priority": "high"}, {"priority": 1 << 40}, {"keep": -1}),
        *({"partition": ""}, {"partition": 1.5}, {"partition": "x" * 600}),
        *({"flow_id": ""}, {"flow_id": "wait:1:x/y/1"}),
    ]
    for options in wrong:
        with pytest.raises(InvalidOption):
            await flow.submit({}, **options)
    with pytest.raises(UsageError):
        await flow.submit(["no dict"])  # type: ignore[arg-type]
    assert [run async for run in flow.runs()] == []


async def test_a_run_is_not_submitted_to_the_memory_of_a_process_without_a_storage(storage: Storage) -> None:
    flow = linear(Say([], "a"), name="unstored")
    for call in (flow.submit(), flow.status("r"), flow.resume("r"), RunHandle("r", flow).result()):
        with pytest.raises(InvalidOption, match="flow 'unstored' has no storage"):
            await call
    handle = await flow.submit(storage=storage)
    assert (await handle.status()).status == "queued"


async def test_params_and_keep_of_a_submitted_run(storage: Storage) -> None:
    class Params(Node):
        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
            shared["seen"] = self.params

    flow = linear(Params, Say([], "b", fails=[Boom()]), storage=storage, keep=True)
    handle = await flow.submit({}, params={"size": 3})
    async with worker([flow]):
        with pytest.raises(RunFailed, match="failed at node 'b' with Boom") as failed:
            await handle.result(timeout=60)
    assert (failed.value.flow_id, failed.value.node, failed.value.type_name) == (handle.id, "b", "Boom")
    assert (await flow.resume(handle.id))["seen"] == {"size": 3}
    assert (await handle.status()).expires_at is None
    assert (await handle.result())["said"] == ["b"]


async def test_a_result_waits_through_waits_and_gives_up_after_its_timeout(storage: Storage) -> None:
    flow = linear(Wait("ask"), storage=storage)
    handle = await flow.submit({})
    with pytest.raises(TimeoutError):
        await handle.result(timeout=0.05)
    async with worker([flow]):
        waiting = asyncio.create_task(handle.result(timeout=60))
        await until(handle.status, lambda run: run.waits)
        await handle.answer("yes")
        assert await waiting == {"ask": "yes"}
    await StateStorage(storage).cleanup(handle.id)
    with pytest.raises(UnknownRun):
        await handle.result(timeout=60)


async def test_the_timeout_of_a_result_names_the_status_of_the_run() -> None:
    async with MemoryStorage() as storage:
        flow = linear(Wait("ask"), name="asking", storage=storage)
        handle = await flow.submit({})
        with pytest.raises(TimeoutError, match=r"is queued \(does a worker have flow 'asking' .* after 0\.2 s"):
            await handle.result(timeout=0.2)
        await flow.pause(handle.id)
        with pytest.raises(TimeoutError, match="is paused"):
            await handle.result(timeout=0.2)


async def test_a_queued_run_can_be_resumed_here_and_is_not_run_twice(storage: Storage) -> None:
    flow, seen = logged(storage)
    handle = await flow.submit({"name": "a"})
    with pytest.raises(UsageError, match="is queued"):
        await flow.resume(handle.id, "an answer")
    with pytest.raises(RunExists):
        await flow.run({}, flow_id=handle.id)
    assert (await flow.resume(handle.id))["done"] == "a"
    async with worker([flow]):
        after = await flow.submit({"name": "b"})
        await after.result(timeout=60)
    assert seen.started == ["a", "b"]


async def test_a_run_that_starts_while_its_id_is_submitted_leaves_the_queue(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, seen = logged(storage)
    perform = storage.perform
    submitted: list[RunHandle] = []

    async def late(operation: Any) -> Any:
        if isinstance(operation, Apply) and not submitted:
            submitted.append(await submit_first())
        return await perform(operation)

    async def submit_first() -> RunHandle:
        monkeypatch.setattr(storage, "perform", perform)
        return await flow.submit({"name": "submitted"}, flow_id="r")

    monkeypatch.setattr(storage, "perform", late)
    await flow.run({"name": "run"}, flow_id="r", keep=True)
    assert await submitted[0].result(timeout=60) == {"name": "run", "done": "run"}
    assert await storage.queued(RUNS, "logged", limit=10) == []
    assert seen.started == ["run"]


async def test_a_worker_removes_a_run_that_has_ended_from_its_queue(storage: Storage) -> None:
    flow, seen = logged(storage)
    await flow.run({"name": "a"}, flow_id="r", keep=True)
    address = storage.address(RUNS, "r")
    await storage.perform(Apply(address, Change(write=storage.ids(), queue=Queue("logged"))))
    async with worker([flow]), asyncio.timeout(60):
        await until(lambda: storage.queued(RUNS, "logged", limit=10), lambda it: not it)
    assert seen.started == ["a"]


async def test_the_check_of_partitions_detects_runs_side_by_side(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bug(*args: Any) -> None:
        """Give every run its partition at once."""

    monkeypatch.setattr("stepwell.nodes.queue.partitions.acquire", bug)
    both = asyncio.Barrier(2)
    flow, seen = logged(storage, lambda name: both.wait())
    handles = [await flow.submit({"name": f"p/{number}"}, partition="p") for number in range(2)]
    await asyncio.gather(*(flow.resume(handle.id) for handle in handles))
    with pytest.raises(AssertionError, match=r"started (beside|instead)"):
        check_partitions(seen.log)


def test_submit_without_a_loop(tmp_path: Any) -> None:
    flow, _ = logged(MemoryStorage())
    url = f"sqlite:///{tmp_path}/runs.db"
    handle = flow.submit_sync({"name": "a"}, storage=url)

    async def run() -> Any:
        async with worker([flow], storage=url):
            return await handle.result(timeout=60)

    assert asyncio.run(run())["done"] == "a"


# Order


@pytest.mark.every_backend
async def test_runs_are_taken_by_priority_and_then_in_the_order_of_submission(storage: Storage) -> None:
    flow, seen = logged(storage)
    handles = [
        await flow.submit({"name": f"{number}"}, priority=priority)
        for number, priority in enumerate([0, 0, 5, -1, 5, 0])
    ]
    async with worker([flow], concurrency=1):
        await results(handles)
    assert seen.started == ["2", "4", "0", "1", "5", "3"]


@pytest.mark.every_backend
async def test_a_delayed_run_is_taken_after_its_delay(backend: Backend, clock: Clock) -> None:
    storage = backend.storage(clock=clock)
    flow, seen = logged(storage)
    late = await flow.submit({"name": "late"}, after=60)
    late_too = await flow.submit({"name": "late too"}, after=60, partition="p")
    soon = await flow.submit({"name": "soon"})
    async with worker([flow]):
        await soon.result(timeout=60)
        assert seen.started == ["soon"]
        assert (await late.status()).status == "queued"
        clock.advance(61)
        await results([late, late_too])
    assert set(seen.started[1:]) == {"late", "late too"}


# Partitions


def check_partitions(log: list[tuple[str, str]]) -> None:
    """Check that the runs of each partition ran one after the other, in order. Names are ``partition/number``."""
    running: dict[str, str] = {}
    last: Counter[str] = Counter()
    for what, name in log:
        partition, _, number = name.partition("/")
        if what == "start":
            assert partition not in running, f"{name} started beside {running[partition]}"
            assert int(number) == last[partition], f"{name} started instead of number {last[partition]}"
            running[partition], last[partition] = name, last[partition] + 1
        else:
            del running[partition]


@pytest.mark.every_backend
@pytest.mark.parametrize("workers", [1, 3])
async def test_runs_of_a_partition_run_one_after_the_other_in_order(backend: Backend, workers: int) -> None:
    storage = backend.storage()
    flow, seen = logged(storage, lambda name: asyncio.sleep(0.001))
    handles = [
        await flow.submit({"name": f"p{partition}/{number}"}, partition=f"p{partition}")
        for number in range(6)
        for partition in range(4)
    ]
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(workers):
            await stack.enter_async_context(worker([flow]))
        # More of them arrive while others run.
        handles += [
            await flow.submit({"name": f"p{partition}/{number}"}, partition=f"p{partition}")
            for number in range(6, 10)
            for partition in range(4)
        ]
        await results(handles)
        # Nothing is left of a partition without runs, soon after the end of the last one.
        await until(lambda: storage.scan(PARTITIONS), operator.not_)
    check_partitions(seen.log)
    assert len(seen.started) == 40
    assert seen.most > 1 or workers == 1
    assert await storage.queues(RUNS, limit=10) == []


async def test_partitions_and_flows_with_similar_names_are_different(storage: Storage) -> None:
    both = asyncio.Barrier(4)
    names = ["a", "a@2", 'a@@"b"']
    flows = [logged(storage, lambda name: both.wait(), name=name)[0] for name in names]
    handles = [await flow.submit({"name": "x"}, partition="b" if flow is flows[0] else None) for flow in flows]
    handles.append(await flows[0].submit({"name": "y"}))
    async with worker(flows):
        await results(handles)


async def test_a_waiting_run_keeps_its_partition_and_a_failed_one_does_not(storage: Storage) -> None:
    node = Log()
    seen, flow = node.seen, linear(Wait("ask"), node, storage=storage)
    first = await flow.submit({"name": "p/0"}, partition="p")
    second = await flow.submit({"name": "p/1"}, partition="p")
    async with worker([flow]):
        await until(first.status, lambda run: run.waits)
        with pytest.raises(RunBusy, match=r"waits for its partition .*another run comes before it"):
            await flow.resume(second.id)
        assert (await second.status()).status == "queued"
        await flow.resume(first.id, "yes")
        await until(second.status, lambda run: run.waits)
        await flow.resume(second.id, "yes")
    check_partitions(seen.log)


async def test_a_damaged_run_that_has_failed_does_not_stop_its_partition(storage: Storage) -> None:
    class Fragile(Node):
        async def exec(self, prep_res: Any) -> None:
            if step().flow_id == failed.id:
                raise Boom

    flow = linear(Fragile, name="f", storage=storage)
    failed, waiting = [await flow.submit({"n": 1}, partition="p") for _ in range(2)]
    with pytest.raises(Boom):
        await flow.resume(failed.id)
    address = storage.address(RUNS, failed.id)
    damaged = dict.fromkeys(storage.seal(address).fields({"n": 1}), "damaged")
    await storage.perform(Apply(address, Change(storage.ids(), set=damaged, limit=storage.seal(address).limit)))
    async with worker([flow]):
        assert await waiting.result(timeout=20) == {"n": 1}


@pytest.mark.parametrize("what", ["head", "field"])
async def test_a_damaged_run_at_the_head_of_its_partition_does_not_stop_it(
    storage: Storage, constants: Constants, what: str
) -> None:
    constants(repair_every=0.05, partition_overdue=0.05)
    flow, seen = logged(storage, name="f")
    damaged, *waiting = [await flow.submit({"name": f"p/{number}"}, partition="p") for number in range(4)]
    address = storage.address(RUNS, damaged.id)
    seal = storage.seal(address)
    change = Change(storage.ids(), set=dict.fromkeys(seal.fields({"name": 1}), "damaged"), limit=seal.limit)
    if what == "head":
        change = Change(storage.ids(), head=Head("f", "queued", "damaged"), limit=seal.limit)
    await storage.perform(Apply(address, change))
    async with worker([flow]):
        await results(waiting)
    assert seen.started == ["p/1", "p/2", "p/3"]
    with pytest.raises(CorruptRecord):
        await flow.resume(damaged.id)


async def test_a_damaged_lock_record_does_not_stop_a_partition(storage: Storage) -> None:
    flow = linear(Node(inline=True), name="f", storage=storage)
    handle = await flow.submit(partition="p")
    lock = storage.address(PARTITIONS, ("f", partitions.encode("p")))
    seal = storage.seal(lock)
    damaged = dict.fromkeys(seal.fields({"run": "another"}), "damaged")
    await storage.perform(Apply(lock, Change(storage.ids(), set=damaged, limit=seal.limit)))
    async with worker([flow]):
        assert await handle.result(timeout=20) == {}


@pytest.mark.every_backend
async def test_all_partitions_that_a_killed_process_has_left_are_repaired(
    storage: Storage, constants: Constants
) -> None:
    constants(partitions_at_once=2)
    flow = linear(Node, name="f", storage=storage)
    for number in range(5):
        handle = await flow.submit(partition=number)
        # As if the process was killed before, or between, the two writes that promote it.
        change = Change(storage.ids(), queue=partitions.queue_of("f", partitions.encode(number)))
        await storage.perform(Apply(storage.address(RUNS, handle.id), change))
        if number % 2:
            lock = storage.address(PARTITIONS, ("f", partitions.encode(number)))
            await storage.perform(Apply(lock, Change(storage.ids(), delete=True, forget=True)))
    assert await storage.queued(RUNS, "f") == []
    repairs = partitions.Repairs(storage, ["f"])
    # A run that was promoted is in the queue of its partition no more, so the second check finds the rest.
    for found in (2, 4, 5, 5):
        await repairs.check()
        assert len(await storage.queued(RUNS, "f")) == found


async def test_a_failed_run_lets_the_next_of_its_partition_start(storage: Storage) -> None:
    flow = linear(Say([], "a", fails=[Boom()]), storage=storage)
    handles = [await flow.submit({}, partition=7) for _ in range(3)]
    async with worker([flow]):
        outcomes = await asyncio.gather(*(handle.result(timeout=60) for handle in handles), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [RunFailed, dict, dict]
    assert (await flow.resume(handles[0].id))["said"] == ["a"]
    assert [entry async for entry in storage.scan(PARTITIONS)] == []


async def test_priorities_within_a_partition_do_not_start_a_run_beside_another(storage: Storage) -> None:
    go = asyncio.Event()
    flow, seen = logged(storage, lambda name: go.wait())
    async with worker([flow]):
        first = await flow.submit({"name": "low"}, partition="p")
        await until(lambda: seen.started)
        others = [await flow.submit({"name": name}, partition="p") for name in ("later", "last")]
        others.append(await flow.submit({"name": "high"}, partition="p", priority=9))
        await asyncio.sleep(0.05)
        assert seen.started == ["low"]
        go.set()
        await results([first, *others])
    assert seen.started == ["low", "later", "last", "high"], "a partition keeps its own order"
    assert seen.most == 1


@pytest.mark.every_backend
async def test_priorities_hold_over_partitions_and_plain_runs_and_the_oldest_of_a_partition_goes_first(
    storage: Storage,
) -> None:
    flow, seen = logged(storage)
    handles = []
    for number in range(5):
        handles.append(await flow.submit({"name": f"p{number}"}, partition=f"p{number}", priority=number))
        handles.append(await flow.submit({"name": f"plain{number}"}, priority=number))
    # Its oldest run goes first, whatever the others have.
    handles.append(await flow.submit({"name": "p0 high"}, partition="p0", priority=9))
    handles.append(await flow.submit({"name": "p4 low"}, partition="p4", priority=-1))
    async with worker([flow], concurrency=1):
        await results(handles)
    expected = [f"{kind}{number}" for number in range(4, -1, -1) for kind in ("p", "plain")]
    assert [name for name in seen.started if " " not in name] == expected
    # It is taken as soon as its partition is free, before the plain run of priority 0.
    assert seen.started == [*expected[:-1], "p0 high", "plain0", "p4 low"]


@pytest.mark.every_backend
async def test_priorities_hold_over_the_revisions_of_a_flow(storage: Storage) -> None:
    log = Log()
    handles = []
    for number, (revision, priority) in enumerate([(1, 0), (2, 5), (3, 0), (1, 5), (2, 0), (3, 9)]):
        old = NodeFlow(start=log, name="f", storage=storage, revision=revision)
        partition = "p" if number in (2, 5) else None
        handles.append(await old.submit({"name": str(number)}, priority=priority, partition=partition))
    flow = NodeFlow(start=log, name="f", storage=storage, revision=3)
    async with worker([flow], concurrency=1):
        await asyncio.gather(*(RunHandle(handle.id, flow).result(timeout=60) for handle in handles))
    assert log.seen.started == ["1", "3", "0", "2", "5", "4"]


@pytest.mark.every_backend
@pytest.mark.parametrize(("flows", "revision"), [(1, 1), (12, 100)])
async def test_an_idle_worker_reads_the_same_whatever_the_number_of_its_flows_and_revisions(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, constants: Constants, flows: int, revision: int
) -> None:
    constants(repair_every=0.05, tick=0.05)
    calls: Counter[str] = Counter()
    asking: ContextVar[bool] = ContextVar("asking", default=False)

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        async def counted(*args: Any, **options: Any) -> Any:
            # A memory reads one namespace after the other.
            calls[name] += not asking.get()
            token = asking.set(name == "due_in" or asking.get())
            try:
                return await original(*args, **options)
            finally:
                asking.reset(token)

        monkeypatch.setattr(owner, name, counted)

    for name in ("due", "due_in", "queued", "queues", "page"):
        count(storage, name)
    count(Dispatcher, "_probe")
    count(partitions.Repairs, "check")
    every_flow = [
        NodeFlow(start=Node(name="a", inline=True), name=f"f{number}", storage=storage, revision=revision)
        for number in range(flows)
    ]
    async with worker(every_flow):
        calls.clear()
        await until(lambda: min(calls["queues"], calls["queued"], calls["due_in"]) >= 4)
        assert max(calls["due_in"], calls["queued"]) <= calls["_probe"]
        assert calls["queues"] <= calls["check"]
        assert calls["page"] == calls["due"] == 0


@pytest.mark.every_backend
async def test_partitions_of_every_flow_are_repaired_between_many_queues_of_other_flows(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    constants(partitions_at_once=3)
    mine = [linear(Node(inline=True), name=name, storage=storage) for name in ("b", "m", "m@x", "z")]
    others = [linear(Node(inline=True), name=name, storage=storage) for name in ("a", "c", "n", "zz")]
    promote = partitions.promote

    async def killed(*args: Any) -> None:
        """Leave the run in the queue of its partition."""

    with monkeypatch.context() as patched:
        patched.setattr(partitions, "promote", killed)
        for flow in (*mine, *others):
            for number in range(4):
                await flow.submit({}, flow_id=f"{flow.name}-{number}", partition=number)
    assert partitions.promote is promote
    repairs = partitions.Repairs(storage, [str(flow.name) for flow in mine])
    for _ in range(16):
        await repairs.check()
    waiting = [name for name in await storage.queues(RUNS, limit=100) if "/" in name]
    assert waiting == [f"{flow.name}/{number}" for flow in others for number in range(4)]


@pytest.mark.every_backend
async def test_a_round_of_reads_is_the_same_at_100_revisions_with_a_waiting_partition_and_a_rate(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    listing: ContextVar[bool] = ContextVar("listing", default=False)

    def count(name: str) -> None:
        original = getattr(storage, name)

        async def counted(*args: Any, **options: Any) -> Any:
            # A memory reads each queue to list them.
            calls[name] += not listing.get()
            token = listing.set(name == "queues")
            try:
                return await original(*args, **options)
            finally:
                listing.reset(token)

        monkeypatch.setattr(storage, name, counted)

    async def hold(source: Any, address: Address) -> bool:
        return await asyncio.Event().wait()

    async def reads(revision: int) -> Counter[str]:
        flow = NodeFlow(start=Wait("x"), name=f"f{revision}", storage=storage, revision=revision)
        held, *_ = [await flow.submit(partition="p") for _ in range(3)]
        async with worker([flow]), asyncio.timeout(60):
            await until(held.status, lambda run: run.waits)
        await flow.submit()
        rate = {flow.name: Limit(rate=(1, 60))}
        dispatcher, sources = Dispatcher(storage), sources_of(storage, [flow], hold, concurrency=2, limits=rate)
        dispatcher._use_loop()
        dispatcher._sources.extend(sources)
        calls.clear()
        await dispatcher.look()
        await partitions.Repairs(storage, [flow.name]).check()
        found = Counter(calls)
        await dispatcher.stop(*sources)
        return found

    for name in ("due", "queued", "queues", "page", "perform"):
        count(name)
    first = await reads(1)
    assert min(first["due"], first["queued"], first["queues"], first["perform"]) >= 1
    assert await reads(100) == first


# Fairness


async def test_a_long_queue_of_one_partition_does_not_delay_another(storage: Storage) -> None:
    flow, seen = logged(storage, lambda name: asyncio.sleep(0.002))
    crowd = [await flow.submit({"name": f"crowd/{number}"}, partition="crowd") for number in range(30)]
    async with worker([flow], concurrency=1):
        await until(lambda: len(seen.started) >= 2)
        before = len(seen.started)
        await (await flow.submit({"name": "other/0"}, partition="other")).result(timeout=60)
        position = seen.started.index("other/0")
        await results(crowd[:1])
    # One run was running, and one more may have been taken while this one was being submitted.
    assert position - before <= 3
    check_partitions(seen.log)


async def test_a_long_queue_of_one_flow_does_not_delay_another_flow(storage: Storage) -> None:
    order: list[str] = []

    async def short(name: str) -> None:
        order.append(name)
        await asyncio.sleep(0.002)

    busy, _ = logged(storage, short, name="busy")
    quiet, _ = logged(storage, short, name="quiet")
    crowd = [await busy.submit({"name": "busy"}) for _ in range(40)]
    others = [await quiet.submit({"name": "quiet"}), await busy.submit({"name": "slept"}, after=0)]
    async with worker([busy, quiet], concurrency=1):
        await results(others)
        assert order.count("busy") < 15
        await results(crowd[:1])


@pytest.mark.every_backend
async def test_every_submitted_run_is_run_once_by_several_workers(backend: Backend) -> None:
    url = backend.place()
    storages = [
        backend.storage(url) if backend.shared else backend.storage() for _ in range(3 if backend.shared else 1)
    ]
    flow, seen = logged(storages[0])
    handles = await asyncio.gather(*(flow.submit({"name": f"{number}"}) for number in range(60)))
    async with contextlib.AsyncExitStack() as stack:
        for storage in storages:
            await stack.enter_async_context(worker([flow], storage=storage, concurrency=8))
        await results(list(handles))
    assert sorted(seen.started, key=int) == [str(number) for number in range(60)]


# Limits


async def test_a_limit_of_one_flow_leaves_the_other_places_to_other_flows(storage: Storage) -> None:
    go = asyncio.Event()
    slow, seen_slow = logged(storage, lambda name: go.wait(), name="slow")
    other, seen = logged(storage, name="other")
    handles = [await slow.submit({"name": "slow"}) for _ in range(6)]
    delayed = [await slow.submit({"name": "slow"}, after=0) for _ in range(3)]
    async with worker([slow, other], concurrency=4, limits={slow: Limit(concurrency=2)}):
        others = [await other.submit({"name": "other"}) for _ in range(20)]
        await results(others)
        assert len(seen_slow.started) == 2
        go.set()
        await results([*handles, *delayed])
    assert seen_slow.most == 2
    assert 1 <= seen.most <= 2


async def test_a_damaged_rate_stops_no_other_flow(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    limited, other = (linear(Node(inline=True), name=name, storage=storage) for name in ("limited", "other"))
    address = storage.address(RATES, "limited")
    seal = storage.seal(address)
    damaged = dict.fromkeys(seal.fields({"starts": []}), "damaged")
    await storage.perform(Apply(address, Change(storage.ids(), set=damaged, limit=seal.limit)))
    refused = await limited.submit()
    async with worker([limited, other], limits={limited: Limit(rate=(1, 60))}):
        await until(lambda: "its rate cannot be read" in caplog.text)
        assert await (await other.submit()).result(timeout=20) == {}
    assert "polling for runs failed" not in caplog.text
    assert (await refused.status()).status == "queued"


@pytest.mark.every_backend
@pytest.mark.parametrize("partitioned", [False, True])
async def test_a_rate_holds_for_all_workers_together(backend: Backend, partitioned: bool) -> None:
    url = backend.place()
    storages = [backend.storage(url) for _ in range(2 if backend.shared else 1)]
    loop = asyncio.get_running_loop()
    times: list[float] = []

    async def start(name: str) -> None:
        times.append(loop.time())

    flow, _ = logged(storages[0], start)
    handles = [
        await flow.submit({"name": f"{number}"}, partition=f"p{number}" if partitioned else None)
        for number in range(20)
    ]
    began = loop.time()
    async with contextlib.AsyncExitStack() as stack:
        for storage in storages:
            await stack.enter_async_context(worker([flow], storage=storage, limits={"logged": Limit(rate=(8, 0.3))}))
        await results(handles)
    assert len(times) == 20
    # Only 16 of them may start in the first two periods.
    assert sorted(times)[16] - began >= 0.6
    assert sorted(times)[8] - began >= 0.3


@pytest.mark.parametrize("seed", range(5))
async def test_no_period_has_more_starts_than_the_rate_and_none_of_them_is_lost(clock: Clock, seed: int) -> None:
    storage, choose = MemoryStorage(clock=clock), random.Random(seed)
    rates = [Rate(storage, "flow", 10, 60.0) for _ in range(3)]
    starts: list[float] = []
    began = clock()
    while clock() < began + 600:
        rate = choose.choice(rates)
        rate.free_at = 0.0
        starts += [clock()] * await rate.take(choose.randint(1, 6))
        clock.advance(choose.uniform(0, 4))
    most = max(sum(start <= other < start + 60 for other in starts) for start in starts)
    assert most == 10
    # Entries of starts that are close together end with the last of them.
    assert len(starts) >= 0.8 * 10 * 10


async def test_a_rate_that_is_used_up_costs_nothing_and_recoveries_need_no_permit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = MemoryStorage()
    flow = linear(Wait("ask"), storage=storage)
    handles = [await flow.submit({}) for _ in range(50)]
    handles += [await flow.submit({}, partition=number) for number in range(50)]
    limits = {flow: Limit(rate=(10, 3600))}
    async with worker([flow], limits=limits):
        parked = await until(lambda: flow.runs("parked"), lambda runs: len(runs) >= 10)
        watching = Watching(storage, monkeypatch)
        await asyncio.sleep(0.3)
        # The check of the partitions reads them meanwhile.
        assert [kind for kind in watching.kinds() if kind is not Get] == []
        # Runs that have started go on.
        for run in parked:
            await flow.answer(run.waits[0].id, "yes")
        await until(lambda: flow.runs("finished"), lambda runs: len(runs) >= 10)
    assert len([run async for run in flow.runs("queued")]) == 90
    wrong: list[Any] = [{"other": Limit()}, {flow: 5}]
    for limits in wrong:
        with pytest.raises(InvalidOption, match="limits="):
            worker([flow], limits=limits)
    for rate in [(0, 1), (1, 0), (1.5, 1), 5, (1, 2, 3), (1, float("inf"))]:
        with pytest.raises(InvalidOption, match="rate="):
            Limit(rate=rate)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="concurrency"):
        Limit(concurrency=0)


async def test_a_worker_stops_everything_even_if_its_stop_is_cancelled(storage: Storage) -> None:
    flow, _ = logged(storage, lambda name: forever())
    before = asyncio.all_tasks()
    working = worker([flow], storage=storage)
    await working.__aenter__()
    handle = await flow.submit({"name": "long"})
    await until(handle.status, lambda run: run.status == "running")
    stopping = asyncio.ensure_future(working.__aexit__(None, None, None))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait([stopping])
    await until(lambda: not any(task.get_name().startswith("stepwell-") for task in asyncio.all_tasks() - before))
