"""The role of a worker that runs a LangGraph graph on one thread. LangGraph is imported when a worker begins."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Annotated, Any

from stepwell import Storage
from tests.until import until

Report = Callable[..., None]
THREAD: Any = {"configurable": {"thread_id": "shared"}}


def talking(saver: Any, wait: Callable[[], Awaitable[None]] | None = None) -> Any:
    """Return a graph that answers each message in two steps. ``wait`` is called between them."""
    import asyncio
    import random

    from langgraph.graph import START, StateGraph
    from typing_extensions import TypedDict

    class Talk(TypedDict, total=False):
        messages: Annotated[list[str], operator.add]

    async def think(state: Talk) -> dict[str, Any]:
        await (asyncio.sleep(random.uniform(0, 0.02)) if wait is None else wait())
        return {}

    async def reply(state: Talk) -> dict[str, Any]:
        return {"messages": [f"answer to {state['messages'][-1]}"]}

    builder = StateGraph(Talk)
    builder.add_node("think", think)
    builder.add_node("reply", reply)
    builder.add_edge(START, "think")
    builder.add_edge("think", "reply")
    return builder.compile(checkpointer=saver)


async def talk(storage: Storage, report: Report, *, name: str) -> None:
    """Send messages to the thread, without an end; begin again when another worker was faster."""
    from stepwell.adapters.langgraph import StaleWriter, StepwellSaver

    graph = talking(StepwellSaver(storage, ownership="fence"))
    for number in count():
        message = f"{name} {number}"
        while True:
            try:
                await graph.ainvoke({"messages": [message]}, THREAD, durability="sync")
            except StaleWriter:
                report("stale", message)
            else:
                report("answered", message)
                break


async def race(storage: Storage, report: Report, *, name: str, folder: str) -> None:
    """Send a message to a thread of the official saver, then to one of ours.

    The process ``slow`` waits between its two steps until the process ``quick`` has sent its message.
    """
    from pathlib import Path

    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    from stepwell.adapters.langgraph import StaleWriter, StepwellSaver

    async def happened(event: str) -> None:
        await until((Path(folder) / event).exists)

    async def send(saver: Any, what: str) -> None:
        async def wait() -> None:
            if name == "slow":
                (Path(folder) / f"{what} waits").touch()
                await happened(f"{what} goes on")

        if name == "quick":
            await happened(f"{what} waits")
        try:
            await talking(saver, wait).ainvoke({"messages": [name]}, THREAD, durability="sync")
        except StaleWriter:
            report("stale", what)
        else:
            report("answered", what)
        (Path(folder) / f"{what} goes on").touch()

    async with AsyncSqliteSaver.from_conn_string(f"{folder}/official.db") as saver:
        await send(saver, "official")
    await send(StepwellSaver(storage, ownership="fence"), "ours")
