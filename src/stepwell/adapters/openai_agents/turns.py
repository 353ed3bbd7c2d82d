"""An agent of the OpenAI Agents SDK in a turn of a chat."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from agents import (
    Agent,
    FunctionTool,
    Model,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunResultStreaming,
    RunState,
    Tool,
    Usage,
)
from agents.items import ToolApprovalItem
from agents.tool_context import ToolContext

from stepwell.adapters.framework.agents import (
    INTERRUPTED,
    UNKNOWN,
    Approvals,
    Transcript,
    as_it_is,
    call_tool,
    question_about,
    refusal_of,
)
from stepwell.adapters.openai_agents.model import KeptModel, with_kept_responses
from stepwell.turns import Turn
from stepwell.turns import Usage as Tokens

__all__ = ["TurnResult", "run_agent"]

TRANSCRIPT: Final = Transcript("openai_agents", "item")
#: Seconds that the tools of a stopped run get to end.
GRACE: Final = 6.0


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What an agent has answered in a turn.

    Example::

        @turns.handler
        async def answer(turn):
            result = await run_agent(turn, agent)
            print(result.output, result.usage.total_tokens)
    """

    #: The final output of the agent.
    output: Any
    #: The usage of all model requests of this attempt of the turn.
    usage: Usage
    #: The result of the SDK, of the last run of the agent.
    result: RunResultStreaming


async def run_agent(
    turn: Turn,
    agent: Agent[Any],
    *,
    prompt: str | None = None,
    context: Any = None,
    safe: Iterable[str] = (),
    approvers: Iterable[int | str] | None = None,
    timeout: float | timedelta | str | None = None,
    question: Callable[[ToolApprovalItem], str] | None = None,
    run_config: RunConfig | None = None,
    **options: Any,
) -> TurnResult:
    """Answer a turn with an agent: its text is streamed, and its items become the history.

    A function tool, or a tool of an MCP server, runs at most once, also after a crash, unless its name is in ``safe``;
    the model is told of a call whose outcome is unknown. Items and responses that call tools are kept, and the next
    attempt continues with them. Tools
    with ``needs_approval`` are asked for with ``turn.ask``, by ``approvers`` and within ``timeout``, with the text that
    ``question`` returns for the call. With ``on_busy="steer"`` the model gets further messages after the results of its
    tools.

    ``prompt``: instead of the text of the turn. ``options``: those of ``Runner.run_streamed``, such as ``max_turns``.

    Example::

        from agents import Agent
        from stepwell.adapters.openai_agents import run_agent

        agent = Agent(name="clerk", instructions="You sell tea.")

        @turns.handler
        async def answer(turn):
            await run_agent(turn, agent, safe=["find"])
    """
    asks = Approvals(turn, approvers, timeout)
    run = _AgentRuns(turn, asks, question or _question, frozenset(safe))
    return await run.run(agent, turn.text if prompt is None else prompt, context, run_config or RunConfig(), options)


