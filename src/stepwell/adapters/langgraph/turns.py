"""A graph of LangGraph in a turn of a chat, and the calls of its tools."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage, convert_to_messages
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from stepwell.adapters.framework.agents import (
    UNKNOWN,
    Approvals,
    call_tool,
    question_about,
    refusal_of,
    replay_of,
    text_of,
)
from stepwell.engine import quoted
from stepwell.turns import Turn, Usage, current_turn

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.pregel import Pregel
    from langgraph.types import StateSnapshot

__all__ = ["run_graph", "run_tool"]

logger: logging.Logger = logging.getLogger(__name__)

#: What a model is told of a call of a tool that was interrupted.
INTERRUPTED: Final = (
    "The call was interrupted, and its outcome is unknown. Look whether it has happened before you call it again, or "
    "ask the user."
)
#: The key of the metadata of checkpoints that names the input.
MARK: Final = "stepwell_turn"
#: What is stored of a call that waits for the answer to an interrupt.
WAITS: Final = "waits"

_serializer = JsonPlusSerializer()


async def run_graph(
    turn: Turn,
    graph: Pregel[Any, Any, Any, Any],
    *,
    input: Callable[[str], Any] | None = None,  # noqa: A002 - the name that graphs use
    thread_id: str | None = None,
    approvers: Iterable[int | str] | None = None,
    timeout: float | timedelta | str | None = None,
    question: Callable[[Any], str] | None = None,
    resume: Callable[[Any], Any] = bool,
    retry_tools: bool = False,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Answer a turn with a graph whose thread is the conversation, and return the values of its state.

    The texts of its models are streamed. ``interrupt(value)`` is asked with ``turn.ask``, by ``approvers`` and within
    ``timeout``, with the text that ``question(value)`` returns; the graph goes on with ``Command(resume=...)``, whose
    value is that of ``resume(decision)``: by default whether the first option was chosen. The middleware for approvals
    of ``langchain`` and ``deepagents`` gets the decision that it wants. After a crash the graph goes
    on at its newest checkpoint. A call of a tool that a stop or a crash has left without a result gets one, so that the
    thread goes on; with ``retry_tools`` it runs again after a crash, unless :func:`run_tool` knows how it has ended.
    The graph needs a checkpointer, such as ``StepwellSaver``.

    ``input``: makes the input of a text; by default ``{"messages": [{"role": "user", "content": text}]}``.
    ``thread_id``: by default that of the bot and the conversation. ``options``: those of ``graph.astream``.

    Example::

        from stepwell.adapters.langgraph import run_graph

        @turns.handler
        async def answer(turn):
            await run_graph(turn, graph, approvers=[42], timeout="24h")
    """
    given = {"configurable": {"thread_id": thread_id or _thread_of(turn)}}
    asks = Approvals(turn, approvers, timeout)
    run = _ThreadRun(turn, graph, given, dict(config or {}), options)
    state = await graph.aget_state(run.config)
    if run.has_begun(state):
        await run.show(state.values)
        if not state.interrupts and not retry_tools and (closing := _closing(state)):
            if names := ", ".join(quoted(each.name) for each in closing if each.content == INTERRUPTED):
                logger.warning(
                    "turn %s: the process died before the end of %s, which does not run again", turn.id, names
                )
            await graph.aupdate_state(run.config, {"messages": closing}, as_node=state.next[0] if state.next else None)
            state = await graph.aget_state(run.config)
    else:
        run.begin(state)
    while True:
        if run.answered and state.interrupts:
            ask = partial(_ask, asks, question, resume)
            await run.stream(Command(resume={each.id: await ask(each.value, each.id) for each in state.interrupts}))
        elif run.answered and state.next:
            await run.stream(None)
        else:
            await turn.steered()
            new = turn.messages[run.answered :]
            if not new:
                return state.values
            run.answer(len(turn.messages))
            text = "\n".join(message.text for message in new)
            made = {"messages": [{"role": "user", "content": text}]} if input is None else input(text)
            if closing := _closing(state):
                made = {**made, "messages": [*closing, *made.get("messages", ())]}
            await run.stream(made)
        state = await graph.aget_state(run.config)
        await run.show(state.values)


