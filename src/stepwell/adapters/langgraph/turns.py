"""A graph of LangGraph in a turn of a chat."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langgraph.types import Command

from stepwell.engine import quoted
from stepwell.turns import Turn

if TYPE_CHECKING:
    from langgraph.pregel import Pregel
    from langgraph.types import StateSnapshot

__all__ = ["run_graph"]

logger: logging.Logger = logging.getLogger(__name__)

#: What a model is told of a call of a tool that was interrupted.
INTERRUPTED: Final = (
    "The call was interrupted, and its outcome is unknown. Look whether it has happened before you call it again, or "
    "ask the user."
)
#: The most characters of a question.
SHOWN: Final = 3000
#: The key of the metadata of checkpoints that names the input.
MARK: Final = "stepwell_turn"


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
    value is that of ``resume(decision)``: by default whether the first option was chosen. After a crash the graph goes
    on at its newest checkpoint. A call of a tool that a stop or a crash has left without a result gets one, so that the
    thread goes on; with ``retry_tools`` it runs again after a crash. The graph needs a checkpointer, such as
    ``StepwellSaver``.

    ``input``: makes the input of a text; by default ``{"messages": [{"role": "user", "content": text}]}``.
    ``thread_id``: by default that of the bot and the conversation. ``options``: those of ``graph.astream``.

    Example::

        from stepwell.adapters.langgraph import run_graph

        @turns.handler
        async def answer(turn):
            await run_graph(turn, graph, approvers=[42], timeout="24h")
    """
    given = {"configurable": {"thread_id": thread_id or _thread_of(turn)}}
    run = _ThreadRun(turn, graph, given, dict(config or {}), options)
    choices = None if approvers is None else tuple(approvers)
    state = await graph.aget_state(run.config)
    mark = f"{turn.id}:"
    answered = 0
    metadata = dict(state.metadata or {})
    if str(metadata.get(MARK, "")).startswith(mark):
        # An earlier attempt has given this input.
        answered = int(str(metadata[MARK])[len(mark) :])
        run.mark(f"{mark}{answered}")
        if not state.interrupts and not retry_tools and (closing := _closing(state)):
            names = ", ".join(quoted(message.name) for message in closing)
            logger.warning("turn %s: the process died before the end of %s, which does not run again", turn.id, names)
            await graph.aupdate_state(run.config, {"messages": closing}, as_node=state.next[0] if state.next else None)
            state = await graph.aget_state(run.config)
    while True:
        if answered and state.interrupts:
            decisions = {}
            for each in state.interrupts:
                decision = await turn.ask(
                    (question or _question)(each.value), approvers=choices, timeout=timeout, about=each.id
                )
                decisions[each.id] = resume(decision)
            await run.stream(Command(resume=decisions))
        elif answered and state.next:
            await run.stream(None)
        else:
            await turn.steered()
            new = turn.messages[answered:]
            if not new:
                return state.values
            answered = len(turn.messages)
            run.mark(f"{mark}{answered}")
            text = "\n".join(message.text for message in new)
            made = {"messages": [{"role": "user", "content": text}]} if input is None else input(text)
            if closing := _closing(state):
                made = {**made, "messages": [*closing, *made.get("messages", ())]}
            await run.stream(made)
        state = await graph.aget_state(run.config)


class _ThreadRun:
    """The runs of a graph in one attempt of a turn."""

    def __init__(self, turn: Turn, graph: Any, thread: Any, config: dict[str, Any], options: dict[str, Any]) -> None:
        self._turn = turn
        self._graph = graph
        self._options = {"durability": "sync", **options}
        configurable = {**thread["configurable"], **config.get("configurable", {})}
        self.config: Any = {**config, "configurable": configurable, "metadata": dict(config.get("metadata", {}))}

    def mark(self, mark: str) -> None:
        """Let the checkpoints from now on say which input they belong to."""
        self.config["metadata"][MARK] = mark

    async def stream(self, given: Any) -> None:
        """Run the graph until it ends or is interrupted, and show the texts of its models."""
        chunks = self._graph.astream(given, self.config, stream_mode="messages", **self._options)
        async with AsyncExitStack() as stack, aclosing(chunks):
            out, shown = None, None
            async for message, _ in chunks:
                if not isinstance(message, AIMessage | AIMessageChunk) or not (text := message.text):
                    continue
                if out is None or message.id != shown:
                    await stack.aclose()
                    out, shown = await stack.enter_async_context(self._turn.stream()), message.id
                out.write(text)


def _thread_of(turn: Turn) -> str:
    return json.dumps([turn.bot_name, turn.conversation], default=list, ensure_ascii=False)


def _closing(state: StateSnapshot) -> list[ToolMessage]:
    """Return results for the calls of tools that have none, without which models refuse the thread."""
    messages = state.values.get("messages", ()) if isinstance(state.values, Mapping) else ()
    done = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    last = next((each for each in reversed(messages) if isinstance(each, AIMessage)), None)
    return [
        ToolMessage(INTERRUPTED, tool_call_id=call["id"], name=call["name"])
        for call in (() if last is None else last.tool_calls)
        if call["id"] not in done
    ]


def _question(value: Any) -> str:
    """Return what is asked about the value of an interrupt."""
    return (value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))[:SHOWN]
