"""Agents of the frameworks in turns. Their scripted model refuses a history as the providers of models do."""

from __future__ import annotations

import asyncio
import re
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell import Storage
from stepwell.engine import TURNS
from stepwell.storage import Apply, Operation
from stepwell.turns import Turn, Turns
from tests.reliability.turn_roles import LEASE, POINTS, Killing, point_of, write_line

FRAMEWORKS = ("pydantic_ai", "openai_agents", "langgraph", "google_adk")
#: What is imported before processes are forked.
MODULES = tuple(f"stepwell.adapters.{name}" for name in FRAMEWORKS)
#: The points of a turn, and those around the first write of the framework: what it keeps, or its first checkpoint.
AGENT_POINTS = (POINTS[0], "before the keep", "behind the keep", *POINTS[1:])

#: Requests of the model in a turn, each for one call of a tool. A turn may have many messages, and the frameworks allow
#: an agent few by default: 10 with OpenAI Agents, 50 with Pydantic AI. A turn that needs more fails.
MOST_REQUESTS = 10_000
TOOLS = ("ask", "pay", "look", "wait")
#: A message of a history: what it is, and its text; of a call and a result also the id, and of a call its name.
Said = tuple[str, ...]
Step = str | tuple[str, str]


def step_of(history: list[Said]) -> Step:
    """Return what the model answers: the call of a tool that a message names, or a line for each message."""
    calls: dict[str, tuple[str, str]] = {}
    results: dict[tuple[str, str], str] = {}
    messages: dict[str, list[str]] = {}
    still_open: set[str] = set()
    for kind, text, *of in history:
        if kind == "call":
            calls[of[0]] = of[1], re.findall(r"\d+", text)[0]
            still_open.add(of[0])
        elif kind == "result":
            assert of[0] in still_open, f"the result {text!r} has no call, or is the second one"
            still_open.remove(of[0])
            if "was not made" in text or "requires confirmation" in text:
                continue
            results[calls[of[0]]] = short(text)
        else:
            assert not still_open, f"{text!r} comes before the results of {still_open}"
            if kind == "model":
                messages.clear()
            for line in text.splitlines() if kind == "user" else ():
                number, *words = line.split()
                messages[number] = words
    assert history[-1][0] in ("user", "result"), "there is nothing to answer"
    wanted = [(name, number) for number, words in messages.items() for name in TOOLS if name in words]
    for each in wanted:
        if each not in results:
            return each
    return "\n".join(
        f"[{number}] " + "; ".join(results[each] for each in wanted if each[1] == number) for number in messages
    )


def short(result: str) -> str:
    return (
        "unknown"
        if "unknown" in result
        else "interrupted"
        if "interrupted" in result
        else re.sub(r"\{.result.: .(.*).\}", r"\1", result)
    )


class Tools:
    """The tools of all agents. Each gets the number of a message."""

    def __init__(self, payments: str, kill: Callable[[str], None], report: Callable[..., None], go: str | None) -> None:
        self._payments = payments
        self._kill = kill
        self._report = report
        self._go = go

    async def pay(self, number: str) -> str:
        """Pay."""
        write_line(self._payments, "paid", number)
        self._kill("in the tool")
        return f"receipt for {number}"

    async def ask(self, number: str) -> str:
        """Pay if that is approved."""
        return await self.pay(number)

    async def look(self, number: str) -> str:
        """Look."""
        return f"look {number}"

    async def wait(self, number: str) -> str:
        """Wait."""
        self._report("waiting")
        while self._go and not Path(self._go).exists():
            await asyncio.sleep(0.01)
        return f"waited {number}"


