"""An agent of pydantic-ai in a turn of a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast

from pydantic_ai import Agent, RunContext
from pydantic_ai.agent import AgentRun, AgentRunResult
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    ToolFailed,
    ToolFailedError,
    ToolRetryError,
    UserError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDefinition, ToolDenied
from pydantic_ai.usage import RunUsage, UsageLimits

from stepwell.adapters.framework.agents import (
    INTERRUPTED,
    UNKNOWN,
    Approvals,
    Transcript,
    call_tool,
    question_about,
    refusal_of,
    replay_of,
)
from stepwell.turns import Message, Turn, Usage

__all__ = ["run_agent"]

TRANSCRIPT: Final = Transcript("pydantic_ai", "message")


async def run_agent(
    turn: Turn,
    agent: Agent[Any, Any],
    *,
    prompt: str | Sequence[Any] | None = None,
    deps: Any = None,
    usage_limits: UsageLimits | None = None,
    approvers: Iterable[int | str] | None = None,
    timeout: float | timedelta | str | None = None,
    question: Callable[[ToolCallPart], str] | None = None,
    stream: bool = True,
    **options: Any,
) -> AgentRunResult[Any]:
    """Answer a turn with an agent: its text is streamed, and its messages become the history. Return its result.

    A tool runs at most once, also after a crash, unless it has ``metadata={"replay": "safe"}``; the model is told of
    a call whose outcome is unknown. Each response that calls tools is kept, and the next attempt continues with it.
    Tools that require an approval are asked for with ``turn.ask``, by ``approvers`` and within ``timeout``, with the
    text that ``question`` returns for the call; a tool that is executed elsewhere gets the next message as its result.
    With ``on_busy="steer"`` the model gets further messages after the results of its tools. ``usage`` of the result
    is that of the whole turn. ``stream=False`` is for models that cannot stream.

    ``prompt``: instead of the text of the turn. ``options``: those of ``agent.iter``, such as ``model_settings``.

    Example::

        from pydantic_ai import Agent
        from pydantic_ai.models.test import TestModel
        from stepwell.adapters.pydantic_ai import run_agent

        agent = Agent(TestModel())

        @turns.handler
        async def answer(turn):
            result = await run_agent(turn, agent)
            print(result.usage.total_tokens)
    """
    asks = _Asks(Approvals(turn, approvers, timeout), question or _question)
    run = _TurnRun(turn, agent, asks, stream=stream)
    capabilities = [*options.pop("capabilities", ()), _TurnCapability(run)]
    options |= {"deps": deps, "usage_limits": usage_limits, "capabilities": capabilities}
    return await run.run(turn.text if prompt is None else prompt, options)


class _TurnRun:
    """The run of an agent in one attempt of a turn."""

    def __init__(self, turn: Turn, agent: Agent[Any, Any], asks: _Asks, *, stream: bool) -> None:
        self._turn = turn
        self._agent = agent
        self._streams = stream
        self.asks: _Asks = asks
        #: The messages of this turn that earlier attempts and runs have made, and how many messages are kept.
        self._done: list[ModelMessage] = []
        self._kept = 0
        #: How many messages of the turn were given to the run.
        self._given = 0
        #: Messages that came when the run took no more.
        self._late: list[Message] = []
        #: What tools have returned, and which calls of tools that run once have begun, by the id of the call.
        self._returned: dict[str, Any] = {}
        self._begun: set[str] = set()
        self._run: AgentRun[Any, Any] | None = None

    async def run(self, prompt: str | Sequence[Any], options: dict[str, Any]) -> AgentRunResult[Any]:
        turn = self._turn
        before = TRANSCRIPT.load(await turn.history.read(), restore=_restored_message, said=_said)
        waiting = await self._continue()
        usage = options.pop("usage", None) or RunUsage()
        for message in self._done:
            if isinstance(message, ModelResponse):
                usage.incr(message.usage)
                usage.requests += 1
        text: str | Sequence[Any] | None = None if self._done else prompt
        if not self._done:
            self._given = len(turn.messages)
        try:
            while True:
                history = [*before, *self._done]
                async with self._agent.iter(text, message_history=history, usage=usage, **options) as run:
                    self._run = run
                    for each in waiting:
                        self._enqueue(run, each)
                    await self._drive(run)
                result = run.result
                assert result is not None
                if not self._late:
                    break
                self._done, self._run = self._messages(), None
                text, self._late = "\n".join(message.text for message in self._late), []
                waiting = []
        except asyncio.CancelledError:
            if turn.stopped.is_set():
                turn.history.append(*TRANSCRIPT.entries(_dumped(self._stopped(prompt))))
            raise
        turn.history.append(*TRANSCRIPT.entries(_dumped(self._messages())))
        return result

    async def _continue(self) -> list[Message]:
        """Take what earlier attempts have kept, and return the messages that the model has not got."""
        turn = self._turn
        for value in TRANSCRIPT.kept(turn):
            self._done += _validated(value["messages"])
            self._given = value["given"]
        self._kept = len(self._done)
        for message in self._done:
            if isinstance(message, ModelResponse) and (text := _text(message)):
                async with turn.stream() as out:
                    out.write(text)
        waiting = turn.messages[self._given :] if self._done else []
        self._given = len(turn.messages)
        return waiting

    async def _drive(self, run: AgentRun[Any, Any]) -> None:
        requests = 0
        async for node in run:
            if Agent.is_model_request_node(node):
                requests += 1
                if requests > 1 or self._done:
                    await self._steer(run)
                if self._streams:
                    await self._stream(node, run)
            elif Agent.is_call_tools_node(node):
                if not self._streams and (text := _text(node.model_response)) and self._is_new(run):
                    async with self._turn.stream() as out:
                        out.write(text)
                if node.model_response.tool_calls:
                    await self._keep()
                else:
                    await self._steer(run)

    def _is_new(self, run: AgentRun[Any, Any]) -> bool:
        """Return whether a response was made now. That of an earlier attempt is shown already."""
        return bool(run.new_messages())

    async def _stream(self, node: Any, run: AgentRun[Any, Any]) -> None:
        """Let the model answer, and show its text."""
        async with AsyncExitStack() as stack:
            out: Any = None
            async with node.stream(run.ctx) as events:
                async for event in events:
                    text = ""
                    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                        text = event.part.content
                    elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                        text = event.delta.content_delta
                    if text:
                        out = out or await stack.enter_async_context(self._turn.stream())
                        out.write(text)

    async def _steer(self, run: AgentRun[Any, Any]) -> None:
        for message in await self._turn.steered():
            self._enqueue(run, message)
        self._given = len(self._turn.messages)

    def _enqueue(self, run: AgentRun[Any, Any], message: Message) -> None:
        try:
            run.enqueue(message.text)
        except UserError:
            # The run has ended, but the message is part of this turn.
            self._late.append(message)

    async def _keep(self) -> None:
        """Keep the messages up to a response that calls tools, so that the next attempt makes the same calls."""
        messages = self._messages()
        if messages[self._kept :]:
            new = _dumped(messages[self._kept :])
            await TRANSCRIPT.keep(self._turn, messages=new, given=self._given)
            self._kept = len(messages)

    def _messages(self) -> list[ModelMessage]:
        """Return all messages of this turn."""
        return self._done + ([] if self._run is None else self._run.new_messages())

    def _stopped(self, prompt: str | Sequence[Any]) -> list[ModelMessage]:
        """Return the messages of a turn that was stopped, so that models accept them as a history."""
        found = self._messages() or [ModelRequest(parts=[UserPromptPart(prompt)])]
        undelivered = [] if self._run is None else self._run.pending_messages
        for pending in undelivered:
            found += pending.messages
        answered = {
            part.tool_call_id
            for message in found
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, ToolReturnPart) and not _is_synthetic(part)
        }
        whole: list[ModelMessage] = []
        for message in found:
            if isinstance(message, ModelRequest):
                parts = [part for part in message.parts if not _is_synthetic(part)]
                if parts:
                    whole.append(replace(message, parts=parts, state="complete"))
                continue
            # The calls of a response that was cut may be cut in the middle, and none has begun.
            cut = message.state == "interrupted"
            said = [part for part in message.parts if not (cut and isinstance(part, ToolCallPart))]
            if said:
                whole.append(replace(message, parts=said, state="complete"))
            open_calls = [] if cut else [each for each in message.tool_calls if each.tool_call_id not in answered]
            if open_calls:
                whole.append(ModelRequest(parts=[self._return_of(call) for call in open_calls]))
        return whole

    def _return_of(self, call: ToolCallPart) -> ToolReturnPart:
        """Return the result of a call that the run has not got."""
        id_ = call.tool_call_id
        content = self._returned.get(id_, UNKNOWN if id_ in self._begun else INTERRUPTED)
        return ToolReturnPart(tool_name=call.tool_name, content=content, tool_call_id=id_)

    async def spent(self, cost: float | Usage) -> None:
        """Count what a request has cost."""
        await self._turn.spent(cost)

    # Tools

    async def call(
        self, ctx: RunContext[Any], call: ToolCallPart, tool: ToolDefinition, run: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Call a tool of the agent with an intent, or give what it has returned in an earlier attempt."""
        id_ = call.tool_call_id
        replay = replay_of(tool.metadata)

        async def work() -> Any:
            if replay == "never":
                self._begun.add(id_)
            try:
                result = await run()
            except _SIGNALS as signal:
                return signal
            self._returned[id_] = result.return_value if isinstance(result, ToolReturn) else result
            return result

        result = await call_tool(
            self._turn, work, name=call.tool_name, arguments=call.args_as_dict(), replay=replay,
            # After an approval the same call runs again, and then for the first time.
            place=f"{id_}{'+' if ctx.tool_call_approved else ''}",
            store=partial(_stored, call), restore=_restored, unknown=UNKNOWN,
        )  # fmt: skip
        if isinstance(result, _SIGNALS):
            raise result
        self._returned[id_] = result.return_value if isinstance(result, ToolReturn) else result
        return result


