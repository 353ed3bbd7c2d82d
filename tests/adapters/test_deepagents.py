"""``run_graph`` with the graphs of deepagents: its middleware, files and approvals, in the turns of a chat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from deepagents import create_deep_agent
from langchain.agents.middleware import wrap_tool_call
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from stepwell import MemoryStorage
from stepwell.adapters.langgraph import StepwellSaver, run_graph, run_tool
from stepwell.turns import Turn, Turns
from tests.adapters.test_langgraph_turns import made, text_of
from tests.turns.people import People, state_of, working
from tests.turns.test_tools import die
from tests.until import until

Step = str | dict[str, Any]


class Scripted(BaseChatModel):
    """A model that makes steps: a text, or a call of a tool."""

    steps: Callable[[int], Step]
    #: What it was told in each request.
    told: list[list[str]]

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        self.told.append([text_of(message) for message in messages if message.type != "system"])
        step, id_ = self.steps(len(self.told)), str(uuid4())
        if isinstance(step, str):
            message = AIMessage(step, id=id_)
        else:
            calls = [{"name": name, "args": args, "id": f"{name}-{len(self.told)}"} for name, args in step.items()]
            message = AIMessage("", tool_calls=calls, id=id_)
        return ChatResult(generations=[ChatGeneration(message=message)])

    @property
    def _llm_type(self) -> str:
        return "scripted"


class Bot:
    def __init__(self, *steps: Step, retry_tools: bool = False, **options: Any) -> None:
        storage = MemoryStorage()
        self.turns = Turns("bot", storage=storage, collect=0.0, lease=1.0)
        self.model = Scripted(steps=lambda number: steps[number - 1], told=[])
        self.graph: Any = create_deep_agent(self.model, checkpointer=StepwellSaver(storage), **options)

        @self.turns.handler
        async def answer(turn: Turn) -> None:
            await run_graph(turn, self.graph, retry_tools=retry_tools)


async def test_its_files_and_to_dos_are_in_the_thread_and_its_subagents_answer() -> None:
    todos = {"write_todos": {"todos": [{"content": "write", "status": "in_progress"}]}}
    write = {"write_file": {"file_path": "/notes.txt", "content": "tea costs 3"}}
    task = {"task": {"description": "count to two", "subagent_type": "general-purpose"}}
    bot = Bot(todos, write, task, "one two", "noted", {"read_file": {"file_path": "/notes.txt"}}, "it costs 3")
    people = People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("note the price of tea"))
        assert await people.answered() == ["noted"]
        await state_of(bot.turns, "idle")
        await bot.turns.admit(people.message("what does it cost?"))
        assert (await people.answered(2))[1] == "it costs 3"
        await state_of(bot.turns, "idle")
    assert bot.model.told[3] == ["count to two"] and "one two" in bot.model.told[4]
    assert "tea costs 3" in bot.model.told[6][-1]


@pytest.mark.parametrize("once", [False, True])
async def test_a_call_is_approved_in_the_chat_and_does_not_run_again_after_a_crash(once: bool) -> None:
    calls: list[str] = []

    async def pay(item: str) -> str:
        calls.append(item)
        await die(bot)  # type: ignore[arg-type]
        return "paid"

    steps: list[Step] = [{"pay": {"item": "tea"}}, "I do not know", {"pay": {"item": "gold"}}, "left"]
    bot = Bot(
        *steps, tools=[made(pay)], interrupt_on={"pay": True}, retry_tools=once,
        middleware=[wrap_tool_call(run_tool)] if once else [],
    )  # fmt: skip
    people = People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("buy tea"))
        (card,) = await until(lambda: list(people.sent), lambda sent: len(sent) == 1)
        assert card["text"] == "pay?\nitem: tea"
        await bot.turns.admit(people.press(card, "Yes"))
        assert (await people.answered(2))[1] == "I do not know"
        await state_of(bot.turns, "idle")
        await bot.turns.admit(people.message("buy gold"))
        card = (await until(lambda: list(people.sent), lambda sent: len(sent) == 3))[2]
        await bot.turns.admit(people.press(card, "No"))
        assert (await people.answered(4))[3] == "left"
        await state_of(bot.turns, "idle")
    assert calls == ["tea"]
    assert "outcome" in bot.model.told[1][-1] and "not approved" in bot.model.told[3][-1]