def pydantic_ai(tools: Tools, storage: Storage) -> Callable[[Turn], Any]:
    from pydantic_ai import Agent, ModelResponse
    from pydantic_ai.models.function import DeltaToolCall, FunctionModel
    from pydantic_ai.usage import UsageLimits

    from stepwell.adapters.pydantic_ai import run_agent

    def history_of(messages: list[Any]) -> list[Said]:
        found: list[Said] = []
        for message in messages:
            for part in message.parts:
                if part.part_kind == "tool-call":
                    found.append(("call", part.args_as_json_str(), part.tool_call_id, part.tool_name))
                elif part.part_kind == "tool-return":
                    found.append(("result", str(part.content), part.tool_call_id))
                else:
                    found.append(("model" if isinstance(message, ModelResponse) else "user", str(part.content)))
        return found

    async def model(messages: list[Any], info: Any) -> Any:
        step = step_of(history_of(messages))
        if isinstance(step, str):
            for word in re.split("(?<= )", step):
                yield word
        else:
            name, number = step
            yield {0: DeltaToolCall(name, f'{{"number":"{number}"}}', tool_call_id=uuid.uuid4().hex)}

    agent: Any = Agent(FunctionModel(stream_function=model))
    agent.tool_plain(tools.pay)
    agent.tool_plain(tools.ask, requires_approval=True)
    for tool in (tools.look, tools.wait):
        agent.tool_plain(tool, metadata={"replay": "safe"})
    limits = UsageLimits(request_limit=MOST_REQUESTS)
    return lambda turn: run_agent(turn, agent, usage_limits=limits)


def openai_agents(tools: Tools, storage: Storage) -> Callable[[Turn], Any]:
    from agents import Agent, RunConfig, function_tool
    from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

    from stepwell.adapters.openai_agents import run_agent

    def said(item: Any) -> Said:
        if item.get("type") == "function_call":
            return "call", item["arguments"], item["call_id"], item["name"]
        if item.get("type") == "function_call_output":
            return "result", str(item["output"]), item["call_id"]
        content = item["content"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        return "user" if item["role"] == "user" else "model", text

    def model(call: Any) -> Any:
        step, name = step_of([said(item) for item in call.input]), uuid.uuid4().hex
        if isinstance(step, str):
            return ModelStep(output=[assistant_message(step, item_id=name)])
        return ModelStep(output=[function_call(step[0], {"number": step[1]}, call_id=name)])

    made = [function_tool(each) for each in (tools.pay, tools.look, tools.wait)]
    made.append(function_tool(tools.ask, needs_approval=True))
    agent = Agent(name="clerk", model=ScriptedModel([ModelStep.respond(model)] * MOST_REQUESTS), tools=list(made))
    config = RunConfig(tracing_disabled=True)
    return lambda turn: run_agent(turn, agent, safe=["look", "wait"], run_config=config, max_turns=MOST_REQUESTS)


def langgraph(tools: Tools, storage: Storage) -> Callable[[Turn], Any]:
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.tools import StructuredTool
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode
    from langgraph.types import interrupt

    from stepwell.adapters.langgraph import StepwellSaver, run_graph, run_tool

    def history_of(messages: list[Any]) -> list[Said]:
        found: list[Said] = []
        for message in messages:
            if isinstance(message, AIMessage):
                found += [("model", message.text)] if message.text else []
                found += [("call", str(call["args"]), str(call["id"]), call["name"]) for call in message.tool_calls]
            elif isinstance(message, HumanMessage):
                found.append(("user", message.text))
            else:
                found.append(("result", message.text, message.tool_call_id))
        return found

    async def model(state: MessagesState) -> Any:
        step = step_of(history_of(state["messages"]))
        if isinstance(step, str):
            return {"messages": [AIMessage(step)]}
        call = {"name": step[0], "args": {"number": step[1]}, "id": uuid.uuid4().hex}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    async def ask(number: str) -> str:
        """Pay if that is approved."""
        return await tools.pay(number) if interrupt("ask?") else "The call was not approved."

    safe = {"replay": "safe"}
    made = [StructuredTool.from_function(coroutine=each) for each in (tools.pay, ask)]
    made += [StructuredTool.from_function(coroutine=each, metadata=safe) for each in (tools.look, tools.wait)]
    builder: Any = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode(list(made), awrap_tool_call=run_tool))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    graph = builder.compile(checkpointer=StepwellSaver(storage))
    return lambda turn: run_graph(turn, graph, retry_tools=True, config={"recursion_limit": 2 * MOST_REQUESTS})