@dataclass
class _TurnCapability(AbstractCapability[Any]):
    """Lets tools run as tools of the turn, and approvals be questions of it."""

    run: _TurnRun

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        return await self.run.call(ctx, call, tool_def, lambda: handler(args))

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        await self.run.spent(0)
        return request_context

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: Any, response: ModelResponse
    ) -> ModelResponse:
        used = response.usage
        usage = Usage(
            model=response.model_name or "", input=used.input_tokens, output=used.output_tokens,
            cache_read=used.cache_read_tokens, cache_write=used.cache_write_tokens,
        )  # fmt: skip
        await self.run.spent(usage)
        return response

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        return await self.run.asks.results(requests)


@dataclass
class _Asks:
    """Asks for the approvals of a turn, and for the results of tools that are executed elsewhere."""

    approvals: Approvals
    question: Callable[[ToolCallPart], str]

    async def results(self, requests: DeferredToolRequests) -> DeferredToolResults:
        """Ask for all calls at once, and return what was decided."""
        calls = [*requests.approvals, *requests.calls]
        decisions = await asyncio.gather(
            *(self._ask(call, reply=place >= len(requests.approvals)) for place, call in enumerate(calls))
        )
        results = DeferredToolResults()
        for call in requests.approvals:
            decision = decisions[calls.index(call)]
            results.approvals[call.tool_call_id] = True if decision else ToolDenied(refusal_of(decision))
        for call in requests.calls:
            decision = decisions[calls.index(call)]
            results.calls[call.tool_call_id] = decision.choice if decision else "Nobody has answered in time."
        return results

    async def _ask(self, call: ToolCallPart, *, reply: bool) -> Any:
        about = [call.tool_call_id, call.tool_name, call.args_as_dict()]
        return await self.approvals.ask(self.question(call), about, reply=reply)


