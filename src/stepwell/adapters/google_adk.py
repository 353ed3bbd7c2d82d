"""Google ADK: agents in the turns of a chat.

::

    @turns.handler
    async def answer(turn):
        await run_agent(turn, agent)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from functools import partial
from typing import Any, Final

from stepwell.adapters.framework.agents import (
    INTERRUPTED,
    UNKNOWN,
    Approvals,
    Transcript,
    as_it_is,
    call_tool,
    question_about,
)
from stepwell.engine import require
from stepwell.errors import InvalidOption
from stepwell.turns import Turn

require("google.adk", "google-adk", distribution="google-adk", minimum="2.13", below="3")

from google.adk.agents import BaseAgent, RunConfig  # noqa: E402 - checked first
from google.adk.apps import App  # noqa: E402 - checked first
from google.adk.events import Event  # noqa: E402 - checked first
from google.adk.plugins import BasePlugin  # noqa: E402 - checked first
from google.adk.runners import Runner  # noqa: E402 - checked first
from google.adk.sessions import InMemorySessionService  # noqa: E402 - checked first
from google.genai.types import Content, FunctionCall, FunctionResponse, Part  # noqa: E402 - checked first

__all__ = ["run_agent"]

TRANSCRIPT: Final = Transcript("google_adk", "event")
#: The call with which the framework asks for an approval.
CONFIRMATION: Final = "adk_request_confirmation"
#: What the model is told of a call that was not made before a crash.
NOT_MADE: Final = "The call was not made, because the process has died before. Make it anew if it is still needed."
STREAMING: Final = RunConfig.model_validate({"streaming_mode": "sse"})
#: The names of the app and of the user in the session of a turn, which nobody else sees.
APP: Final = "turns"


async def run_agent(
    turn: Turn,
    agent: BaseAgent,
    *,
    prompt: str | None = None,
    safe: Iterable[str] = (),
    approvers: Iterable[int | str] | None = None,
    timeout: float | timedelta | str | None = None,
    question: Callable[[FunctionCall], str] | None = None,
    plugins: Sequence[BasePlugin] = (),
    run_config: RunConfig | None = None,
    **options: Any,
) -> list[Event]:
    """Answer a turn with an agent: its text is streamed, and its events become the history. Return those of the turn.

    A tool runs at most once, also after a crash, unless its name is in ``safe``; the model is told of a call whose
    outcome is unknown. Each event is kept, and the next attempt continues with them. Tools with
    ``require_confirmation`` are asked for with ``turn.ask``, by ``approvers`` and within ``timeout``, with the text
    that ``question`` returns for the call. With ``on_busy="steer"`` the model gets further messages after the results
    of its tools. The state of the session is that of the events in the history.

    ``prompt``: instead of the text of the turn. ``options``: those of ``Runner``, such as ``artifact_service``.

    Example::

        from google.adk.agents import LlmAgent
        from stepwell.adapters.google_adk import run_agent

        agent = LlmAgent(name="clerk", model="gemini-2.5-flash", instruction="You sell tea.")

        @turns.handler
        async def answer(turn):
            await run_agent(turn, agent, safe=["find"])
    """
    plugins = list(plugins)
    if not isinstance(agent, BaseAgent):
        # The framework's own error shows the value.
        raise InvalidOption(f"run_agent(turn, agent) takes an agent of google-adk, got {type(agent).__name__}")
    if not all(isinstance(each, BasePlugin) for each in plugins):
        raise InvalidOption("run_agent(plugins=...) takes plugins of google-adk")
    run = _SessionRuns(turn, agent, Approvals(turn, approvers, timeout), question or _question)
    service = InMemorySessionService()
    intents = _Intents(turn, frozenset(safe), run.begun)
    app = App(name=APP, root_agent=agent, plugins=[*plugins, intents])
    run.runner = Runner(app=app, session_service=service, **options)
    before = TRANSCRIPT.load(await turn.history.read(), restore=_event, said=partial(_said, agent))
    return await run.run(before, turn.text if prompt is None else prompt, run_config or STREAMING)


class _SessionRuns:
    """The runs of an agent in one attempt of a turn."""

    runner: Runner

    def __init__(self, turn: Turn, agent: BaseAgent, asks: Approvals, question: Callable[[FunctionCall], str]) -> None:
        self._turn = turn
        self._agent = agent
        self._asks = asks
        self._question = question
        #: The events of the turn.
        self._events: list[Event] = []
        #: How many messages of the turn the model has got.
        self._given = 0
        #: The text that is streamed, and not yet an event.
        self._text = ""
        #: The tools that have begun in this attempt, and what they have returned, by the id of the call.
        self.begun: dict[str, Any] = {}

    async def run(self, before: list[Event], prompt: str, config: RunConfig) -> list[Event]:
        turn, service = self._turn, self.runner.session_service
        session = await service.create_session(app_name=APP, user_id=APP, session_id=turn.id)
        kept = TRANSCRIPT.kept(turn)
        self._events = [_event(value["event"]) for value in kept]
        message = await self._continued()
        again = message is not None and message is self._events[-1].content
        for event in [*before, *(self._events[:-1] if again else self._events)]:
            await service.append_event(session, event.model_copy(deep=True))
        for event in self._events:
            if event.author != "user" and (text := _text(event)):
                async with turn.stream() as out:
                    out.write(text)
        if kept:
            self._given = kept[-1]["given"]
        else:
            message, self._given = _content(prompt), len(turn.messages)
        try:
            while True:
                while message is not None:
                    steered = await self._run(message, config, again=again)
                    message, again = None if steered else await self._decided(), False
                await turn.steered()
                unanswered = turn.messages[self._given :]
                if not unanswered:
                    break
                message = _content("\n".join(each.text for each in unanswered))
                self._given = len(turn.messages)
        except asyncio.CancelledError:
            if turn.stopped.is_set():
                turn.history.append(*TRANSCRIPT.entries(map(_stored, self._stopped())))
            raise
        turn.history.append(*TRANSCRIPT.entries(map(_stored, self._events)))
        return self._events

    async def _run(self, message: Content, config: RunConfig, *, again: bool) -> bool:
        """Run the agent with a message; return whether it was left because further messages have come."""
        events = self.runner.run_async(
            user_id=APP, session_id=self._turn.id, new_message=message, run_config=config, yield_user_message=True
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(aclosing(events))
            out: Any = None
            async for event in events:
                if again and event.author == "user":
                    # It is kept already.
                    again = False
                    continue
                text = "" if event.author == "user" else _text(event)
                # The whole text follows its pieces.
                if text and (event.partial or not self._text):
                    out = out or await stack.enter_async_context(self._turn.stream())
                    out.write(text)
                if event.partial:
                    self._text += text
                    continue
                self._text = ""
                self._events.append(event)
                await TRANSCRIPT.keep(self._turn, event=_stored(event), given=self._given)
                if event.get_function_responses() and event.author != "user" and await self._turn.steered():
                    return not any(call.name == CONFIRMATION for call in self._open())
        return False

    async def _continued(self) -> Content | None:
        """Return with what an attempt continues: the last message, or results for calls that have none."""
        if not self._events:
            return None
        if any(call.name == CONFIRMATION for call in self._open()):
            return await self._decided()
        last = self._events[-1]
        if last.author == "user" or last.get_function_responses():
            return last.content
        return _results([await self._result(call) for call in self._open()])

    async def _decided(self) -> Content | None:
        """Ask for what the agent waits for, and return the decisions."""
        asked = [call for call in self._open() if call.name == CONFIRMATION]

        async def decide(call: FunctionCall) -> FunctionResponse:
            original = FunctionCall.model_validate((call.args or {})["originalFunctionCall"])
            decision = await self._asks.ask(self._question(original), [original.id, original.name, original.args])
            return FunctionResponse(id=call.id, name=call.name, response={"confirmed": bool(decision)})

        return _results(await asyncio.gather(*map(decide, asked)))

    async def _result(self, call: FunctionCall) -> FunctionResponse:
        """Return the stored result of a call of an earlier attempt, which the agent has not got."""

        async def not_made() -> Any:
            return {"error": NOT_MADE}

        result = await _called(self._turn, not_made, call.name or "", call.args, str(call.id), replay="safe")
        return FunctionResponse(id=call.id, name=call.name, response=result)

    def _open(self) -> list[FunctionCall]:
        """Return the calls of the turn that have no result."""
        answered = {each.id for event in self._events for each in event.get_function_responses()}
        return [each for event in self._events for each in event.get_function_calls() if each.id not in answered]

    def _stopped(self) -> list[Event]:
        """Return the events of a turn that was stopped, so that models accept them as a history."""
        if self._text:
            self._events.append(_said(self._agent, "assistant", self._text))
        told = [
            FunctionResponse(id=call.id, name=call.name, response=self.begun.get(str(call.id), {"error": INTERRUPTED}))
            for call in self._open()
        ]
        content = _results(told)
        closing = [] if content is None else [Event(author="user", content=content)]
        unanswered = [_said(self._agent, "user", message.text) for message in self._turn.messages[self._given :]]
        return [*self._events, *closing, *unanswered]


class _Intents(BasePlugin):
    """Lets tools run as tools of the turn."""

    def __init__(self, turn: Turn, safe: frozenset[str], begun: dict[str, Any]) -> None:
        super().__init__(name="stepwell")
        self._turn = turn
        self._safe = safe
        self._begun = begun

    async def before_tool_callback(self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any) -> Any:
        asks = getattr(tool, "check_require_confirmation", None)
        waits = asks is not None and not tool_context.tool_confirmation and await asks(tool_args, tool_context)
        if tool.is_long_running or waits:
            # It does not act yet, or its result comes later, as a message.
            return None
        id_ = str(tool_context.function_call_id)
        replay: Any = "safe" if tool.name in self._safe else "never"

        async def work() -> Any:
            self._begun[id_] = {"error": UNKNOWN if replay == "never" else INTERRUPTED}
            result = await tool.run_async(args=tool_args, tool_context=tool_context)
            self._begun[id_] = result if isinstance(result, dict) else {"result": result}
            return self._begun[id_]

        # After an approval the same call runs again, and then for the first time.
        place = f"{id_}{'+' if tool_context.tool_confirmation else ''}"
        self._begun[id_] = await _called(self._turn, work, tool.name, tool_args, place, replay=replay)
        return self._begun[id_]


async def _called(turn: Turn, run: Any, name: str, arguments: Any, place: str, *, replay: Any) -> Any:
    return await call_tool(
        turn, run, name=name, arguments=arguments, place=place, replay=replay,
        store=as_it_is, restore=as_it_is, unknown={"error": UNKNOWN},
    )  # fmt: skip


def _question(call: FunctionCall) -> str:
    return question_about(call.name or "", call.args or {})


def _content(text: str) -> Content:
    return Content(role="user", parts=[Part(text=text)])


def _results(results: Sequence[FunctionResponse]) -> Content | None:
    return Content(role="user", parts=[Part(function_response=each) for each in results]) if results else None


def _text(event: Event) -> str:
    parts = (event.content.parts if event.content else None) or ()
    return "".join(part.text for part in parts if part.text and not part.thought)


def _said(agent: BaseAgent, role: str, text: str) -> Event:
    """Return the event of a text that another handler has appended."""
    if role == "user":
        return Event(author="user", content=_content(text))
    return Event(author=agent.name, content=Content(role="model", parts=[Part(text=text)]))


def _stored(event: Event) -> Any:
    return json.loads(event.model_dump_json(exclude_none=True))


def _event(value: Any) -> Event:
    return Event.model_validate_json(json.dumps(value))