def google_adk(tools: Tools, storage: Storage) -> Callable[[Turn], Any]:
    from google.adk.agents import LlmAgent, RunConfig
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.tools import FunctionTool
    from google.genai.types import Content, FunctionCall, Part

    from stepwell.adapters.google_adk import run_agent

    def history_of(contents: list[Any]) -> list[Said]:
        found: list[Said] = []
        for content in contents:
            for part in content.parts:
                if part.function_call:
                    call = part.function_call
                    found.append(("call", str(call.args), call.id, call.name))
                elif part.function_response:
                    found.append(("result", str(part.function_response.response), part.function_response.id))
                else:
                    found.append(("user" if content.role == "user" else "model", part.text))
        return found

    class Model(BaseLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            step = step_of(history_of(llm_request.contents))
            if isinstance(step, str):
                for word in re.split("(?<= )", step):
                    yield LlmResponse(content=Content(role="model", parts=[Part(text=word)]), partial=True)
                part = Part(text=step)
            else:
                call = FunctionCall(id=uuid.uuid4().hex, name=step[0], args={"number": step[1]})
                part = Part(function_call=call)
            yield LlmResponse(content=Content(role="model", parts=[part]))

    made: list[Any] = [tools.pay, tools.look, tools.wait, FunctionTool(tools.ask, require_confirmation=True)]
    agent = LlmAgent(name="clerk", model=Model(model="scripted"), tools=made)
    config = RunConfig.model_validate({"streaming_mode": "sse", "max_llm_calls": MOST_REQUESTS})
    return lambda turn: run_agent(turn, agent, safe=["look", "wait"], run_config=config)


class AgentKilling(Killing):
    """Kills also around what the framework stores, and at the write with a number; or holds a write."""

    def __init__(
        self, storage: Storage, point: str | None, report: Callable[..., None], hold: list[str] | None
    ) -> None:
        super().__init__(storage, point or "nowhere")
        self._report = report
        self._hold = hold
        self._writes = 0

    def point_of(self, operation: Operation) -> str | None:
        if isinstance(operation, Apply):
            kept = any(name.startswith("k:") and text for name, text in operation.change.parts.items())
            if operation.address.namespace != TURNS or kept:
                return "keep"
        return point_of(operation)

    async def _performed(self, operation: Operation) -> Any:
        point = self.point_of(operation)
        if self._hold and point == self._hold[0]:
            self._report("held")
            go, self._hold = Path(self._hold[1]), None
            while not go.exists():
                await asyncio.sleep(0.01)
        if isinstance(operation, Apply):
            self._writes += 1
            self(f"before write {self._writes}")
        result = await super()._performed(operation)
        if isinstance(operation, Apply):
            self(f"behind write {self._writes}")
        return result


async def run_agents(
    storage: Storage, report: Callable[..., None], *, framework: str, payments: str, sent: str, ended: str,
    kill_at: str | None = None, go: str | None = None, hold: list[str] | None = None,
    options: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Run turns with an agent until killed, or until SIGTERM."""
    kill = AgentKilling(storage, kill_at, report, hold)
    turns = Turns(
        "bot",
        storage=storage,
        **{"collect": 0.05, "lease": LEASE, "attempts": 20, "on_busy": "steer", **(options or {})},
    )
    run: Callable[[Turn], Any] = globals()[framework](Tools(payments, kill, report, go), storage)

    @turns.handler
    async def answer(turn: Turn) -> None:
        kill("start")
        await run(turn)
        write_line(ended, turn.id, [message.update.update_id for message in turn.messages])

    async def send(call: dict[str, Any]) -> None:
        write_line(sent, call)
        kill("behind the send")

    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with turns.worker(send=send, drain=0.0):
        report("ready")
        while kill_at == "asking":
            await asyncio.sleep(0.01)
            async for _ in turns.conversations("asking"):
                kill("asking")
        await stopping.wait()
    report("stopped")
