"""StepwellSaver: the conformance suite of LangGraph, and real graphs."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from stepwell import open_storage
from stepwell.adapters.langgraph import StaleWriter, StepwellSaver
from stepwell.errors import InsideLoop, InvalidOption, LeaseLost
from stepwell.storage.sealed import new_key
from tests.backends import Backend
from tests.constants import Constants

THREAD: RunnableConfig = {"configurable": {"thread_id": "ann"}}


class Chat(TypedDict, total=False):
    messages: Annotated[list[str], operator.add]
    constant: str
    count: int


def chat(saver: BaseCheckpointSaver[Any], answer: Any = None) -> Any:
    """Return a graph that adds one answer to each message."""

    async def reply(state: Chat) -> dict[str, Any]:
        if answer is not None:
            await answer(state)
        return {"messages": [f"answer {len(state['messages'])}"], "count": state.get("count", 0) + 1}

    builder = StateGraph(Chat)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    builder.add_edge("reply", END)
    return builder.compile(checkpointer=saver)


@pytest.mark.every_backend
async def test_the_whole_conformance_suite_passes(backend: Backend) -> None:
    await _validate(backend, None)


async def test_the_whole_conformance_suite_passes_with_a_fence(backend: Backend) -> None:
    await _validate(backend, "fence")


async def _validate(backend: Backend, ownership: Any) -> None:
    async def make() -> AsyncIterator[StepwellSaver]:
        yield StepwellSaver(backend.storage(), ownership=ownership)

    report = await validate(checkpointer_test(name="stepwell")(make))
    assert report.passed_all(), [each.failures for each in report.results.values()]


@pytest.mark.parametrize("ownership", [None, "fence"])
async def test_turns_continue_the_thread(backend: Backend, ownership: Any) -> None:
    saver = StepwellSaver(backend.storage(), ownership=ownership)
    for turn in range(3):
        graph = chat(saver)
        await graph.ainvoke({"messages": [f"message {turn}"], "constant": "x" * 10_000}, THREAD)
    state = (await graph.aget_state(THREAD)).values
    assert state["messages"] == ["message 0", "answer 1", "message 1", "answer 3", "message 2", "answer 5"]
    assert (state["count"], len(state["constant"])) == (3, 10_000)
    history = [each async for each in graph.aget_state_history(THREAD)]
    assert [each.metadata["step"] for each in history] == [7, 6, 5, 4, 3, 2, 1, 0, -1]


async def test_a_thread_in_an_encrypted_storage(tmp_path: Any) -> None:
    url = f"sealed+sqlite:///{tmp_path}/agents.db"
    keys = {"keys": [new_key()], "names_key": new_key()}
    for turn in range(2):
        async with open_storage(url, **keys) as storage:
            graph = chat(StepwellSaver(storage, ownership="fence"))
            await graph.ainvoke({"messages": ["a secret question"]}, THREAD)
            found = (await graph.aget_state(THREAD)).values["messages"]
            assert found.count("a secret question") == turn + 1
    assert b"a secret question" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_graph_without_a_loop_uses_the_sync_methods(tmp_path: Any) -> None:
    saver = StepwellSaver(f"sqlite:///{tmp_path}/agents.db", ownership="fence")
    builder = StateGraph(Chat)
    builder.add_node("reply", lambda state: {"messages": ["answer"]})
    builder.add_edge(START, "reply")
    graph = builder.compile(checkpointer=saver)
    for _ in range(2):
        graph.invoke({"messages": ["message"]}, THREAD)
    assert graph.get_state(THREAD).values["messages"] == ["message", "answer"] * 2
    assert len([*graph.get_state_history(THREAD)]) == 6
    saver.copy_thread("ann", "ben")
    saver.prune(["ann"])
    assert len([*saver.list(THREAD)]) == 1
    assert len([*saver.list(None)]) == 7
    saver.delete_thread("ben")
    assert saver.get_tuple({"configurable": {"thread_id": "ben"}}) is None

    async def inside() -> None:
        with pytest.raises(InsideLoop):
            saver.get_tuple(THREAD)

    asyncio.run(inside())


@pytest.mark.parametrize("ownership", [None, "fence"])
async def test_interrupts_updates_and_time_travel(backend: Backend, ownership: Any) -> None:
    saver = StepwellSaver(backend.storage(), ownership=ownership)
    builder = StateGraph(Chat)
    builder.add_node("ask", lambda state: {"messages": [interrupt("name?")]})
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=saver)
    asked = await graph.ainvoke({"messages": ["hello"]}, THREAD)
    assert asked["__interrupt__"][0].value == "name?"
    # Another process continues.
    graph = builder.compile(checkpointer=StepwellSaver(saver.storage, ownership=ownership))
    assert (await graph.ainvoke(Command(resume="Ann"), THREAD))["messages"] == ["hello", "Ann"]
    await graph.aupdate_state(THREAD, {"messages": ["edited"]})
    history = [each async for each in graph.aget_state_history(THREAD)]
    assert history[0].values["messages"] == ["hello", "Ann", "edited"]
    waiting = next(each for each in history if each.next == ("ask",))
    await graph.aupdate_state(waiting.config, {"messages": ["Ben"]}, as_node="ask")
    assert (await graph.aget_state(THREAD)).values["messages"] == ["hello", "Ben"]
    assert (await graph.aget_state(history[0].config)).values["messages"] == ["hello", "Ann", "edited"]


@pytest.mark.parametrize("ownership", [None, "fence"])
async def test_parallel_tasks_and_nested_graphs(backend: Backend, ownership: Any) -> None:
    saver = StepwellSaver(backend.storage(), ownership=ownership)
    inner = StateGraph(Chat)
    inner.add_node("first", lambda state: {"messages": ["inner 1"]})
    inner.add_node("second", lambda state: {"messages": [interrupt("go on?")]})
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    outer = StateGraph(Chat)
    outer.add_node("inner", inner.compile())
    outer.add_node("item", lambda state: {"messages": [f"item {state['count']}"]})
    outer.add_edge(START, "inner")
    outer.add_conditional_edges("inner", lambda state: [Send("item", {"count": number}) for number in range(5)])
    graph = outer.compile(checkpointer=saver)
    await graph.ainvoke({"messages": ["go"]}, THREAD)
    state = await graph.aget_state(THREAD, subgraphs=True)
    assert state.tasks[0].state.values["messages"] == ["go", "inner 1"]
    found = await graph.ainvoke(Command(resume="yes"), THREAD)
    assert found["messages"] == ["go", "go", "inner 1", "yes", *(f"item {number}" for number in range(5))]
    assert len({each.config["configurable"]["checkpoint_ns"] async for each in saver.alist(THREAD)}) == 2


class Numbers(TypedDict, total=False):
    numbers: Annotated[list[int], DeltaChannel(lambda old, new: [*old, *(n for each in new for n in each)], list)]


@pytest.mark.parametrize("ownership", [None, "fence"])
async def test_pruning_keeps_what_delta_channels_are_computed_from(backend: Backend, ownership: Any) -> None:
    def compiled(saver: BaseCheckpointSaver[Any]) -> Any:
        builder = StateGraph(Numbers)
        builder.add_node("add", lambda state: {"numbers": [len(state["numbers"])]})
        builder.add_edge(START, "add")
        return builder.compile(checkpointer=saver)

    saver, official = StepwellSaver(backend.storage(), ownership=ownership), InMemorySaver()
    for each in (saver, official):
        for turn in range(4):
            await compiled(each).ainvoke({"numbers": [turn]}, {**THREAD, "run_id": None})
    expected = (await compiled(official).aget_state(THREAD)).values
    assert (await compiled(saver).aget_state(THREAD)).values == expected
    assert len(expected["numbers"]) == 8
    await saver.aprune(["ann"])
    assert (await compiled(saver).aget_state(THREAD)).values == expected
    await compiled(saver).ainvoke({"numbers": [9]}, THREAD)
    assert (await compiled(saver).aget_state(THREAD)).values["numbers"] == [*expected["numbers"], 9, 9]


async def test_writes_of_delta_channels_do_not_linger(constants: Constants) -> None:
    builder = StateGraph(Numbers)
    builder.add_node("add", lambda state: {"numbers": [len(state["numbers"])]})
    builder.add_edge(START, "add")
    graph = builder.compile(checkpointer=StepwellSaver("memory://"))
    await graph.ainvoke({"numbers": [0]}, THREAD)
    constants(langgraph_linger=3600)
    # LangGraph awaits these writes before it stores the next checkpoint.
    await asyncio.wait_for(graph.ainvoke({"numbers": [0]}, THREAD), 30)


async def test_constant_values_are_written_once(backend: Backend) -> None:
    saver = StepwellSaver(backend.storage())
    graph = chat(saver)
    await graph.ainvoke({"messages": ["message"], "constant": "x" * 10_000}, THREAD)
    before = await _size(saver)
    for _ in range(10):
        await graph.ainvoke({"messages": ["m"]}, THREAD)
    assert await _size(saver) - before < 10 * 5_000


async def _size(saver: StepwellSaver) -> int:
    thread = saver.threads.one("ann", saver.serde)
    return sum([len(part) + len(text) for kind in "cvwr" async for part, text in thread.all(kind)])


async def test_a_stale_runner_gets_an_error_and_forks_nothing(backend: Backend) -> None:
    saver = StepwellSaver(backend.storage(), ownership="fence")
    other = StepwellSaver(saver.storage, ownership="fence")
    await chat(saver).ainvoke({"messages": ["first"]}, THREAD)
    called, go_on = asyncio.Event(), asyncio.Event()

    async def slow(state: Chat) -> None:
        called.set()
        await go_on.wait()

    # All of a step is stored before the next one begins.
    runner = chat(saver, slow).ainvoke({"messages": ["slow"]}, THREAD, durability="sync")
    stopped = asyncio.ensure_future(runner)
    await called.wait()
    # The slow runner has stored its message. The other one takes the thread over from there.
    await chat(other).ainvoke({"messages": ["quick"]}, THREAD)
    tip = await other.aget_tuple(THREAD)
    count = len([each async for each in other.alist(THREAD)])
    go_on.set()
    with pytest.raises(LeaseLost, match="another runner has written to the thread"):
        await stopped
    assert tip == await other.aget_tuple(THREAD)
    assert len([each async for each in other.alist(THREAD)]) == count
    parents = [
        each.parent_config["configurable"]["checkpoint_id"] async for each in other.alist(THREAD) if each.parent_config
    ]
    assert len(set(parents)) == len(parents)
    # The loser begins again, and continues.
    final = await chat(saver).ainvoke({"messages": ["again"]}, THREAD)
    assert [each for each in final["messages"] if "answer" not in each] == ["first", "slow", "quick", "again"]


async def test_the_official_saver_forks_in_the_same_case() -> None:
    saver = InMemorySaver()
    await chat(saver).ainvoke({"messages": ["first"]}, THREAD)
    called, go_on = asyncio.Event(), asyncio.Event()

    async def slow(state: Chat) -> None:
        called.set()
        await go_on.wait()

    stopped = asyncio.ensure_future(chat(saver, slow).ainvoke({"messages": ["slow"]}, THREAD))
    await called.wait()
    await chat(saver).ainvoke({"messages": ["quick"]}, THREAD)
    go_on.set()
    await stopped
    parents = [
        each.parent_config["configurable"]["checkpoint_id"] async for each in saver.alist(THREAD) if each.parent_config
    ]
    assert len(set(parents)) < len(parents)


async def test_many_runners_at_once_make_one_chain(backend: Backend) -> None:
    storage = backend.storage()
    savers = [StepwellSaver(storage, ownership="fence") for _ in range(4)]

    async def say(number: int) -> bool:
        for _ in range(60):
            try:
                await chat(savers[number % 4]).ainvoke({"messages": [f"message {number}"]}, THREAD)
            except StaleWriter:
                await asyncio.sleep(0.01 * number)
            else:
                return True
        return False

    assert all(await asyncio.gather(*map(say, range(6))))
    messages = (await chat(savers[0]).aget_state(THREAD)).values["messages"]
    parents = [
        each.parent_config["configurable"]["checkpoint_id"]
        async for each in savers[0].alist(THREAD)
        if each.parent_config
    ]
    assert len(set(parents)) == len(parents)
    assert {f"message {number}" for number in range(6)} <= set(messages)


async def test_a_reader_does_not_disturb_the_runner(backend: Backend) -> None:
    saver = StepwellSaver(backend.storage(), ownership="fence")

    async def look(state: Chat) -> None:
        await chat(saver).aget_state(THREAD)

    for _ in range(3):
        await chat(saver, look).ainvoke({"messages": ["message"]}, THREAD)
    # Each step of the stream is awaited in a task of its own.
    stream = chat(saver, look).astream({"messages": ["message"]}, THREAD)
    while await asyncio.create_task(_next(stream)) is not None:
        pass
    assert (await chat(saver).aget_state(THREAD)).values["count"] == 4


async def _next(stream: Any) -> Any:
    return await anext(stream, None)


@pytest.mark.every_backend
async def test_a_claim_supersedes_the_owner(backend: Backend) -> None:
    saver = StepwellSaver(backend.storage())
    first = await saver.aclaim_write_ownership("ann")
    other = await saver.aclaim_write_ownership("ben")
    start: RunnableConfig = {"configurable": {"thread_id": "ann", "checkpoint_ns": ""}}
    stored = await first.aput(start, empty_checkpoint(), {"source": "input", "step": -1}, {})
    await first.aput_writes(stored, [("channel", 1)], "task")
    await first.aput_writes(stored, [("channel", 1)], "task")
    await first.acheck_write_ownership()
    second = await StepwellSaver(saver.storage).aclaim_write_ownership("ann")
    for attempt in (
        first.acheck_write_ownership(),
        first.aput(stored, empty_checkpoint(), {"source": "loop", "step": 0}, {}),
        first.aput_writes(stored, [("channel", 2)], "task"),
    ):
        with pytest.raises(StaleWriter) as caught:
            await attempt
        assert caught.value.is_stale_write_owner_error
    found = await saver.aget_tuple(start)
    assert found is not None
    assert (found.config, found.pending_writes) == (stored, [("task", "channel", 1)])
    await second.aput_writes(stored, [("channel", 3)], "task 2")
    # A write of a saver without a claim is no claim.
    await saver.aput_writes(stored, [("channel", 4)], "task 3")
    await second.aput_writes(stored, [("channel", 5)], "task 4")
    await other.acheck_write_ownership()
    assert len((await saver.aget_tuple(start)).pending_writes or ()) == 4  # type: ignore[union-attr]


async def test_wrong_options_are_refused(backend: Backend) -> None:
    with pytest.raises(InvalidOption, match="ownership"):
        StepwellSaver("memory://", ownership="lease")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="strategy"):
        await StepwellSaver(backend.storage()).aprune(["ann"], strategy="oldest")
