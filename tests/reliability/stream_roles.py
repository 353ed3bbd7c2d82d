"""Roles of workers that are killed while a node writes a stream, or while an agent calls a tool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stepwell import Storage
from stepwell.nodes import Node, NodeFlow, linear, step
from stepwell.nodes.run import journal, lease
from tests.reliability.run_roles import LEASE, WATCH
from tests.until import forever

Report = Callable[..., None]


class Speak(Node):
    """Writes numbered tokens, and stops for good before one of them."""

    def __init__(self, name: str, report: Report, count: int, stop: int | None = None) -> None:
        super().__init__(name=name)
        self.report = report
        self.count = count
        self.stop = stop

    async def exec(self, prep_res: Any) -> None:
        for number in range(self.count):
            if number == self.stop:
                self.report("stopped")
                await forever()
            step().write([self.name, number])
            if number % 10 == 0:
                await asyncio.sleep(0.005)


def speech(storage: Storage, report: Report, count: int, stop: int | None = None) -> NodeFlow:
    """Return a flow whose second node may stop."""
    nodes = Speak("greeting", report, 5), Speak("story", report, count, stop), Speak("end", report, 5)
    return linear(*nodes, name="speech", storage=storage, keep=True)


async def speak(storage: Storage, report: Report, *, flow_id: str, count: int, stop: int | None = None) -> None:
    """Start a run with a stream, or resume it."""
    lease.LEASE = LEASE
    journal.WATCH = WATCH
    await speech(storage, report, count, stop).run({}, flow_id=flow_id, if_exists="resume")


async def sell(storage: Storage, report: Report, *, flow_id: str, hang: bool) -> None:
    """Run an agent of pydantic-ai, which hangs in its second tool, or resume it."""
    from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from stepwell.adapters.pydantic_ai import StepwellDurability

    lease.LEASE = LEASE
    journal.WATCH = WATCH

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        report("called", f"model {turn}")
        tools = [[ToolCallPart("price", {"item": "tea"})], [ToolCallPart("ship", {"item": "tea"})]]
        return ModelResponse(tools[turn] if turn < 2 else [TextPart("sold")])

    agent: Agent[None, str] = Agent(FunctionModel(model), name="clerk", capabilities=[StepwellDurability()])

    @agent.tool_plain
    def price(item: str) -> int:
        report("called", f"price {item}")
        return 3

    @agent.tool_plain(metadata={"replay": "safe"})
    async def ship(item: str) -> str:
        report("called", f"ship {item}")
        if hang:
            report("hangs")
            await forever()
        return "sent"

    class Ask(Node):
        async def exec(self, prep_res: Any) -> str:
            return (await agent.run("Sell.")).output

        def post(self, shared: dict[str, Any], prep_res: Any, exec_res: str) -> None:
            shared["answer"] = exec_res

    flow = linear(Ask(name="ask"), name="shop", storage=storage, keep=True)
    report("answer", (await flow.run({}, flow_id=flow_id, if_exists="resume"))["answer"])
