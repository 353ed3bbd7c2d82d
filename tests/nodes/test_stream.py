"""Streams of values that the nodes of a run write."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing
from multiprocessing import get_context
from typing import Any

import pytest

from stepwell.errors import EncodeError, InvalidOption, OutcomeUnknown, TooLarge, UnknownRun, UsageError
from stepwell.log import Log
from stepwell.nodes import BatchNode, Node, NodeFlow, StreamEntry, linear, parallel, sse, step, worker
from stepwell.storage import Apply
from tests.backends import Backend
from tests.until import until


class Speak(Node):
    """Writes the numbers below ``count`` as tokens."""

    async def exec(self, prep_res: Any) -> None:
        for number in range(self.params.get("count", 3)):
            step().write(f"token {number}")
            if number % 100 == 0:
                await asyncio.sleep(0)


def values(entries: list[StreamEntry]) -> list[Any]:
    return [entry.value for entry in entries]


async def read(flow: NodeFlow, flow_id: str, **options: Any) -> list[StreamEntry]:
    async with asyncio.timeout(60):
        return [entry async for entry in flow.stream(flow_id, **options)]


@pytest.mark.every_backend
async def test_a_reader_that_disconnects_gets_each_token_once(backend: Backend) -> None:
    storage = backend.storage()
    flow = linear(Speak, Speak, name="speak", storage=storage)
    await storage.open()
    writes = 0
    run = storage.run

    async def counted(batch: Any) -> Any:
        nonlocal writes
        writes += sum(isinstance(operation, Apply) for operation in batch)
        return await run(batch)

    storage.run = counted  # type: ignore[method-assign]
    running = asyncio.create_task(flow.run({}, flow_id="run", keep=True, params={"count": 5_000}))
    found: list[StreamEntry] = []
    while len(found) < 10_000:
        # Disconnect five times.
        most = len(found) + 1_700
        async with asyncio.timeout(60), aclosing(_retried(flow, found)) as entries:
            async for entry in entries:
                found.append(entry)
                if len(found) == most:
                    break
    await running
    assert values(found) == 2 * [f"token {number}" for number in range(5_000)]
    numbers = [entry.number for entry in found]
    assert numbers == sorted(set(numbers))
    assert found == await read(flow, "run")
    assert await read(flow, "run", after=numbers[-3]) == found[-2:]
    assert writes < 200


async def _retried(flow: NodeFlow, found: list[StreamEntry]) -> Any:
    while True:
        try:
            async for entry in flow.stream("run", after=found[-1].number if found else 0):
                yield entry
            return
        except UnknownRun:
            # The run has not begun.
            await asyncio.sleep(0.01)


async def test_values_are_there_before_the_node_completes(backend: Backend) -> None:
    class Look(Node):
        async def prep(self, shared: Any) -> None:
            async with aclosing(flow.stream("run")) as entries:
                shared["seen"] = [(await anext(entries)).value for _ in range(3)]

    flow = linear(Speak, Look, name="speak", storage=backend.storage())
    async with asyncio.timeout(30):
        final = await flow.run({}, flow_id="run")
    assert final["seen"] == ["token 0", "token 1", "token 2"]
    # The run was not kept; its stream still ends with its last value.
    assert values(await read(flow, "run")) == ["token 0", "token 1", "token 2"]


async def test_values_of_threads_items_and_attempts(backend: Backend) -> None:
    class InThread(Node):
        def exec(self, prep_res: Any) -> None:
            step().write({"from": "a thread"})

    class Items(BatchNode):
        def prep(self, shared: Any) -> Any:
            return range(3)

        async def exec(self, item: int) -> None:
            step().write(item)

    class Retried(Node):
        async def exec(self, prep_res: Any) -> None:
            step().write(f"attempt {step().attempt}")
            if step().attempt < 3:
                raise ValueError("again")

    flow = linear(
        InThread(name="thread"),
        Items(name="items", concurrency=3),
        Retried(name="retried", max_retries=3),
        name="all",
        storage=backend.storage(),
    )
    await flow.run({}, flow_id="run")
    found = await read(flow, "run")
    assert found[0].value == {"from": "a thread"}
    assert {(entry.step, entry.value) for entry in found[1:4]} == {(f"run/items/1/{n}", n) for n in range(3)}
    assert values(found[4:]) == ["attempt 1", "attempt 2", "attempt 3"]
    assert len({entry.execution for entry in found[4:]}) == 3
    assert len({entry.step for entry in found[4:]}) == 1


async def test_a_failed_run_keeps_its_values_and_a_resumed_one_goes_on(backend: Backend) -> None:
    broken = True

    class Breaks(Node):
        async def exec(self, prep_res: Any) -> None:
            step().write("begin")
            if broken:
                raise ValueError("down")
            step().write("end")

    flow = linear(Breaks, name="breaks", storage=backend.storage())
    with pytest.raises(ValueError, match="down"):
        await flow.run({}, flow_id="run")
    found = await read(flow, "run")
    assert values(found) == ["begin"]
    broken = False
    await flow.resume("run")
    more = await read(flow, "run", after=found[-1].number)
    assert values(more) == ["begin", "end"]
    assert more[0].step == found[0].step
    assert more[0].execution != found[0].execution


async def test_a_run_without_values_has_an_empty_stream(backend: Backend) -> None:
    flow = linear(Node, name="silent", storage=backend.storage())
    await flow.run({}, flow_id="run", keep=True)
    assert await read(flow, "run") == []
    with pytest.raises(UnknownRun):
        await read(flow, "nothing")
    with pytest.raises(InvalidOption, match="after"):
        await read(flow, "run", after=-1)


async def test_a_value_that_cannot_be_stored_fails_its_node(backend: Backend) -> None:
    class Odd(Node):
        async def exec(self, prep_res: Any) -> None:
            step().write(object())

    flow = linear(Odd, name="odd", storage=backend.storage())
    with pytest.raises(Exception, match="object"):
        await flow.run({}, flow_id="run", keep=True)


async def test_write_needs_a_durable_run() -> None:
    with pytest.raises(UsageError, match="needs a storage"):
        await linear(Speak).run({})


async def test_events_for_a_browser(backend: Backend) -> None:
    class Slow(Node):
        async def exec(self, prep_res: Any) -> None:
            step().write("first\nline")
            await go_on.wait()
            step().write({"n": 1})

    go_on = asyncio.Event()
    flow = linear(Slow, name="slow", storage=backend.storage())
    running = asyncio.create_task(flow.run({}, flow_id="run", keep=True))
    await until(lambda: _known(flow))
    events = []
    async for event in sse(flow.stream("run"), heartbeat=0.05):
        events.append(event)
        if event.startswith(":"):
            go_on.set()
    await running
    assert all(event.endswith("\n\n") for event in events)
    data = [event.splitlines() for event in events if event.startswith("id: ")]
    assert [json.loads(lines[1].removeprefix("data: "))["value"] for lines in data] == ["first\nline", {"n": 1}]
    assert events[-1] == "event: end\ndata: {}\n\n"
    # A browser sends the last id again after a disconnect.
    after = int(data[0][0].removeprefix("id: "))
    assert len([event async for event in sse(flow.stream("run", after=after))]) == 2
    # A browser that asks for an unknown run must not connect again and again.
    assert [event async for event in sse(flow.stream("nothing"))] == [
        'event: end\ndata: {"error": "there is no run \'nothing\'"}\n\n'
    ]


async def _known(flow: NodeFlow) -> bool:
    try:
        await flow.status("run")
    except UnknownRun:
        return False
    return True


class Report(Node):
    """Writes one dict, which it changes, and then the values of ``shared``."""

    def prep(self, shared: Any) -> Any:
        return shared["values"]

    async def exec(self, prep_res: Any) -> None:
        progress = {"done": 0}
        for value in prep_res:
            step().write(progress)
            progress["done"] += 1
            step().write(value)


async def test_a_value_is_stored_as_it_was_written(backend: Backend) -> None:
    flow = linear(Report, name="report", storage=backend.storage())
    await flow.run({"values": ["a", "b"]}, flow_id="run")
    assert values(await read(flow, "run")) == [{"done": 0}, "a", {"done": 1}, "b"]


async def test_many_large_values_are_several_entries(backend: Backend) -> None:
    flow = linear(Report, name="report", storage=backend.storage())
    large = [{"text": "x" * 20_000}] * 80
    await flow.run({"values": large}, flow_id="run")
    assert values(await read(flow, "run"))[1::2] == large


async def test_a_value_that_cannot_be_stored_raises_in_its_node(backend: Backend) -> None:
    class Write(Node):
        async def exec(self, prep_res: Any) -> None:
            with pytest.raises(EncodeError, match="object"):
                step().write({"value": object()})
            step().write("stored")

    flow = linear(Write, name="write", storage=backend.storage())
    await flow.run({}, flow_id="run")
    assert values(await read(flow, "run")) == ["stored"]


@pytest.mark.parametrize("value", ["\ud800", "x" * 2_000_000, float("nan")])
async def test_write_raises_at_once_for_a_text_or_number_that_cannot_be_stored(backend: Backend, value: Any) -> None:
    raised: list[Exception] = []

    class Writes(Node):
        async def exec(self, prep_res: Any) -> None:
            step().write("before")
            try:
                step().write(value)
            except (EncodeError, TooLarge) as error:
                raised.append(error)
            await asyncio.sleep(0.1)
            step().write("after")

    flow = linear(Writes, name="writes", storage=backend.storage())
    await flow.run({}, flow_id="run", keep=True)
    assert len(raised) == 1
    assert values(await read(flow, "run")) == ["before", "after"]


async def test_a_value_of_almost_a_megabyte_is_stored(backend: Backend) -> None:
    class Writes(Node):
        async def exec(self, prep_res: Any) -> None:
            step().write("x" * (1024 * 1024 - 300))

    flow = linear(Writes, name="writes", storage=backend.storage())
    await flow.run({}, flow_id="run", keep=True)
    assert [len(value) for value in values(await read(flow, "run"))] == [1024 * 1024 - 300]


@pytest.mark.parametrize("applied", [False, True])
async def test_values_of_failed_writes_are_stored_once_before_the_node_completes(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    storage = backend.storage()
    await storage.open()
    failures = 0
    append = Log.append

    async def failing(log: Log, *given: Any) -> range:
        nonlocal failures
        if failures >= 3:
            return await append(log, *given)
        failures += 1
        if applied:
            await append(log, *given)
        raise OutcomeUnknown("streams", "cut")

    class Writes(Node):
        async def exec(self, prep_res: Any) -> None:
            # Every value is the same, so that content does not show what is stored.
            for _ in range(40):
                step().write("again")
                await asyncio.sleep(0.01)

    monkeypatch.setattr(Log, "append", failing)
    flow = linear(Writes, name="writes", storage=storage)
    await flow.run({}, flow_id="run", keep=True)
    assert failures == 3
    assert values(await read(flow, "run")) == ["again"] * 40


async def test_parallel_nodes_that_end_together_store_each_value_once(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Log.append

    async def slow(log: Log, *given: Any) -> range:
        await asyncio.sleep(0.03)
        return await append(log, *given)

    class Writes(Node):
        async def exec(self, prep_res: Any) -> None:
            for number in range(20):
                step().write([self.name, number])
                await asyncio.sleep(0.005)

    monkeypatch.setattr(Log, "append", slow)
    flow = linear(parallel(*(Writes(name=name) for name in "abc")), name="writes", storage=backend.storage())
    await flow.run({}, flow_id="run", keep=True)
    found = values(await read(flow, "run"))
    assert sorted(found) == [[name, number] for name in "abc" for number in range(20)]


async def test_a_run_with_the_id_of_an_earlier_one_has_only_its_own_values(backend: Backend) -> None:
    flow = linear(Report, name="report", storage=backend.storage())
    await flow.run({"values": ["old"]}, flow_id="run")
    earlier = await read(flow, "run")
    handle = await flow.submit({"values": ["new"]}, flow_id="run")
    reading = asyncio.create_task(read(flow, "run"))
    await asyncio.sleep(0)
    async with worker([flow]):
        await handle.result(timeout=60)
        found = await reading
    assert values(earlier) == [{"done": 0}, "old"]
    assert values(found) == [{"done": 0}, "new"]
    assert found == await read(flow, "run", after=earlier[-1].number)


class Square(BatchNode):
    """Writes in another process, where there is no stream."""

    def prep(self, shared: Any) -> list[int]:
        return [1]

    def exec(self, item: int) -> None:
        step().write(item)


async def test_a_process_pool_has_no_stream() -> None:
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        flow = linear(Square(executor=pool), name="square", storage="memory://")
        with pytest.raises(UsageError, match="must not run in a process pool"):
            await flow.run({}, flow_id="run")
