"""StepwellDurability: agents of pydantic-ai in durable runs, with models that answer without a network."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from stepwell.adapters.pydantic_ai import StepwellDurability
from stepwell.nodes import Node, linear
from tests.backends import Backend


class Clerk:
    """An agent that asks two tools, and answers; each call is counted, and one of them may fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.broken = True
        self.repairs_itself = False
        agent: Agent[None, str] = Agent(FunctionModel(self.model), name="clerk", capabilities=[StepwellDurability()])

        @agent.tool_plain
        def price(item: str) -> int:
            self.calls.append(f"price {item}")
            return len(item)

        @agent.tool_plain
        def ship(item: str) -> str:
            self.calls.append(f"ship {item}")
            if self.broken:
                self.broken = not self.repairs_itself
                raise OSError("the shop is down")
            return "sent"

        self.agent = agent

    async def model(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        self.calls.append(f"model {turn}")
        if turn == 0:
            return ModelResponse([ToolCallPart("price", {"item": name}) for name in ("tea", "bread")])
        if turn == 1:
            return ModelResponse([ToolCallPart("ship", {"item": "tea"})])
        return ModelResponse([TextPart("done")])

    def flow(self, storage: Any, **options: Any) -> Any:
        clerk = self

        class Ask(Node):
            async def exec(self, prep_res: Any) -> str:
                return (await clerk.agent.run("Sell.")).output

            def post(self, shared: Any, prep_res: Any, exec_res: str) -> None:
                shared["answer"] = exec_res

        return linear(Ask(name="ask", **options), name="shop", storage=storage)


@pytest.mark.every_backend
async def test_a_resumed_agent_repeats_no_operation_that_has_ended(backend: Backend) -> None:
    clerk = Clerk()
    flow = clerk.flow(backend.storage())
    with pytest.raises(OSError, match="down"):
        await flow.run({}, flow_id="run")
    assert sorted(clerk.calls) == ["model 0", "model 1", "price bread", "price tea", "ship tea"]
    clerk.calls.clear()
    clerk.broken = False
    assert (await flow.resume("run"))["answer"] == "done"
    assert clerk.calls == ["ship tea", "model 2"]


async def test_a_retried_node_continues_too(backend: Backend) -> None:
    clerk = Clerk()
    clerk.repairs_itself = True
    assert (await clerk.flow(backend.storage(), max_retries=2).run({}, flow_id="run"))["answer"] == "done"
    assert clerk.calls.count("ship tea") == 2
    assert [call for call in clerk.calls if call.startswith("model")] == ["model 0", "model 1", "model 2"]


async def test_two_runs_do_not_share_results(backend: Backend) -> None:
    clerk = Clerk()
    clerk.broken = False
    flow = clerk.flow(backend.storage())
    for number in range(2):
        assert (await flow.run({}, flow_id=f"run {number}"))["answer"] == "done"
    assert clerk.calls.count("model 0") == 2


async def test_outside_a_durable_run_nothing_is_stored() -> None:
    clerk = Clerk()
    clerk.broken = False
    for _ in range(2):
        assert (await clerk.agent.run("Sell.")).output == "done"
    assert (await clerk.flow(None).run({}))["answer"] == "done"
    assert clerk.calls.count("model 0") == 3


async def test_a_run_with_the_id_of_an_earlier_one_asks_again(backend: Backend) -> None:
    clerk = Clerk()
    clerk.broken = False
    flow = clerk.flow(backend.storage())
    await flow.run({}, flow_id="order")
    asked = list(clerk.calls)
    await flow.run({}, flow_id="order")
    # The agent calls its two price tools side by side, so their order differs between runs.
    assert sorted(clerk.calls[: len(asked)]) == sorted(clerk.calls[len(asked) :])
