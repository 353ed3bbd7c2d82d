"""StepwellSaver: copies and deletions of threads with delta channels, and pruning while a graph runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph

from stepwell.adapters.langgraph import StepwellSaver
from stepwell.adapters.langgraph.names import VALUE, WRITES
from stepwell.adapters.langgraph.ownership import ThreadWriter
from stepwell.adapters.langgraph.threads import Thread
from stepwell.errors import InvalidOption
from tests.adapters.test_langgraph_saver import THREAD, Chat, Numbers
from tests.backends import Backend
from tests.constants import Constants


def adding(saver: BaseCheckpointSaver[Any]) -> Any:
    """Return a graph that adds the count of its numbers to them."""
    builder = StateGraph(Numbers)
    builder.add_node("add", lambda state: {"numbers": [len(state["numbers"])]})
    builder.add_edge(START, "add")
    return builder.compile(checkpointer=saver)


async def four_turns(saver: BaseCheckpointSaver[Any]) -> None:
    for turn in range(4):
        await adding(saver).ainvoke(
            {"numbers": [10 * turn]}, {"configurable": {"thread_id": "ann", "run_id": f"run {turn}"}}
        )


async def numbers(saver: BaseCheckpointSaver[Any], thread_id: str = "ann") -> list[int]:
    state = await adding(saver).aget_state({"configurable": {"thread_id": thread_id}})
    found: list[int] = state.values["numbers"]
    return found


EXPECTED = [0, 1, 10, 3, 20, 5, 30, 7]


@pytest.mark.parametrize("pruned", [False, True])
async def test_a_copy_has_the_delta_channels_of_its_thread(backend: Backend, pruned: bool) -> None:
    saver = StepwellSaver(backend.storage(), ownership="fence")
    await four_turns(saver)
    if pruned:
        await saver.aprune(["ann"])
    await saver.acopy_thread("ann", "ben")
    assert await numbers(saver, "ben") == EXPECTED
    await saver.adelete_thread("ann")
    await adding(saver).ainvoke({"numbers": [40]}, {"configurable": {"thread_id": "ben"}})
    assert await numbers(saver, "ben") == [*EXPECTED, 40, 9]


@pytest.mark.parametrize("change", ["a new turn", "a prune"])
async def test_a_copy_of_a_thread_that_changes_meanwhile_is_whole(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    saver = StepwellSaver(backend.storage())
    await four_turns(saver)
    every = Thread.all
    changed = False

    async def changing(self: Thread, kind: str) -> AsyncIterator[tuple[str, str]]:
        async for each in every(self, kind):
            yield each
        nonlocal changed
        if kind in (VALUE, WRITES) and not changed:
            changed = True
            if change == "a prune":
                await saver.aprune(["ann"])
            else:
                await adding(saver).ainvoke({"numbers": [40]}, THREAD)

    monkeypatch.setattr(Thread, "all", changing)
    await saver.acopy_thread("ann", "ben")
    assert changed
    monkeypatch.undo()
    assert await numbers(saver, "ben") == EXPECTED
    states = [each async for each in adding(saver).aget_state_history({"configurable": {"thread_id": "ben"}})]
    # Before a turn its input is not in the state yet.
    assert [len(each.values.get("numbers", [])) for each in states] == sorted(
        (len(each.values.get("numbers", [])) for each in states), reverse=True
    )


async def test_a_reader_finds_all_checkpoints_of_a_large_copy_or_none(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    saver = StepwellSaver(backend.storage())
    await four_turns(saver)
    constants(threads_copy_bytes=100)
    write, seen = ThreadWriter.write, []

    async def observed(self: ThreadWriter, *args: Any, **options: Any) -> None:
        await write(self, *args, **options)
        seen.append(len([each async for each in saver.alist({"configurable": {"thread_id": "ben"}})]))

    monkeypatch.setattr(ThreadWriter, "write", observed)
    await saver.acopy_thread("ann", "ben")
    assert len(seen) > 3
    assert set(seen[:-1]) == {0}
    assert seen[-1] == len([each async for each in saver.alist(THREAD)])


@pytest.mark.parametrize("deleted", [["run 0"], ["run 1", "run 2"], ["run 0", "run 1", "run 2"]])
async def test_deleting_runs_keeps_the_delta_channels_of_the_others(backend: Backend, deleted: list[str]) -> None:
    saver = StepwellSaver(backend.storage())
    await four_turns(saver)
    await saver.adelete_for_runs(deleted)
    assert await numbers(saver) == EXPECTED
    await adding(saver).ainvoke({"numbers": [40]}, THREAD)
    assert await numbers(saver) == [*EXPECTED, 40, 9]


async def test_deleting_the_last_run_returns_to_the_one_before(backend: Backend) -> None:
    saver = StepwellSaver(backend.storage())
    await four_turns(saver)
    await saver.adelete_for_runs(["run 3"])
    assert await numbers(saver) == EXPECTED[:-2]


@pytest.mark.parametrize("ownership", [None, "fence"])
async def test_pruning_while_a_graph_runs_breaks_nothing(backend: Backend, ownership: Any) -> None:
    saver = StepwellSaver(backend.storage(), ownership=ownership)
    other = StepwellSaver(saver.storage)
    pruned = 0
    steps: asyncio.Queue[int] = asyncio.Queue()

    async def count(state: Chat) -> dict[str, Any]:
        steps.put_nowait(state["count"])
        await asyncio.sleep(0)
        return {"count": state["count"] + 1, "messages": [f"step {state['count']}"]}

    async def prune() -> None:
        nonlocal pruned
        while await steps.get() < 39:
            await other.aprune(["ann"])
            pruned += 1

    builder = StateGraph(Chat)
    builder.add_node("count", count)
    builder.add_edge(START, "count")
    builder.add_conditional_edges("count", lambda state: "count" if state["count"] < 40 else END)
    graph = builder.compile(checkpointer=saver)
    running = graph.ainvoke({"count": 0, "constant": "x" * 1_000}, {**THREAD, "recursion_limit": 50}, durability="sync")
    final, _ = await asyncio.wait_for(asyncio.gather(running, prune()), 60)
    assert final["messages"] == [f"step {number}" for number in range(40)]
    stored = (await graph.aget_state(THREAD)).values
    assert stored == final
    assert len(stored["constant"]) == 1_000
    await other.aprune(["ann"])
    assert (await graph.aget_state(THREAD)).values == final
    assert len([each async for each in saver.alist(THREAD)]) == 1
    assert pruned >= 39


async def test_a_text_in_place_of_a_list_of_ids_is_refused(backend: Backend) -> None:
    saver = StepwellSaver(backend.storage())
    with pytest.raises(InvalidOption, match=r"thread_ids must be a list of ids, not '42'; write \['42'\]"):
        await saver.aprune("42", strategy="delete")
    with pytest.raises(InvalidOption, match="run_ids must be a list"):
        await saver.adelete_for_runs("42")