class _AgentRuns:
    """The runs of an agent in one attempt of a turn."""

    def __init__(
        self, turn: Turn, asks: Approvals, question: Callable[[ToolApprovalItem], str], safe: frozenset[str]
    ) -> None:
        self._turn = turn
        self._asks = asks
        self._question = question
        self._safe = safe
        #: The items of the history before the turn, and those of the turn that the model has got.
        self._before: list[Any] = []
        self._own: list[Any] = []
        self._kept = 0
        #: How many messages of the turn are among them.
        self._given = 0
        #: The output items and the text of the response under way.
        self._current: list[Any] = []
        self._text = ""
        #: What tools have returned, and which calls of tools have begun, by the id of the call.
        self._returned: dict[str, str] = {}
        self._begun: dict[str, tuple[str, str, bool]] = {}
        #: The last response of an earlier attempt, if its tools have not all ended.
        self._response: Any = None
        #: The usage of earlier runs of the agent.
        self._usage = Usage()
        self._result: RunResultStreaming | None = None

    async def run(
        self, agent: Agent[Any], prompt: str, context: Any, config: RunConfig, options: dict[str, Any]
    ) -> TurnResult:
        turn = self._turn
        self._before = TRANSCRIPT.load(
            await turn.history.read(), restore=as_it_is, said=lambda role, text: _said(text, role)
        )
        agent = self._with_intents(agent, {})
        config = with_kept_responses(self._with_filter(config), self)
        options |= {"run_config": config, "context": context}
        state = await self._continue(agent)
        if state is None and self._response is None:
            # A run that waits for an approval, or whose tools have begun, gets further messages when it has ended.
            waiting = turn.messages[self._given :] if self._own else []
            self._own = [*(self._own or [_said(prompt)]), *(_said(message.text) for message in waiting)]
            self._given = len(turn.messages)
        given: Any = [*self._before, *self._own]
        try:
            if state is not None:
                given = await self._decided(state)
            while True:
                self._result = result = Runner.run_streamed(agent, given, **options)
                await self._consume(result)
                if result.interruptions:
                    state = result.to_state()
                    stored = state.to_json(context_serializer=lambda _: {})
                    said = _texts(self._current)
                    await TRANSCRIPT.keep(turn, state=stored, given=self._given, said=said)
                    given = await self._decided(state)
                    continue
                self._own = result.to_input_list()[len(self._before) :]
                await turn.steered()
                unanswered = turn.messages[self._given :]
                if not unanswered:
                    break
                self._add_usage(result)
                self._given = len(turn.messages)
                self._own += [_said(message.text) for message in unanswered]
                self._current, self._text = [], ""
                given = [*self._before, *self._own]
        except asyncio.CancelledError:
            await self._cancel()
            if turn.stopped.is_set():
                turn.history.append(*TRANSCRIPT.entries(map(_plain, self._stopped())))
            raise
        turn.history.append(*TRANSCRIPT.entries(map(_plain, self._own)))
        self._add_usage(result)
        return TurnResult(result.final_output, self._usage, result)

    async def _continue(self, agent: Agent[Any]) -> RunState[Any, Any] | None:
        """Take what earlier attempts have kept, and return the state of the run that waits for an approval."""
        state: Any = None
        said: list[str] = []
        for value in TRANSCRIPT.kept(self._turn):
            self._given = value["given"]
            state, self._response = value.get("state"), value.get("response")
            self._own += value.get("items", ())
            said += (*_texts(value.get("items", ())), *value.get("said", ()))
        for text in (*said, *_texts((self._response or {}).get("output", ()))):
            async with self._turn.stream() as out:
                out.write(text)
        self._kept = len(self._own)
        return None if state is None else await RunState.from_json(agent, state, context_override={})

    def take_response(self) -> Any:
        response, self._response = self._response, None
        return response

    async def keep_response(self, response: dict[str, Any]) -> None:
        await TRANSCRIPT.keep(self._turn, response=response, given=self._given)

    async def _decided(self, state: RunState[Any, Any]) -> RunState[Any, Any]:
        """Ask for what a run waits for, and return its state with the decisions."""
        items = state.get_interruptions()
        asked = [self._asks.ask(self._question(item), [item.call_id, item.name, item.arguments]) for item in items]
        for item, decision in zip(items, await asyncio.gather(*asked), strict=True):
            if decision:
                state.approve(item)
            else:
                state.reject(item, rejection_message=refusal_of(decision))
        return state

    async def _consume(self, result: RunResultStreaming) -> None:
        """Show the text of the responses, and let the run end after its tools if messages have come."""
        async with AsyncExitStack() as stack:
            out: Any = None
            async for event in result.stream_events():
                if event.type == "run_item_stream_event" and event.name == "tool_output":
                    if await self._turn.steered():
                        result.cancel(mode="after_turn")
                    continue
                if event.type != "raw_response_event":
                    continue
                data = event.data
                if data.type == "response.created":
                    self._current, self._text = [], ""
                elif data.type == "response.output_text.delta":
                    out = out or await stack.enter_async_context(self._turn.stream())
                    out.write(data.delta)
                    self._text += data.delta
                elif data.type == "response.output_item.done":
                    self._current.append(_plain(data.item))
                elif data.type == "response.completed":
                    await stack.aclose()
                    out = None
                    if (used := data.response.usage) is not None:
                        cached = used.input_tokens_details.cached_tokens
                        counts = {"input": used.input_tokens, "output": used.output_tokens, "cache_read": cached}
                        await self._turn.spent(Tokens(model=data.response.model, **counts))

    async def _cancel(self) -> None:
        """Stop the run at once, and wait until its tools have ended."""
        result = self._result
        if result is None:
            return
        task = result.run_loop_task
        result.cancel(mode="immediate")
        if task is not None and not task.done():
            await asyncio.wait({task}, timeout=GRACE)

    def _stopped(self) -> list[Any]:
        """Return the items of a turn that was stopped, so that models accept them as a history."""
        # The events of a response may arrive after the next request was made.
        ids = {_id(item) for item in map(_plain, self._own)}
        items = [*map(_plain, self._own), *(item for item in self._current if _id(item) not in ids)]
        known = {item.get("call_id") for item in items if item.get("type") == "function_call"}
        for id_, (name, arguments, _) in self._begun.items():
            if id_ not in known:
                call = {"type": "function_call", "call_id": id_, "name": name, "arguments": arguments}
                items.append(call)
        if self._text and not any(item.get("type") == "message" for item in self._current):
            items.append({"role": "assistant", "content": self._text})
        answered = {item.get("call_id") for item in items if item.get("type") == "function_call_output"}
        calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
        for id_ in calls:
            if id_ not in answered:
                unknown = id_ in self._begun and self._begun[id_][2]
                output = self._returned.get(id_, UNKNOWN if unknown else INTERRUPTED)
                items.append({"type": "function_call_output", "call_id": id_, "output": output})
        return items + [_said(message.text) for message in self._turn.messages[self._given :]]

    def _add_usage(self, result: RunResultStreaming) -> None:
        for response in result.raw_responses:
            self._usage.add(response.usage)

    def _with_filter(self, config: RunConfig) -> RunConfig:
        """Return a configuration whose filter keeps the items before each model request."""
        theirs = config.call_model_input_filter

        async def keep(data: Any) -> Any:
            await self._turn.spent(0)
            items = data.model_data.input[len(self._before) :]
            if len(items) > self._kept:
                self._own, new = items, [_plain(each) for each in items[self._kept :]]
                self._kept = len(items)
                await TRANSCRIPT.keep(self._turn, items=new, given=self._given)
            if theirs is None:
                return data.model_data
            found = theirs(data)
            return await found if inspect.isawaitable(found) else found

        return replace(config, call_model_input_filter=keep)

    # Tools

    def _with_intents(self, agent: Agent[Any], known: dict[int, Agent[Any]]) -> Agent[Any]:
        """Return a copy of an agent, and of the agents that it hands over to, whose tools are tools of the turn."""
        if id(agent) in known:
            return known[id(agent)]
        tools = [self._with_intent(tool) for tool in agent.tools]
        model = KeptModel(agent.model, self) if isinstance(agent.model, Model) else agent.model
        known[id(agent)] = made = agent.clone(tools=tools, model=model)
        theirs = made.get_mcp_tools

        async def mcp_tools(context: RunContextWrapper[Any]) -> list[Tool]:
            return [self._with_intent(each) for each in await theirs(context)]

        made.get_mcp_tools = mcp_tools  # type: ignore[method-assign,assignment]
        made.handoffs = [
            self._with_intents(each, known) if isinstance(each, Agent) else each for each in agent.handoffs
        ]
        return made

    def _with_intent(self, tool: Tool) -> Tool:
        if not isinstance(tool, FunctionTool):
            return tool
        made, theirs = copy.copy(tool), tool.on_invoke_tool
        replay: Any = "safe" if tool.name in self._safe else "never"

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            id_ = context.tool_call_id

            async def work() -> Any:
                self._begun[id_] = (tool.name, arguments, replay == "never")
                result = await theirs(context, arguments)
                self._returned[id_] = str(result)
                return result

            result = await call_tool(
                self._turn, work, name=tool.name, arguments=arguments, place=id_, replay=replay,
                store=_plain, restore=as_it_is, unknown=UNKNOWN,
            )  # fmt: skip
            self._returned[id_] = str(result)
            return result

        made.on_invoke_tool = invoke
        return made


def _question(item: ToolApprovalItem) -> str:
    try:
        return question_about(item.name or "", json.loads(item.arguments or "{}"))
    except (ValueError, AttributeError):
        return f"{item.name}?\n{item.arguments}"


def _texts(items: Iterable[Any]) -> list[str]:
    """Return the texts that a model has said in items."""
    messages = [item for item in items if item.get("type") == "message" and item.get("role") == "assistant"]
    found = ["".join(part.get("text", "") for part in message["content"]) for message in messages]
    return [text for text in found if text]


def _id(item: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return what an item of a model is known by; ``None`` if by nothing."""
    known = item.get("call_id") or item.get("id")
    return None if known is None else (item.get("type"), known)


def _said(text: str, role: str = "user") -> Any:
    return {"role": role, "content": text}


# Items as entries of the history


def _plain(value: Any) -> Any:
    """Return a value as JSON. The items of a model and the results of some tools are objects."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)
