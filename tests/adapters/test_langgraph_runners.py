"""StepwellSaver with a fence: which reads and writes belong to one runner of a thread."""

from __future__ import annotations

import asyncio
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from stepwell import SQLiteStorage, sync
from stepwell.adapters.langgraph import StepwellSaver, StepwellStore
from stepwell.adapters.langgraph.writers import _in_context
from stepwell.errors import InsideLoop
from tests.adapters.test_langgraph_saver import THREAD, Chat, chat


async def test_a_program_reads_the_thread_that_it_streams() -> None:
    async def reply(state: Chat) -> Chat:
        await asyncio.sleep(0.01)
        return {"messages": ["answer"]}

    builder = StateGraph(Chat)
    builder.add_sequence([("first", reply), ("second", reply)])
    builder.add_edge(START, "first")
    graph = builder.compile(checkpointer=StepwellSaver("memory://", ownership="fence"))
    for turn in range(2):
        async for _ in graph.astream({"messages": ["hello"]}, THREAD):
            assert (await graph.aget_state(THREAD)).values["messages"]
            await asyncio.sleep(0.02)
        assert len((await graph.aget_state(THREAD)).values["messages"]) == 3 * turn + 3


async def test_a_nested_graph_is_updated_after_another_runner() -> None:
    inner = StateGraph(Chat)
    inner.add_node("ask", lambda _: {"messages": [interrupt("question")]})
    inner.add_edge(START, "ask")
    builder = StateGraph(Chat)
    builder.add_node("inner", inner.compile())
    builder.add_edge(START, "inner")
    graph = builder.compile(checkpointer=StepwellSaver("memory://", ownership="fence"))
    await graph.ainvoke({"messages": ["hello"]}, THREAD)
    nested = (await graph.aget_state(THREAD, subgraphs=True)).tasks[0].state
    assert not isinstance(nested, dict)
    namespace = nested.config["configurable"]["checkpoint_ns"]
    place: RunnableConfig = {"configurable": {**THREAD["configurable"], "checkpoint_ns": namespace}}
    await graph.aupdate_state(place, {"messages": ["mine"]})
    # A task of an empty context is another runner.
    await asyncio.create_task(graph.aupdate_state(place, {"messages": ["theirs"]}), context=Context())
    await graph.aupdate_state(place, {"messages": ["mine again"]})
    found = await graph.aget_state(place)
    assert found.values["messages"] == ["hello", "mine", "theirs", "mine again"]


def test_parallel_nodes_belong_to_the_runner_of_their_graph() -> None:
    inner = StateGraph(Chat)
    builder = StateGraph(Chat)
    builder.add_node("first", lambda _: {"messages": ["first"]})
    builder.add_edge(START, "first")
    for name in "abc":
        inner.add_node(name, lambda _: {"messages": ["inner"]})
        inner.add_edge(START, name)
        builder.add_node(name, lambda _: {"messages": ["outer"]})
        builder.add_edge("first", name)
    builder.add_node("inner", inner.compile())
    builder.add_edge("first", "inner")
    saver = StepwellSaver("memory://", ownership="fence")
    graph, in_memory = builder.compile(checkpointer=saver), builder.compile(checkpointer=InMemorySaver())
    # LangGraph stores their writes in threads of their own, in any order.
    for number in range(10):
        thread: RunnableConfig = {"configurable": {"thread_id": str(number)}}
        for _ in range(2):
            for each in (graph, in_memory):
                each.invoke({"messages": ["hello"]}, thread)
        stored, expected = (sorted(each.get_state(thread).values["messages"]) for each in (graph, in_memory))
        assert stored == expected
    sync(saver.storage.close())


class Counted(TypedDict):
    n: int


def test_nested_graphs_of_many_runs_of_a_thread_have_the_writer_of_their_own_run() -> None:
    inner = StateGraph(Counted).add_node("count", lambda state: {"n": state["n"] + 1}).add_edge(START, "count")
    builder = StateGraph(Counted)
    builder.add_sequence([("first", inner.compile()), ("second", inner.compile())])
    builder.add_edge(START, "first")
    saver = StepwellSaver("memory://", ownership="fence")
    graph = builder.compile(checkpointer=saver)
    # LangGraph's objects for these runs are freed, so that later ones may have their ids.
    for number in range(200):
        assert graph.invoke({"n": number}, THREAD) == {"n": number + 2}
    sync(saver.storage.close())


@pytest.mark.parametrize("ownership", [None, "fence"])
async def test_a_node_in_a_thread_may_call_a_graph_and_the_store(ownership: Any, tmp_path: Path) -> None:
    async with SQLiteStorage(str(tmp_path / "agents.db")) as storage:
        store = StepwellStore(storage)
        nested = (
            StateGraph(Chat).add_node("reply", lambda _: {"messages": ["nested"]}).add_edge(START, "reply").compile()
        )

        def node(state: Chat) -> Chat:
            store.put(("notes",), "k", {"x": 1})
            found = store.get(("notes",), "k")
            assert found is not None and found.value == {"x": 1}
            return {"messages": [nested.invoke({"messages": []})["messages"][-1]]}

        builder = StateGraph(Chat).add_node("node", node).add_edge(START, "node")
        graph = builder.compile(checkpointer=StepwellSaver(storage, ownership=ownership))
        final = await graph.ainvoke({"messages": ["hello"]}, THREAD)
        assert final["messages"] == ["hello", "nested"]
        state = await asyncio.to_thread(graph.get_state, THREAD)
        assert state.values == final
        with pytest.raises(InsideLoop, match=r"graph\.ainvoke\(\)"):
            graph.invoke({"messages": ["hello"]}, THREAD)


async def test_a_task_that_runs_many_threads_keeps_few_writers() -> None:
    graph = chat(StepwellSaver("memory://", ownership="fence"))
    for number in range(40):
        await graph.aget_state({"configurable": {"thread_id": str(number)}})
    assert len(_in_context.get()) == 16
