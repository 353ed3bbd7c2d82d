"""run_async_batch: a run in a background task, whose state is in a storage while it runs."""

from __future__ import annotations

import asyncio

import pytest

import stepwell
from stepwell import MemoryStorage, StateStorage
from stepwell.errors import EncodeError, InvalidGraph, InvalidItems, InvalidOption, UsageError, WorkCancelled
from stepwell.nodes import BatchNode, Node, NodeFlow, linear, run_async_batch, step
from tests.until import forever, until


@pytest.fixture(autouse=True)
def unconfigured():
    yield
    stepwell.configure(storage=None, state_storage=None)


class Squares(BatchNode):
    def prep(self, shared):
        return shared["items"]

    async def exec(self, item):
        return item * item

    def post(self, shared, prep_res, exec_res):
        shared["squares"] = exec_res


class Total(Node):
    def post(self, shared, prep_res, exec_res):
        shared["total"] = sum(shared["squares"])


class First(Node):
    """A plain node whose prep returns the items."""

    def prep(self, shared):
        return shared["items"]

    def post(self, shared, prep_res, exec_res):
        shared["seen"] = [*shared.get("seen", []), shared["current_batch_item"]]


class Second(Node):
    def post(self, shared, prep_res, exec_res):
        shared["sum"] = shared.get("sum", 0) + shared["current_batch_item"]


async def test_a_batch_node_first_runs_each_item_once_and_the_rest_once(backend):
    storage = backend.storage()
    task = run_async_batch(linear(Squares, Total), {"items": [1, 2, 3]}, storage=storage)
    assert isinstance(task, asyncio.Task)
    assert await task == {"items": [1, 2, 3], "squares": [1, 4, 9], "total": 14}
    assert await StateStorage(storage).get_state(task.get_name()) == {}


async def test_a_plain_node_first_runs_the_whole_flow_once_per_item(backend):
    storage = backend.storage()
    task = run_async_batch(linear(First, Second), {"items": [1, 2, 3]}, storage=storage)
    assert await task == {"items": [1, 2, 3], "current_batch_item": 3, "seen": [1, 2, 3], "sum": 6}
    assert await StateStorage(storage).get_state(task.get_name()) == {}


@pytest.mark.parametrize("items", [lambda: iter([1, 2]), lambda: aiter_of([1, 2])], ids=["iterator", "async"])
async def test_the_items_of_a_plain_node_are_any_iterable(items):
    class Lazily(First):
        def prep(self, shared):
            return items() if "current_batch_item" not in shared else None

    assert (await run_async_batch(linear(Lazily), {}))["seen"] == [1, 2]


async def aiter_of(items):
    for item in items:
        yield item


async def test_prep_of_a_plain_node_may_be_a_generator():
    class Yields(First):
        def prep(self, shared):
            yield from shared["items"]

    state = await run_async_batch(linear(Yields), {"items": [1, 2]}, storage=MemoryStorage())
    assert state["seen"] == [1, 2]


async def test_no_items_leave_the_state_as_it_was():
    assert await run_async_batch(linear(First), {"items": None}) == {"items": None}
    with pytest.raises(InvalidItems):
        await run_async_batch(linear(First), {"items": "text"})


async def test_the_initial_dict_is_not_changed():
    initial = {"items": [1]}
    await run_async_batch(linear(Squares), initial)
    assert initial == {"items": [1]}


async def test_every_run_has_its_own_flow_id():
    one, two = (run_async_batch(linear(First, name="words"), {"items": [1]}) for _ in range(2))
    await asyncio.gather(one, two)
    assert one.get_name() != two.get_name()
    assert one.get_name().startswith("words_")


async def test_without_a_storage_the_configured_one_is_used():
    storage = MemoryStorage()
    stepwell.configure(storage=storage)
    seen = []

    class Look(First):
        async def exec(self, prep_res):
            seen.append(await StateStorage(storage).get_state(step().flow_id))

    await run_async_batch(linear(Look), {"items": [7]})
    assert seen == [{"items": [7], "current_batch_item": 7}]


async def test_the_state_is_stored_at_the_start_and_updated_as_items_finish(backend):
    storage = backend.storage()
    states = StateStorage(storage)
    seen = []

    class Watched(Squares):
        async def exec(self, item):
            if item == 0:
                seen.append(await states.get_state(step().flow_id))
            else:
                await until(
                    lambda: states.get_state(step().flow_id),
                    lambda state: state.get("batch_progress", {}).get("done") == item,
                )
            return item

    class After(Total):
        async def exec(self, prep_res):
            seen.append(await until(lambda: states.get_state(step().flow_id), lambda state: "squares" in state))

    task = run_async_batch(linear(Watched, After), {"items": [0, 1, 2]}, storage=storage)
    await asyncio.wait_for(task, 20)
    assert seen == [{"items": [0, 1, 2]}, {"items": [0, 1, 2], "squares": [0, 1, 2]}]


