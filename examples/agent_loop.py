"""An agent: a model decides, tools run in parallel, the model sees their results, until it answers.

The model is a stand-in with a script, so this runs without a network; put a real call into ``ask``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from stepwell.nodes import END, BatchNode, Node, NodeFlow, step


async def ask(question: str, notes: list[str]) -> dict[str, Any]:
    """Stand in for a language model: call more tools, or answer?"""
    await asyncio.sleep(0)
    if not notes:
        return {"search": ["height of the well", "number of steps"]}
    return {"answer": f"{question} {' and '.join(notes)}."}


async def search(query: str) -> str:
    """Stand in for a search engine."""
    await asyncio.sleep(0)
    known = {"height of the well": "it is 20 m deep", "number of steps": "it has 3,500 steps"}
    return known[query]


class Decide(Node):
    def prep(self, shared: dict[str, Any]) -> tuple[str, list[str]]:
        return shared["question"], shared.setdefault("notes", [])

    async def exec(self, prompt: tuple[str, list[str]]) -> dict[str, Any]:
        return await ask(*prompt)

    def post(self, shared: dict[str, Any], prep_res: Any, decision: dict[str, Any]) -> Any:
        if "answer" in decision:
            return END, {"answer": decision["answer"], "turns": step().visit}
        return "search", {"queries": decision["search"]}


class Search(BatchNode):
    def prep(self, shared: dict[str, Any]) -> list[str]:
        return list(shared["queries"])

    async def exec(self, query: str) -> str:
        return await search(query)

    def post(self, shared: dict[str, Any], queries: list[str], found: list[str]) -> str:
        shared["notes"] = [*shared["notes"], *found]
        return "decide"


decide = Decide(max_retries=3, wait=1, backoff=2, timeout=30)
find = Search(concurrency=4, max_retries=3, wait=1, timeout=10)
decide - "search" >> find
find - "decide" >> decide
#: A model that never answers ends with an error.
flow = NodeFlow(start=decide, name="agent", max_steps=20)

if __name__ == "__main__":
    print(flow.run_sync({"question": "How big is Chand Baori?"})["answer"])
