"""The role of a worker that runs a LangGraph graph on one thread. LangGraph is imported when a worker begins."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import count
from typing import Annotated, Any

from stepwell import Storage

Report = Callable[..., None]
THREAD: Any = {"configurable": {"thread_id": "shared"}}


def talking(saver: Any) -> Any:
    """Return a graph that answers each message in two steps."""
    import asyncio
    import random

    from langgraph.graph import START, StateGraph
    from typing_extensions import TypedDict

    class Talk(TypedDict, total=False):
        messages: Annotated[list[str], operator.add]

    async def think(state: Talk) -> dict[str, Any]:
        await asyncio.sleep(random.uniform(0, 0.02))
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
