"""Node flows beside PocketFlow and asyncio.gather: time per node and per item, and how a fan-out grows."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pocketflow

from stepwell import pocketflow as compatible
from stepwell.nodes import BatchNode, Node, NodeFlow, linear

VISITS = 5_000
ITEMS = 20_000
PARALLEL = 10_000
WINDOW = 100
ROUNDS = 15


def main() -> int:
    """Print each figure beside its peer's; return the number of missed bounds."""
    missed = 0
    for what, ours, peer, count in (
        ("a node, looping, sync", looping(Sync, Stop), looping_pf(pocketflow), VISITS),
        ("a node, looping, async", looping(Async, Stop), looping_pf_async(pocketflow), VISITS),
        ("a node of three, whole runs, sync", short(), short_pf(pocketflow), 3 * VISITS // 5),
        ("a node of three, whole runs, async", short_async(), short_pf_async(pocketflow), 3 * VISITS // 5),
        ("an item, sync batch", batch(SyncItems), batch_pf(pocketflow), ITEMS),
        ("an item, async batch", batch(AsyncItems), batch_pf_async(pocketflow), ITEMS),
        ("an item, parallel batch, window 100", window(), gathered, PARALLEL),
        ("a node, stepwell.pocketflow, sync", looping_pf(compatible), looping_pf(pocketflow), VISITS),
        ("a node, stepwell.pocketflow, async", looping_pf_async(compatible), looping_pf_async(pocketflow), VISITS),
        ("an item, stepwell.pocketflow", batch_pf(compatible), batch_pf(pocketflow), ITEMS),
    ):
        missed += compared(what, ours, peer, count)
    return missed + fan_out()


def compared(what: str, ours: Callable[[], object], peer: Callable[[], object], count: int) -> int:
    """Measure both in turns, so that other load affects both; return 1 if ours is slower."""
    pairs = [(timed(ours, count), timed(peer, count)) for _ in range(ROUNDS)]
    mine, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    missed = ratio > 1
    print(f"{what:40} {mine:7.2f} us, peer {theirs:7.2f} us   ratio {ratio:.2f}{'   MISSED' if missed else ''}")
    return int(missed)


def timed(action: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) / count * 1e6


class Sync(Node):
    def prep(self, shared: Any) -> Any:
        return shared["n"]

    def exec(self, n: int) -> int:
        return n + 1

    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> str:
        shared["n"] = exec_res
        return "again" if exec_res < VISITS else "done"


class Async(Node):
    async def prep(self, shared: Any) -> Any:
        return shared["n"]

    async def exec(self, n: int) -> int:
        return n + 1

    async def post(self, shared: Any, prep_res: Any, exec_res: Any) -> str:
        shared["n"] = exec_res
        return "again" if exec_res < VISITS else "done"


class Stop(Node):
    async def exec(self, prep_res: Any) -> None:
        pass


class SyncStop(Node):
    pass


def looping(kind: type[Node], last: type[Node]) -> Callable[[], object]:
    node = kind()
    node - "again" >> node
    node - "done" >> (SyncStop() if kind is Sync else last())
    flow = NodeFlow(start=node)
    if kind is Sync:
        return lambda: flow.run_sync({"n": 0})
    return lambda: asyncio.run(flow.run({"n": 0}))


def looping_pf(pf: Any) -> Callable[[], object]:
    kind = type("Loop", (pf.Node,), {"prep": Sync.prep, "exec": Sync.exec, "post": Sync.post})
    node = kind()
    node - "again" >> node
    node - "done" >> pf.Node()
    flow = pf.Flow(start=node)
    return lambda: flow.run({"n": 0})


def looping_pf_async(pf: Any) -> Callable[[], object]:
    hooks = {"prep_async": Async.prep, "exec_async": Async.exec, "post_async": Async.post}
    node = type("Loop", (pf.AsyncNode,), hooks)()
    node - "again" >> node
    node - "done" >> pf.AsyncNode()
    flow = pf.AsyncFlow(start=node)
    return lambda: asyncio.run(flow.run_async({"n": 0}))


def short() -> Callable[[], object]:
    flow = linear(SyncStop, SyncStop, SyncStop)
    return lambda: [flow.run_sync({}) for _ in range(VISITS // 5)]


def short_pf(pf: Any) -> Callable[[], object]:
    a, b, c = pf.Node(), pf.Node(), pf.Node()
    a >> b >> c
    flow = pf.Flow(start=a)
    return lambda: [flow.run({}) for _ in range(VISITS // 5)]


def short_async() -> Callable[[], object]:
    flow = linear(Stop, Stop, Stop)

    async def runs() -> None:
        for _ in range(VISITS // 5):
            await flow.run({})

    return lambda: asyncio.run(runs())


def short_pf_async(pf: Any) -> Callable[[], object]:
    a, b, c = pf.AsyncNode(), pf.AsyncNode(), pf.AsyncNode()
    a >> b >> c
    flow = pf.AsyncFlow(start=a)

    async def runs() -> None:
        for _ in range(VISITS // 5):
            await flow.run_async({})

    return lambda: asyncio.run(runs())


class SyncItems(BatchNode):
    def prep(self, shared: Any) -> Any:
        return range(ITEMS)

    def exec(self, item: int) -> int:
        return item + 1


class AsyncItems(BatchNode):
    async def prep(self, shared: Any) -> Any:
        return range(ITEMS)

    async def exec(self, item: int) -> int:
        return item + 1


def batch(kind: type[BatchNode]) -> Callable[[], object]:
    flow = NodeFlow(start=kind())
    if kind is SyncItems:
        return flow.run_sync
    return lambda: asyncio.run(flow.run())


def batch_pf(pf: Any) -> Callable[[], object]:
    node = type("Items", (pf.BatchNode,), {"prep": SyncItems.prep, "exec": SyncItems.exec})()
    flow = pf.Flow(start=node)
    return lambda: flow.run({})


def batch_pf_async(pf: Any) -> Callable[[], object]:
    hooks = {"prep_async": AsyncItems.prep, "exec_async": AsyncItems.exec}
    flow = pf.AsyncFlow(start=type("Items", (pf.AsyncBatchNode,), hooks)())
    return lambda: asyncio.run(flow.run_async({}))


async def yielding(item: int) -> int:
    await asyncio.sleep(0)
    return item


class Window(BatchNode):
    def prep(self, shared: Any) -> Any:
        return range(PARALLEL)

    async def exec(self, item: int) -> int:
        return await yielding(item)


def window() -> Callable[[], object]:
    flow = NodeFlow(start=Window(concurrency=WINDOW))
    return lambda: asyncio.run(flow.run())


def gathered() -> None:
    async def gather() -> None:
        await asyncio.gather(*(yielding(item) for item in range(PARALLEL)))

    asyncio.run(gather())


class FanOut(BatchNode):
    """Returns small numbers, so that all other memory that grows with the items is ours."""

    def prep(self, shared: Any) -> Any:
        return self.items(shared["count"])

    def items(self, count: int) -> Any:
        return (f"item {number}" for number in range(count))

    async def exec(self, item: str) -> int:
        await asyncio.sleep(0)
        return len(item)

    def post(self, shared: Any, prep_res: Any, exec_res: Any) -> None:
        assert len(exec_res) == shared["count"]


class AsyncFanOut(FanOut):
    async def items(self, count: int) -> AsyncIterator[str]:
        for number in range(count):
            yield f"item {number}"


class ThreadFanOut(FanOut):
    def exec(self, item: str) -> int:
        return len(item)

    def items(self, count: int) -> Iterator[str]:
        return (f"item {number}" for number in range(count))


def fan_out(small: int = 10_000, large: int = 100_000) -> int:
    """Compare ten times the items: the time per item, and the memory beyond the list of results."""
    missed = 0
    for kind in (FanOut, AsyncFanOut, ThreadFanOut):
        flow = NodeFlow(start=kind(concurrency=WINDOW if kind is not ThreadFanOut else 4))

        def run(count: int, flow: NodeFlow = flow) -> object:
            return asyncio.run(flow.run({"count": count}))

        growth = statistics.median(cpu(partial(run, large), large) / cpu(partial(run, small), small) for _ in range(5))
        extra = peak(partial(run, large)) - peak(partial(run, small)) - 8 * (large - small)
        off = growth > 1.3 or extra > 1_000_000
        missed += int(off)
        print(
            f"{kind.__name__ + ', 100,000 beside 10,000 items':40} {growth:7.2f} times an item's time, "
            f"{extra / 1e6:+.2f} MB beyond the results{'   MISSED' if off else ''}"
        )
    return missed


def cpu(action: Callable[[], object], count: int) -> float:
    """Return the processor time of all threads per item, which does not depend on other load."""
    start = time.process_time()
    action()
    return (time.process_time() - start) / count


def peak(action: Callable[[], object]) -> int:
    tracemalloc.start()
    action()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


if __name__ == "__main__":
    sys.exit(main())