def _question(call: ToolCallPart) -> str:
    return question_about(call.tool_name, call.args_as_dict())


# Messages as entries of the history


def _dumped(messages: list[ModelMessage]) -> list[Any]:
    return cast("list[Any]", ModelMessagesTypeAdapter.dump_python(messages, mode="json"))


def _validated(values: list[Any]) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_python(values)


def _restored_message(value: Any) -> ModelMessage:
    return _validated([value])[0]


def _said(role: str, text: str) -> ModelMessage:
    """Return the message of a text that another handler has appended."""
    return ModelRequest([UserPromptPart(text)]) if role == "user" else ModelResponse([TextPart(text)])


def _text(message: ModelResponse) -> str:
    return "".join(part.content for part in message.parts if isinstance(part, TextPart))


def _is_synthetic(part: object) -> bool:
    """Return whether the framework has made up this result for a call that was interrupted."""
    return isinstance(part, ToolReturnPart) and part.outcome == "interrupted"


# Results of tools as values that can be stored

#: What a tool raises to tell the framework what to do, instead of failing.
_SIGNALS: Final = (ApprovalRequired, CallDeferred, ModelRetry, ToolFailed, ToolFailedError, ToolRetryError)


def _stored(call: ToolCallPart, result: Any) -> Any:
    """Return what a tool has returned, or the signal that it has raised, as a value that can be stored."""
    return _stored_signal(result) if isinstance(result, _SIGNALS) else _stored_result(call, result)


