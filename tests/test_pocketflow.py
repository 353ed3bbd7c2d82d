"""The same programs with stepwell.pocketflow and with PocketFlow: the same results, without PocketFlow's bugs."""

from __future__ import annotations

import asyncio
import warnings

import pocketflow as theirs
import pytest

import stepwell.pocketflow as ours
from stepwell.errors import InvalidOption
from stepwell.nodes import subscribe
from tests.until import forever

BOTH = pytest.mark.parametrize("pf", [theirs, ours], ids=["pocketflow", "stepwell"])


def names(module):
    return sorted(n for n, value in vars(module).items() if isinstance(value, type) and not n.startswith("_"))


def test_the_eleven_names_exist():
    assert len(names(theirs)) == 11
    assert sorted(ours.__all__) == names(theirs)


@pytest.mark.parametrize("name", names(theirs))
def test_the_classes_have_the_same_base_classes(name):
    for other in names(theirs):
        expected = issubclass(getattr(theirs, name), getattr(theirs, other))
        assert issubclass(getattr(ours, name), getattr(ours, other)) == expected, (name, other)


def outcome(program, *args):
    """Return the result or the error of a program, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = program(*args)
        except Exception as error:
            result = type(error), str(error)
    return result, [str(warning.message) for warning in caught]


def trail_node(pf, name, action=None):
    class Trail(pf.Node):
        def post(self, shared, prep_res, exec_res):
            shared.append(name)
            return action

    return Trail()


def async_trail_node(pf, name, action=None):
    class AsyncTrail(pf.AsyncNode):
        async def post_async(self, shared, prep_res, exec_res):
            await asyncio.sleep(0)
            shared.append(name)
            return action

    return AsyncTrail()


def chain(pf):
    a, b, c = (trail_node(pf, name) for name in "abc")
    a >> b >> c
    shared = []
    return pf.Flow(start=a).run(shared), shared


def branching(pf):
    a, b, c = trail_node(pf, "a", "left"), trail_node(pf, "b", "ended"), trail_node(pf, "c")
    a - "left" >> b
    a - "right" >> c
    shared = []
    return pf.Flow(start=a).run(shared), shared


def unknown_action(pf):
    a, b = trail_node(pf, "a", "nowhere"), trail_node(pf, "b")
    a >> b
    shared = []
    return pf.Flow(start=a).run(shared), shared


def no_default_edge(pf):
    a, b = trail_node(pf, "a"), trail_node(pf, "b")
    a - "x" >> b
    shared = []
    return pf.Flow(start=a).run(shared), shared


def edge_to_nothing(pf):
    a = trail_node(pf, "a")
    a >> None
    shared = []
    return pf.Flow(start=a).run(shared), shared


def actions_that_are_no_strings(pf):
    a, b = trail_node(pf, "a", 7), trail_node(pf, "b", ("x", 1))
    a.next(b, 7)
    shared = []
    return pf.Flow(start=a).run(shared), shared


def unhashable_action(pf):
    a, b = trail_node(pf, "a", {"x": 1}), trail_node(pf, "b")
    a >> b
    return pf.Flow(start=a).run([])


def empty_flow(pf):
    return pf.Flow().run([])


def overwriting(pf):
    a, b = trail_node(pf, "a"), trail_node(pf, "b")
    a >> b
    a >> b
    a - "x" >> b
    a - "x" >> a


def wrong_action(pf):
    trail_node(pf, "a") - 3


def node_with_successors(pf):
    a, b = trail_node(pf, "a", "done"), trail_node(pf, "b")
    a >> b
    shared = []
    return a.run(shared), shared


def node_runs_on_itself(pf):
    class Keeps(pf.Node):
        def prep(self, shared):
            self.kept = shared

    node = Keeps()
    node.run("x")
    alone = node.kept
    other = Keeps()
    pf.Flow(start=other).run("x")
    return alone, hasattr(other, "kept")


def nested(pf):
    a, b, c = trail_node(pf, "a", "go"), trail_node(pf, "b", "out"), trail_node(pf, "c")
    inner = pf.Flow(start=b)
    a - "go" >> inner
    inner - "out" >> c
    shared = []
    return pf.Flow(start=a).run(shared), shared


def flow_hooks(pf):
    class Own(pf.Flow):
        def prep(self, shared):
            shared.append("prep")
            return 1

        def post(self, shared, prep_res, exec_res):
            shared.append((prep_res, exec_res))
            return "own"

    shared = []
    return Own(start=trail_node(pf, "a", "last")).run(shared), shared


def params(pf):
    class Show(pf.Node):
        def prep(self, shared):
            shared.append(dict(self.params))

    one, two, inner_node = Show(), Show(), Show()
    one.set_params({"own": 1})
    inner = pf.Flow(start=inner_node)
    inner.set_params({"inner": 1})
    one >> two >> inner
    flow = pf.Flow(start=one)
    shared = []
    flow.run(shared)
    flow.set_params({"flow": 2})
    flow.run(shared)
    alone = []
    one.run(alone)
    return shared, alone


def batch(pf):
    class Double(pf.BatchNode):
        def prep(self, shared):
            return shared

        def exec(self, item):
            return item * 2

        def post(self, shared, prep_res, exec_res):
            return exec_res

    return [Double().run(items) for items in ([1, 2], None, "ab", {"k": 1}, (n for n in range(3)), 0)]


def batch_flow(pf):
    class Show(pf.Node):
        def prep(self, shared):
            shared.append(dict(self.params))

    class Each(pf.BatchFlow):
        def prep(self, shared):
            return [{"n": 1}, {"n": 2}]

        def post(self, shared, prep_res, exec_res):
            shared.append((prep_res, exec_res))
            return "posted"

    class Nothing(pf.BatchFlow):
        def post(self, shared, prep_res, exec_res):
            return prep_res

    flow = Each(start=Show())
    flow.set_params({"base": 0, "n": 0})
    shared = []
    return flow.run(shared), shared, Nothing(start=Show()).run([])


def retries(pf):
    class Flaky(pf.Node):
        def exec(self, prep_res):
            prep_res.append(self.cur_retry)
            if self.cur_retry < 2:
                raise ValueError(self.cur_retry)
            return "worked"

        def prep(self, shared):
            return shared

        def post(self, shared, prep_res, exec_res):
            return exec_res

    class Saved(Flaky):
        def exec_fallback(self, prep_res, exc):
            return f"fallback {exc} {self.cur_retry}"

    shared = []
    return Flaky(max_retries=3).run(shared), Saved(2, 0).run(shared), shared


def retries_used_up(pf):
    class Fails(pf.Node):
        def exec(self, prep_res):
            raise ValueError("always")

    return Fails(max_retries=3).run([])


def async_node_in_a_sync_flow(pf):
    a, b = trail_node(pf, "a"), async_trail_node(pf, "b")
    a >> b
    shared = []
    try:
        pf.Flow(start=a).run(shared)
    finally:
        assert shared == ["a"]


def async_node_run_sync(pf):
    return async_trail_node(pf, "a").run([])


def async_flow_run_sync(pf):
    class Own(pf.AsyncFlow):
        def prep(self, shared):
            shared.append("prep")

    shared = []
    return Own(start=trail_node(pf, "a", "x")).run(shared), shared


@pytest.mark.parametrize(
    "program",
    [
        chain,
        branching,
        unknown_action,
        no_default_edge,
        edge_to_nothing,
        actions_that_are_no_strings,
        unhashable_action,
        empty_flow,
        overwriting,
        wrong_action,
        node_with_successors,
        node_runs_on_itself,
        nested,
        flow_hooks,
        params,
        batch,
        batch_flow,
        retries,
        retries_used_up,
        async_node_in_a_sync_flow,
        async_node_run_sync,
        async_flow_run_sync,
    ],
)
def test_a_sync_program_behaves_as_with_pocketflow(program):
    assert outcome(program, ours) == outcome(program, theirs)


async def test_a_sync_program_runs_inside_a_running_loop():
    assert chain(ours) == chain(theirs)


async def async_mixed(pf):
    a, b, c = trail_node(pf, "a"), async_trail_node(pf, "b", "go"), trail_node(pf, "c", "last")
    a >> b
    b - "go" >> pf.Flow(start=c)
    shared = []
    return await pf.AsyncFlow(start=a).run_async(shared), shared


async def async_inside_sync_inside_async(pf):
    inner = pf.Flow(start=async_trail_node(pf, "b"))
    return await pf.AsyncFlow(start=inner).run_async([])


async def async_flow_hooks(pf):
    class Own(pf.AsyncFlow):
        async def prep_async(self, shared):
            shared.append("prep")
            return 1

        async def post_async(self, shared, prep_res, exec_res):
            shared.append((prep_res, exec_res))
            return "own"

    inner = Own(start=async_trail_node(pf, "a", "last"))
    inner - "own" >> async_trail_node(pf, "b")
    shared = []
    return await pf.AsyncFlow(start=inner).run_async(shared), shared


async def async_warnings(pf):
    a, b = async_trail_node(pf, "a", "nowhere"), async_trail_node(pf, "b")
    a >> b
    shared = []
    return await a.run_async(shared), await pf.AsyncFlow(start=a).run_async(shared), shared


async def async_retries(pf):
    class Flaky(pf.AsyncNode):
        attempts = 0

        async def exec_async(self, prep_res):
            type(self).attempts += 1
            raise ValueError(type(self).attempts)

        async def exec_fallback_async(self, prep_res, exc):
            return str(exc)

        async def post_async(self, shared, prep_res, exec_res):
            return exec_res

    return await Flaky(max_retries=3, wait=0.001).run_async([])


async def async_batches(pf):
    class Double(pf.AsyncBatchNode):
        async def prep_async(self, shared):
            return shared

        async def exec_async(self, item):
            await asyncio.sleep(0)
            return item * 2

        async def post_async(self, shared, prep_res, exec_res):
            return exec_res

    class AtOnce(pf.AsyncParallelBatchNode):
        prep_async, post_async = Double.prep_async, Double.post_async

        async def exec_async(self, item):
            await self.barrier.wait()
            return item * 2

    at_once = AtOnce()
    at_once.barrier = asyncio.Barrier(30)
    return await Double().run_async([1, 2, 3]), await at_once.run_async(range(30))


async def async_batch_flows(pf):
    class Show(pf.AsyncNode):
        async def prep_async(self, shared):
            await asyncio.sleep(0)
            shared.append(dict(self.params))

    def of(kind):
        class Each(kind):
            async def prep_async(self, shared):
                return [{"n": 1}, {"n": 2}]

            async def post_async(self, shared, prep_res, exec_res):
                shared.append((prep_res, exec_res))
                return "posted"

        flow = Each(start=Show())
        flow.set_params({"base": 0})
        return flow

    shared = []
    results = [await of(kind).run_async(shared) for kind in (pf.AsyncBatchFlow, pf.AsyncParallelBatchFlow)]
    return results, shared, await pf.AsyncBatchFlow(start=Show()).run_async([])


@pytest.mark.parametrize(
    "program",
    [
        async_mixed,
        async_inside_sync_inside_async,
        async_flow_hooks,
        async_warnings,
        async_retries,
        async_batches,
        async_batch_flows,
    ],
)
def test_an_async_program_behaves_as_with_pocketflow(program):
    def run(pf):
        return asyncio.run(program(pf))

    assert outcome(run, ours) == outcome(run, theirs)


def orders(pf, lengths, kind, *, retries=1, inside="AsyncParallelBatchFlow"):
    """Return the order of all events of concurrent flows, each with a batch of another length."""
    log = []
    started = 0
    all_started = asyncio.Event()

    async def delay():
        """Let all parallel items wait until the last of them has started, so that they become ready together."""
        nonlocal started
        started += 1
        if kind == "AsyncBatchNode":
            await asyncio.sleep(0)
        elif started == sum(lengths):
            all_started.set()
            await asyncio.sleep(0)
        else:
            await all_started.wait()

    class Items(getattr(pf, kind)):
        async def prep_async(self, shared):
            log.append(("prep", self.params["flow"]))
            await asyncio.sleep(0)
            return range(self.params["length"])

        async def exec_async(self, item):
            log.append(("exec", self.params["flow"], item))
            await delay()
            log.append(("woke", self.params["flow"], item))
            await asyncio.sleep(0)
            log.append(("again", self.params["flow"], item))

        async def post_async(self, shared, prep_res, exec_res):
            log.append(("post", self.params["flow"], len(exec_res)))

    class After(pf.AsyncNode):
        async def exec_async(self, prep_res):
            log.append(("after", self.params["flow"]))
            await asyncio.sleep(0)

        async def post_async(self, shared, prep_res, exec_res):
            log.append(("end", self.params["flow"]))

    class Flows(getattr(pf, inside)):
        async def prep_async(self, shared):
            return [{"flow": number, "length": length} for number, length in enumerate(lengths)]

    items = Items(max_retries=retries)
    items >> After()
    asyncio.run(Flows(start=items).run_async({}))
    return log


@pytest.mark.parametrize("lengths", [(1, 3, 2, 4), (4, 3, 2, 1), (2, 0, 3, 0, 1)], ids=repr)
@pytest.mark.parametrize("retries", [1, 2])
def test_parallel_batches_of_parallel_flows_continue_in_pocketflows_order(lengths, retries):
    expected = orders(theirs, lengths, "AsyncParallelBatchNode", retries=retries)
    assert orders(ours, lengths, "AsyncParallelBatchNode", retries=retries) == expected


@pytest.mark.parametrize("inside", ["AsyncParallelBatchFlow", "AsyncBatchFlow"])
def test_sequential_batches_of_flows_continue_in_pocketflows_order(inside):
    expected = orders(theirs, (1, 3, 0, 2), "AsyncBatchNode", inside=inside)
    assert orders(ours, (1, 3, 0, 2), "AsyncBatchNode", inside=inside) == expected


@BOTH
async def test_a_parallel_batch_reads_a_generator_to_its_end_before_the_first_item_runs(pf):
    log = []

    class Items(pf.AsyncParallelBatchNode):
        async def prep_async(self, shared):
            return (log.append("item") or number for number in range(3))

        async def exec_async(self, item):
            log.append("exec")

    await Items().run_async({})
    assert log == ["item"] * 3 + ["exec"] * 3


def test_max_retries_0_raises_where_pocketflow_skips_exec():
    assert theirs.Node(max_retries=0).run({}) is None
    with pytest.raises(InvalidOption, match="max_retries"):
        ours.Node(max_retries=0)


@pytest.mark.parametrize("kind", ["AsyncBatchNode", "AsyncParallelBatchNode"])
async def test_none_from_prep_of_an_async_batch_means_no_items(kind):
    class Post:
        async def post_async(self, shared, prep_res, exec_res):
            return exec_res

    def node(pf):
        return type("Items", (Post, getattr(pf, kind)), {})()

    with pytest.raises(TypeError):
        await node(theirs).run_async({})
    assert await node(ours).run_async({}) == []


async def test_parallel_items_do_not_share_their_retry_counter():
    seen = {}

    class Flaky(ours.AsyncParallelBatchNode):
        async def prep_async(self, shared):
            return range(3)

        async def exec_async(self, item):
            seen.setdefault(item, []).append(self.cur_retry)
            await asyncio.sleep(0)
            raise ValueError(item)

        async def exec_fallback_async(self, prep_res, exc):
            return str(exc)

        async def post_async(self, shared, prep_res, exec_res):
            return exec_res

    assert await Flaky(max_retries=3).run_async({}) == ["0", "1", "2"]
    assert seen == {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2]}


@BOTH
async def test_siblings_are_cancelled_and_awaited_after_an_error(pf):
    ended, began = [], asyncio.Event()

    class Items(pf.AsyncParallelBatchNode):
        async def prep_async(self, shared):
            return range(3)

        async def exec_async(self, item):
            if item == 0:
                await began.wait()
                raise ValueError("first")
            if item == 2:
                began.set()
            try:
                await forever()
            finally:
                ended.append(item)

    with pytest.raises(ValueError, match="first"):
        await Items().run_async({})
    assert sorted(ended) == ([] if pf is theirs else [1, 2])
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(left) == (2 if pf is theirs else 0)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def test_parallel_flows_are_cancelled_and_awaited_after_an_error():
    ended, began = [], asyncio.Event()

    class Work(ours.AsyncNode):
        async def exec_async(self, prep_res):
            n = self.params["n"]
            if n == 0:
                await began.wait()
                raise ValueError("first")
            if n == 2:
                began.set()
            try:
                await forever()
            finally:
                ended.append(n)

    class Each(ours.AsyncParallelBatchFlow):
        async def prep_async(self, shared):
            return [{"n": n} for n in range(3)]

    with pytest.raises(ValueError, match="first"):
        await Each(start=Work()).run_async({})
    assert sorted(ended) == [1, 2]
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_subscribers_get_the_events_of_pocketflow_runs():
    events = []

    class Load(ours.Node):
        def exec(self, prep_res):
            return 1

    class LoadAsync(ours.AsyncNode):
        async def exec_async(self, prep_res):
            return 1

    unsubscribe = subscribe(lambda event: events.append((event.flow, event.kind, event.node)))
    try:
        ours.Flow(start=Load()).run({})
        asyncio.run(ours.AsyncFlow(start=LoadAsync()).run_async({}))
    finally:
        unsubscribe()
    assert [kind for _, kind, _ in events] == ["run.started", "node.started", "node.finished", "run.finished"] * 2
    assert ("Flow", "node.finished", "Load") in events and ("AsyncFlow", "node.finished", "LoadAsync") in events
