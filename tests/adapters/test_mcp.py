"""Tools of a real MCP server, over stdio, in the turns of a chat: each SDK with its own client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stepwell import MemoryStorage
from stepwell.turns import Turn, Turns
from tests.adapters.oldest import ROOT
from tests.turns.people import People, state_of, working
from tests.turns.test_tools import die
from tests.until import until

Answer = Callable[[Turn], Awaitable[Any]]


class Model:
    """Calls ``price`` and ``pay`` for each message, and answers with the results."""

    def __init__(self) -> None:
        self.requests = 0

    def step(self, results: list[str]) -> str | tuple[str, dict[str, str]]:
        self.requests += 1
        name = ("", "price", "pay")[self.requests % 3]
        return (name, {"item": "tea"}) if name else "; ".join(results[-2:])


def command(folder: Path) -> tuple[str, list[str]]:
    return sys.executable, ["-m", "tests.adapters.mcp_shop", str(folder)]


@asynccontextmanager
async def pydantic_ai(folder: Path, model: Model, storage: Any) -> AsyncIterator[Answer]:
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.models.function import DeltaToolCall, FunctionModel

    from stepwell.adapters.pydantic_ai import run_agent

    async def stream(messages: list[Any], info: Any) -> AsyncIterator[Any]:
        parts = [part for message in messages for part in message.parts]
        step = model.step([str(part.content) for part in parts if part.part_kind == "tool-return"])
        if isinstance(step, str):
            yield step
        else:
            yield {0: DeltaToolCall(step[0], '{"item": "tea"}', tool_call_id=uuid4().hex)}

    program, arguments = command(folder)
    toolset: Any = MCPToolset(StdioTransport(program, arguments, cwd=str(ROOT)))
    agent: Any = Agent(FunctionModel(stream_function=stream), toolsets=[toolset])
    async with agent:
        yield lambda turn: run_agent(turn, agent)


@asynccontextmanager
async def openai_agents(folder: Path, model: Model, storage: Any) -> AsyncIterator[Answer]:
    from agents import Agent, RunConfig
    from agents.mcp import MCPServerStdio
    from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

    from stepwell.adapters.openai_agents import run_agent

    def respond(call: Any) -> Any:
        outputs = [item["output"] for item in call.input if item.get("type") == "function_call_output"]
        step = model.step([each if isinstance(each, str) else each[0]["text"] for each in outputs])
        if isinstance(step, str):
            return ModelStep(output=[assistant_message(step, item_id=uuid4().hex)])
        return ModelStep(output=[function_call(*step, call_id=uuid4().hex)])

    program, arguments = command(folder)
    parameters: Any = {"command": program, "args": arguments, "cwd": str(ROOT)}
    async with MCPServerStdio(parameters, client_session_timeout_seconds=60) as server:
        agent = Agent(name="clerk", model=ScriptedModel([ModelStep.respond(respond)] * 9), mcp_servers=[server])
        config = RunConfig(tracing_disabled=True)
        yield lambda turn: run_agent(turn, agent, run_config=config, safe=["price"])


@asynccontextmanager
async def langgraph(folder: Path, model: Model, storage: Any) -> AsyncIterator[Answer]:
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.tools import StructuredTool
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    from stepwell.adapters.langgraph import StepwellSaver, run_graph, run_tool

    def respond(state: MessagesState) -> Any:
        step = model.step([message.text for message in state["messages"] if isinstance(message, ToolMessage)])
        if isinstance(step, str):
            return {"messages": [AIMessage(step)]}
        call = {"name": step[0], "args": step[1], "id": uuid4().hex}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    program, arguments = command(folder)
    parameters = StdioServerParameters(command=program, args=arguments, cwd=str(ROOT))
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()

        def made(tool: Any) -> StructuredTool:
            async def call(**arguments: Any) -> str:
                content: Any = (await session.call_tool(tool.name, arguments)).content
                return str(content[0].text)

            metadata = None if tool.annotations is None else tool.annotations.model_dump(by_alias=True)
            return StructuredTool(
                name=tool.name, description=tool.description, args_schema=tool.input_schema,
                coroutine=call, metadata=metadata,
            )  # fmt: skip

        tools = [made(tool) for tool in (await session.list_tools()).tools]
        builder: Any = StateGraph(MessagesState)
        builder.add_node("model", respond)
        builder.add_node("tools", ToolNode(list(tools), awrap_tool_call=run_tool))
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
        builder.add_edge("tools", "model")
        graph = builder.compile(checkpointer=StepwellSaver(storage))
        yield lambda turn: run_graph(turn, graph, retry_tools=True)


@pytest.fixture(autouse=True)
def errors_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers write to the real stderr: the default is that of the import, which pytest may have closed."""
    from mcp.client.stdio import stdio_client

    function: Any = stdio_client
    monkeypatch.setattr(function.__wrapped__, "__defaults__", (sys.__stderr__,))


@pytest.mark.parametrize("framework", [pydantic_ai, openai_agents, langgraph])
async def test_a_tool_of_an_mcp_server_runs_once(framework: Any, tmp_path: Path) -> None:
    model, people, storage = Model(), People(), MemoryStorage()
    bot = Bot(Turns("bot", storage=storage, collect=0.0, lease=1.5))
    calls, go = tmp_path / "calls", tmp_path / "go"
    async with framework(tmp_path, model, storage) as answer:

        @bot.turns.handler
        async def run(turn: Turn) -> None:
            await answer(turn)

        async with working(bot.turns, people):
            go.touch()
            await bot.turns.admit(people.message("buy tea"))
            assert await people.answered() == ["tea costs 3; paid for tea"]
            await state_of(bot.turns, "idle")
            go.unlink()
            await bot.turns.admit(people.message("buy tea"))
            await until(calls.read_text, lambda text: text.count("pay") == 2)
            dies = asyncio.ensure_future(die(bot))  # type: ignore[arg-type]
            text = (await people.answered(2))[1]
            dies.cancel()
            await state_of(bot.turns, "idle")
    assert text.startswith("tea costs 3; The outcome of this call is unknown")
    assert calls.read_text().splitlines() == ["price tea", "pay tea"] * 2 and model.requests == 6


class Bot:
    def __init__(self, turns: Turns) -> None:
        self.turns = turns