def _stored_signal(signal: Exception) -> Any:
    kind = type(signal).__name__
    if isinstance(signal, ApprovalRequired | CallDeferred):
        return {"kind": kind, "metadata": signal.metadata}
    if isinstance(signal, ToolRetryError | ToolFailedError):
        part = signal.tool_retry if isinstance(signal, ToolRetryError) else signal.tool_failed
        return {"kind": kind, "message": _dumped([ModelRequest(parts=[part])])[0]}
    assert isinstance(signal, ModelRetry | ToolFailed)
    return {"kind": kind, "text": signal.message}


def _stored_result(call: ToolCallPart, result: Any) -> Any:
    value = result.return_value if isinstance(result, ToolReturn) else result
    parts: list[Any] = [ToolReturnPart(tool_name=call.tool_name, content=value, tool_call_id=call.tool_call_id)]
    if not isinstance(result, ToolReturn):
        return {"kind": "value", "message": _dumped([ModelRequest(parts=parts)])[0]}
    parts[0] = replace(parts[0], metadata=result.metadata)
    if result.content is not None:
        parts.append(UserPromptPart(result.content))
    return {"kind": "return", "message": _dumped([ModelRequest(parts=parts)])[0]}


def _restored(stored: Any) -> Any:
    """Return what a tool has returned in an earlier attempt, or the exception that it has raised."""
    kind = stored["kind"]
    if kind in ("ApprovalRequired", "CallDeferred"):
        return (ApprovalRequired if kind == "ApprovalRequired" else CallDeferred)(stored["metadata"])
    if kind in ("ModelRetry", "ToolFailed"):
        return (ModelRetry if kind == "ModelRetry" else ToolFailed)(stored["text"])
    parts: Any = _validated([stored["message"]])[0].parts
    if kind in ("ToolRetryError", "ToolFailedError"):
        return (ToolRetryError if kind == "ToolRetryError" else ToolFailedError)(parts[0])
    if kind == "value":
        return parts[0].content
    content = parts[1].content if len(parts) > 1 else None
    return ToolReturn(return_value=parts[0].content, content=content, metadata=parts[0].metadata)