async def test_the_state_with_a_plain_first_node_is_stored_after_each_item():
    storage = MemoryStorage()
    seen = []

    class Look(First):
        async def exec(self, prep_res):
            seen.append(await StateStorage(storage).get_state(step().flow_id))

    await run_async_batch(linear(Look), {"items": ["a", "b"]}, storage=storage)
    assert seen[1] == {"items": ["a", "b"], "current_batch_item": "b", "seen": ["a"]}


@pytest.mark.parametrize("kind", [Squares, First])
async def test_the_state_is_removed_on_failure_and_on_cancellation(kind):
    storage = MemoryStorage()
    began = asyncio.Event()

    class Fails(kind):
        async def exec(self, item):
            raise ValueError("no")

    class Hangs(kind):
        async def exec(self, item):
            began.set()
            await forever()

    task = run_async_batch(linear(Fails), {"items": [1, 2]}, storage=storage)
    with pytest.raises(ValueError, match="no"):
        await task
    assert await StateStorage(storage).get_state(task.get_name()) == {}
    task = run_async_batch(linear(Hangs), {"items": [1, 2]}, storage=storage)
    await began.wait()
    assert await StateStorage(storage).get_state(task.get_name()) != {}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await StateStorage(storage).get_state(task.get_name()) == {}
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Custom(StateStorage):
    """The custom backend of the seed: four methods over a dict."""

    def __init__(self):
        super().__init__()
        self.kept, self.calls = {}, []

    async def get_state(self, flow_id):
        return self.kept.get(flow_id, {})

    async def update_state(self, flow_id, state):
        self.calls.append("update")
        self.kept[flow_id] = dict(state)
        return state

    async def merge_state(self, flow_id, updates):
        self.kept.setdefault(flow_id, {}).update(updates)
        return self.kept[flow_id]

    async def cleanup(self, flow_id):
        self.calls.append("cleanup")
        self.kept.pop(flow_id, None)


@pytest.mark.parametrize("configured", [True, False])
async def test_a_custom_state_storage_works(configured):
    custom = Custom()
    if configured:
        stepwell.configure(state_storage=custom)
    task = run_async_batch(linear(First), {"items": [1]}, storage=None if configured else custom)
    assert (await task)["seen"] == [1]
    assert custom.calls[0] == "update"
    assert custom.calls[-1] == "cleanup"
    assert custom.kept == {}


async def test_a_state_that_cannot_be_stored_is_an_error():
    class Odd(Squares):
        def post(self, shared, prep_res, exec_res):
            shared["odd"] = object()

    class Wait(Node):
        async def exec(self, prep_res):
            await forever()

    with pytest.raises(EncodeError):
        await run_async_batch(linear(Squares), {"items": object()})
    with pytest.raises(EncodeError):
        await asyncio.wait_for(run_async_batch(linear(Odd, Wait), {"items": [1]}), 10)


async def test_a_clean_up_that_fails_does_not_hide_why_the_run_failed():
    class Broken(Custom):
        async def cleanup(self, flow_id):
            raise OSError("gone")

    class Fails(First):
        def exec(self, prep_res):
            raise ValueError("first")

    with pytest.raises(ValueError, match="first") as caught:
        await run_async_batch(linear(Fails), {"items": [1]}, storage=Broken())
    assert isinstance(caught.value.__context__, ExceptionGroup)
    with pytest.raises(OSError, match="gone"):
        await run_async_batch(linear(First), {"items": [1]}, storage=Broken())


async def test_a_flow_that_is_cancelled_from_inside_has_failed():
    class Inside(Node):
        async def exec(self, prep_res):
            raise asyncio.CancelledError

    with pytest.raises(WorkCancelled):
        await run_async_batch(linear(Squares, Inside), {"items": [1]})


async def test_an_invalid_flow_raises_at_once():
    with pytest.raises(InvalidGraph):
        run_async_batch(NodeFlow(), {})
    with pytest.raises(InvalidOption):
        run_async_batch(First(), {})  # type: ignore[arg-type]


def test_it_raises_without_a_loop():
    with pytest.raises(UsageError, match="running event loop"):
        run_async_batch(linear(First), {"items": []})
