"""``run_agent`` of Google ADK: agents with scripted models in the turns of a chat. Kills are in tests/reliability."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.tools import FunctionTool, ToolContext
from google.genai.types import Content, FunctionCall, Part

from stepwell import MemoryStorage
from stepwell.adapters.google_adk import run_agent
from stepwell.turns import Turn, Turns
from tests.backends import Backend
from tests.turns.people import ANN, People, state_of, working
from tests.turns.test_tools import die
from tests.until import forever, until

Step = str | dict[str, Any]


class Bot:
    """Turns that an agent answers, whose model makes scripted steps: a text, or calls of tools.

    It stops behind the first word of a text that ends with dots.
    """

    def __init__(self, storage: Any, *steps: Step, tools: Any = (), **options: Any) -> None:
        self.turns = Turns("bot", storage=storage, collect=0.0, lease=1.0, **options)
        #: What the model was told in each request, as texts.
        self.told: list[list[str]] = []
        bot = self

        class Model(BaseLlm):
            async def generate_content_async(
                self, llm_request: LlmRequest, stream: bool = False
            ) -> AsyncIterator[LlmResponse]:
                bot.told.append([said(part) for content in llm_request.contents for part in content.parts or ()])
                step = steps[len(bot.told) - 1]
                if isinstance(step, str):
                    for word in step.split():
                        yield LlmResponse(content=content(Part(text=f"{word} ")), partial=True)
                        if step.endswith("..."):
                            await forever()
                    yield LlmResponse(content=content(Part(text=step)))
                else:
                    calls = [FunctionCall(id=uuid4().hex, name=name, args=args) for name, args in step.items()]
                    yield LlmResponse(content=content(*(Part(function_call=call) for call in calls)))

        agent = LlmAgent(name="clerk", model=Model(model="scripted"), tools=list(tools))

        @self.turns.handler
        async def answer(turn: Turn) -> None:
            await run_agent(turn, agent, safe=["look"])


def content(*parts: Part) -> Content:
    return Content(role="model", parts=list(parts))


def said(part: Part) -> str:
    if part.function_call:
        return str(part.function_call.name)
    if part.function_response:
        return str(next(iter((part.function_response.response or {}).values())))
    return part.text or ""


@pytest.mark.every_backend
async def test_the_text_is_streamed_and_the_next_turn_has_the_history_and_the_state(backend: Backend) -> None:
    async def note(what: str, tool_context: ToolContext) -> str:
        """Note."""
        tool_context.state["noted"] = what
        return "noted"

    async def look(tool_context: ToolContext) -> str:
        """Look."""
        return str(tool_context.state["noted"])

    steps: list[Step] = [{"note": {"what": "tea"}}, "one", {"look": {}}, "two"]
    bot, people = Bot(backend.storage(), *steps, tools=[note, look]), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("first"))
        await people.answered()
        await bot.turns.admit(people.message("second"))
        assert [text.strip() for text in await people.answered(2)] == ["one", "two"]
        await state_of(bot.turns, "idle")
    assert bot.told[3] == ["first", "note", "noted", "one", "second", "look", "tea"]


async def test_a_crash_beside_a_tool_that_has_ended_gives_its_result_and_the_others_are_unknown_or_made_anew() -> None:
    calls: list[str] = []
    paid = asyncio.Event()

    async def pay() -> str:
        """Pay."""
        calls.append("pay")
        paid.set()
        return "receipt"

    async def ship() -> str:
        """Ship."""
        calls.append("ship")
        await paid.wait()
        await asyncio.sleep(0.05)
        await die(bot)  # type: ignore[arg-type]
        return "sent"

    bot, people = Bot(MemoryStorage(), {"pay": {}, "ship": {}}, "done", tools=[pay, ship]), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("go"))
        assert [text.strip() for text in await people.answered()] == ["done"]
        await state_of(bot.turns, "idle")
    assert sorted(calls) == ["pay", "ship"]
    assert bot.told[1][:4] == ["go", "pay", "ship", "receipt"] and "unknown" in bot.told[1][4]


@pytest.mark.every_backend
async def test_a_stop_while_the_model_writes_keeps_its_text(backend: Backend) -> None:
    bot, people = Bot(backend.storage(), "half of it ...", "next"), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("write"))
        runner: Any = bot.turns.runner
        await until(lambda: any(each.text for each in runner.running.values()))
        await bot.turns.stop(ANN)
        assert await people.answered() == ["half [stopped]"]
        await bot.turns.admit(people.message("more"))
        await people.answered(2)
        await state_of(bot.turns, "idle")
    assert bot.told[1] == ["write", "half ", "more"]


async def test_a_call_that_is_not_approved_does_not_run() -> None:
    async def delete(path: str) -> str:
        """Delete."""
        raise AssertionError

    guarded = FunctionTool(delete, require_confirmation=True)
    bot, people = Bot(MemoryStorage(), {"delete": {"path": "a"}}, "left", tools=[guarded]), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("delete a"))
        cards = await until(lambda: list(people.sent), lambda sent: bool(sent))
        await bot.turns.admit(people.press(cards[0], "No"))
        assert (await people.answered(2))[1].strip() == "left"
    assert "rejected" in bot.told[1][-1]


async def test_a_history_of_other_handlers_is_understood_and_that_of_a_later_release_refused() -> None:
    bot, people = Bot(MemoryStorage(), "yes"), People()
    async with working(bot.turns, people):
        history = bot.turns.history(ANN)
        await history.append({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}, 7)
        await bot.turns.admit(people.message("more"))
        await people.answered()
        await state_of(bot.turns, "idle")
        assert bot.told == [["hi", "hello", "more"]]
        await history.append({"google_adk": 2, "event": {}})
        await bot.turns.admit(people.message("again"))
        await people.answered(2)
        failed = (await bot.turns.status(ANN)).failed
    assert failed and "update stepwell" in failed[0].error