async def run_tool(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
    """Call a tool of a graph at most once in a turn, also after a crash: a wrapper for ``ToolNode`` and agents.

    Give ``run_graph`` the option ``retry_tools=True`` then. The result of a call is stored, and given to the next
    attempt. The model is told of a call whose outcome is unknown. A tool that may run again has
    ``metadata={"replay": "safe"}``. Outside of a turn the tool is simply called.

    Example::

        from langchain_core.tools import tool
        from langgraph.prebuilt import ToolNode
        from stepwell.adapters.langgraph import run_tool

        @tool
        async def pay(order: str) -> str:
            "Pay an order."
            return f"receipt of {order}"

        node = ToolNode([pay], awrap_tool_call=run_tool)
    """
    turn, call = current_turn(), request.tool_call
    if turn is None:
        return await execute(request)

    async def work() -> Any:
        try:
            return await execute(request)
        except GraphBubbleUp as waits:
            return waits

    place = str(call["id"])
    while True:
        result = await call_tool(
            turn, work, name=call["name"], arguments=call["args"], place=place,
            replay=replay_of(request.tool.metadata if request.tool is not None else None),
            store=_stored, restore=_restored,
            unknown=ToolMessage(UNKNOWN, tool_call_id=call["id"], name=call["name"]),
        )  # fmt: skip
        if isinstance(result, GraphBubbleUp):
            raise result
        if result is not WAITS:
            return result
        # It has waited in an earlier attempt, and runs again with the answer.
        place += "+"


class _ThreadRun:
    """The runs of a graph in one attempt of a turn."""

    def __init__(self, turn: Turn, graph: Any, thread: Any, config: dict[str, Any], options: dict[str, Any]) -> None:
        self._turn = turn
        self._graph = graph
        self._options = {"durability": "sync", **options}
        configurable = {**thread["configurable"], **config.get("configurable", {})}
        self.config: Any = {**config, "configurable": configurable, "metadata": dict(config.get("metadata", {}))}
        #: How many messages of the turn the graph has got.
        self.answered: int = 0
        #: How many messages the thread had before the turn, and the id of the last one.
        self._before: tuple[int, str] = (0, "")
        #: The messages whose texts are shown, by their ids or places.
        self._shown: set[str | int] = set()
        #: The message that is shown now, and its stream.
        self._open: str | int | None = None
        self._out: Any = None

    def has_begun(self, state: StateSnapshot) -> bool:
        """Return whether an earlier attempt has given the input, and go on with its mark."""
        mark = str(dict(state.metadata or {}).get(MARK, "")).split(":", 3)
        if mark[0] != self._turn.id:
            return False
        # An earlier release has stored no more than the number.
        self._before = (int(mark[2]), mark[3]) if len(mark) > 3 else (0, "?")
        self.answer(int(mark[1]))
        return True

    def begin(self, state: StateSnapshot) -> None:
        """Remember which messages are not of this turn."""
        messages = _messages(state.values)
        self._before = (len(messages), _id(messages[-1]) if messages else "")

    def answer(self, count: int) -> None:
        """Let the checkpoints from now on say which input they belong to."""
        self.answered = count
        self.config["metadata"][MARK] = ":".join(map(str, (self._turn.id, count, *self._before)))

    async def stream(self, given: Any) -> None:
        """Run the graph until it ends or is interrupted, and show the texts of its models."""
        chunks = self._graph.astream(given, self.config, stream_mode=["messages", "values"], **self._options)
        async with aclosing(chunks), AsyncExitStack() as stack:
            async for mode, chunk in chunks:
                if mode == "values":
                    # Texts that no model has streamed.
                    await self.show(chunk, stack)
                    continue
                message, about = chunk
                if not isinstance(message, AIMessage | AIMessageChunk):
                    continue
                if text := message.text:
                    await self._write(_id(message), text, stack)
                if message.usage_metadata:
                    await self._turn.spent(_usage(message, about))

    async def show(self, values: Any, stack: AsyncExitStack | None = None) -> None:
        """Show the texts of the messages of this turn that are not shown yet."""
        messages = _messages(values)
        start = self._start(messages)
        async with AsyncExitStack() as own:
            for place, message in enumerate(messages[start:], start):
                key = _id(message) or place
                if key not in self._shown and (text := _said(message)):
                    await self._write(key, text, stack or own)

    async def _write(self, key: str | int, text: str, stack: AsyncExitStack) -> None:
        if self._out is None or key != self._open:
            await stack.aclose()
            self._out = await stack.enter_async_context(self._turn.stream())
            self._open = key
            self._shown.add(key)
        self._out.write(text)

    def _start(self, messages: Sequence[Any]) -> int:
        """Return the place of the first message of this turn."""
        count, last = self._before
        if not last:
            return count
        places = {_id(message): place for place, message in enumerate(messages)}
        if last in places:
            return places[last] + 1
        # The graph has replaced the older messages, for example by a summary.
        people = [place for place, message in enumerate(messages) if _role(message) in ("human", "user")]
        return people[-1] + 1 if people else len(messages)


async def _ask(
    asks: Approvals, question: Callable[[Any], str] | None, resume: Callable[[Any], Any], value: Any, id_: str
) -> Any:
    """Ask about the value of an interrupt, and return what the graph goes on with."""
    if resume is not bool or not isinstance(value, Mapping) or "action_requests" not in value:
        return resume(await asks.ask((question or text_of)(value), id_))
    # The middleware of agents for approvals takes a decision for each call.
    decisions: list[dict[str, str]] = []
    for place, action in enumerate(value["action_requests"]):
        text = question(action) if question else question_about(action["name"], action["args"])
        decision = await asks.ask(text, [id_, place])
        decisions.append({"type": "approve"} if decision else {"type": "reject", "message": refusal_of(decision)})
    return {"decisions": decisions}


def _usage(message: AIMessage, about: Mapping[str, Any]) -> Usage:
    used = message.usage_metadata or {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    cached = used.get("input_token_details", {})
    return Usage(
        model=message.response_metadata.get("model_name") or about.get("ls_model_name") or "",
        input=used["input_tokens"], output=used["output_tokens"],
        cache_read=cached.get("cache_read", 0), cache_write=cached.get("cache_creation", 0),
    )  # fmt: skip


def _thread_of(turn: Turn) -> str:
    return json.dumps([turn.bot_name, turn.conversation], default=list, ensure_ascii=False)


def _messages(values: Any) -> Sequence[Any]:
    found = values.get("messages", ()) if isinstance(values, Mapping) else ()
    return found if isinstance(found, list | tuple) else ()


def _id(message: Any) -> str:
    return (message.get("id") if isinstance(message, Mapping) else getattr(message, "id", None)) or ""


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else getattr(message, "type", None)


def _said(message: Any) -> str:
    """Return the text of a message of a model, which may be a dict."""
    if isinstance(message, Mapping) and _role(message) in ("assistant", "ai"):
        (message,) = convert_to_messages([dict(message)])
    return message.text if isinstance(message, AIMessage) else ""


def _closing(state: StateSnapshot) -> list[ToolMessage]:
    """Return results for the calls of tools that have none, without which models refuse the thread."""
    messages = _messages(state.values)
    done = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    # Other tools of the same step may have ended.
    found = [message for task in state.tasks for message in _messages(task.result) if isinstance(message, ToolMessage)]
    ended = {message.tool_call_id: message for message in found}
    last = next((each for each in reversed(messages) if isinstance(each, AIMessage)), None)
    return [
        ended.get(call["id"] or "", ToolMessage(INTERRUPTED, tool_call_id=call["id"], name=call["name"]))
        for call in (() if last is None else last.tool_calls)
        if call["id"] not in done
    ]


def _stored(result: Any) -> Any:
    """Return what a call has returned as a value that can be stored."""
    return WAITS if isinstance(result, GraphBubbleUp) else list(_serializer.dumps_typed(result))


def _restored(stored: Any) -> Any:
    return WAITS if stored == WAITS else _serializer.loads_typed((stored[0], stored[1]))
