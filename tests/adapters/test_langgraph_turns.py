"""``run_graph``: graphs with scripted models in the turns of a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from stepwell import MemoryStorage
from stepwell.adapters.langgraph import StepwellSaver, run_graph, run_tool
from stepwell.turns import Budget, Turn, Turns, Usage
from tests.backends import Backend
from tests.turns.people import ANN, People, state_of, working
from tests.turns.test_tools import die
from tests.until import forever, until


class Bot:
    """Turns that a graph of a model and tools answers. The model makes scripted steps: a text, or a call of a tool."""

    def __init__(self, storage: Any, *steps: Any, tools: Any = (), once: bool = False, **options: Any) -> None:
        self.turns = Turns("bot", storage=storage, collect=0.0, lease=0.4, **options)
        self.told: list[list[str]] = []
        messages = script(steps)

        async def ask(state: MessagesState) -> Any:
            self.told.append([text_of(message) for message in state["messages"]])
            message = next(messages)
            if not message.tool_calls:
                # This model streams texts, but no calls of tools.
                message = await GenericFakeChatModel(messages=iter([message])).ainvoke(state["messages"])
            return {"messages": [message]}

        def after(state: MessagesState) -> str:
            last: Any = state["messages"][-1]
            return "tools" if last.tool_calls else END

        builder = StateGraph(MessagesState)
        builder.add_node("ask", ask)
        builder.add_node("tools", ToolNode(list(tools), awrap_tool_call=run_tool if once else None))
        builder.add_edge(START, "ask")
        builder.add_conditional_edges("ask", after)
        builder.add_edge("tools", "ask")
        self.graph: Any = builder.compile(checkpointer=StepwellSaver(storage))

        @self.turns.handler
        async def answer(turn: Turn) -> None:
            await run_graph(turn, self.graph, retry_tools=once)


def script(steps: Any) -> Iterator[Any]:
    for number, step in enumerate(steps):
        if isinstance(step, AIMessage):
            yield step
        elif isinstance(step, str):
            yield AIMessage(step, id=str(uuid4()))
        else:
            calls = [{"name": name, "args": args, "id": f"{name}-{number}"} for name, args in step.items()]
            yield AIMessage("", tool_calls=calls, id=str(uuid4()))


def text_of(message: BaseMessage) -> str:
    calls = "".join(call["name"] for call in getattr(message, "tool_calls", ()))
    return message.text or calls


def made(function: Callable[..., Any]) -> Any:
    function.__doc__ = "Do it."
    return tool(function)


@pytest.mark.every_backend
async def test_the_text_is_streamed_and_the_thread_is_the_conversation(backend: Backend) -> None:
    bot, people = Bot(backend.storage(), "answer one", "answer two"), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("first"))
        await people.answered(1)
        await bot.turns.admit(people.message("second"))
        assert await people.answered(2) == ["answer one", "answer two"]
        await state_of(bot.turns, "idle")
    assert bot.told[1] == ["first", "answer one", "second"]


@pytest.mark.every_backend
async def test_an_interrupt_is_asked_and_its_answer_survives_a_restart(backend: Backend) -> None:
    url = backend.place()
    storage = backend.storage(url)
    await storage.open()
    people, calls = People(), []

    async def delete(path: str) -> str:
        if not interrupt(f"Delete {path}?"):
            return "left"
        calls.append(path)
        return "gone"

    first = Bot(storage, {"delete": {"path": "a"}}, tools=[made(delete)])
    async with working(first.turns, people):
        await first.turns.admit(people.message("delete a"))
        await until(lambda: people.sent, lambda sent: bool(sent))
        await state_of(first.turns, "asking")
    card = people.sent[0]
    assert card["text"] == "Delete a?"
    again = Bot(storage if not backend.shared else backend.storage(url), "deleted", tools=[made(delete)])
    assert (await again.turns.admit(people.press(card, "Yes"))).outcome == "answer"
    async with working(again.turns, people):
        assert (await people.answered(2))[1] == "deleted"
        await state_of(again.turns, "idle")
    assert calls == ["a"] and again.told == [["delete a", "delete", "gone"]]


@pytest.mark.every_backend
async def test_a_crash_in_a_tool_is_told_to_the_model_and_the_tool_does_not_run_again(backend: Backend) -> None:
    calls: list[str] = []

    async def pay() -> str:
        calls.append("pay")
        await die(bot)  # type: ignore[arg-type]
        return "paid"

    bot, people = Bot(backend.storage(), {"pay": {}}, "I do not know", tools=[made(pay)]), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("buy tea"))
        assert await people.answered() == ["I do not know"]
        await state_of(bot.turns, "idle")
    assert calls == ["pay"]
    assert bot.told[1][:2] == ["buy tea", "pay"] and "outcome is unknown" in bot.told[1][2] and len(bot.told[1]) == 3


@pytest.mark.every_backend
async def test_a_stop_in_a_tool_leaves_a_thread_that_goes_on(backend: Backend) -> None:
    begun = asyncio.Event()

    async def wait() -> str:
        begun.set()
        await forever()
        return ""

    bot, people = Bot(backend.storage(), {"wait": {}}, "on", tools=[made(wait)]), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("go"))
        await begun.wait()
        await bot.turns.stop(ANN)
        assert await people.answered() == ["Stopped."]
        await bot.turns.admit(people.message("go on"))
        assert (await people.answered(2))[1] == "on"
    assert bot.told[1][:2] == ["go", "wait"] and "interrupted" in bot.told[1][2] and bot.told[1][3:] == ["go on"]


async def test_messages_that_come_meanwhile_are_answered_in_the_same_turn() -> None:
    async def work() -> str:
        await bot.turns.admit(people.message("and sugar"))
        return "worked"

    steps = [{"work": {}}, "tea", "tea and sugar"]
    bot = Bot(MemoryStorage(), *steps, tools=[made(work)], on_busy="steer")
    people = People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("tea please"))
        assert await people.answered(2) == ["tea", "tea and sugar"]
    assert bot.told[2] == ["tea please", "work", "worked", "tea", "and sugar"]


async def test_what_a_node_says_without_a_model_is_shown_in_order() -> None:
    turns, people, storage = Turns("bot", storage=MemoryStorage(), collect=0.0), People(), MemoryStorage()
    builder: Any = StateGraph(MessagesState)
    builder.add_node("dict", lambda state: {"messages": [{"role": "assistant", "content": "from a dict"}]})
    builder.add_node("message", lambda state: {"messages": AIMessage("from a message")})
    builder.add_edge(START, "dict")
    builder.add_edge("dict", "message")
    graph = builder.compile(checkpointer=StepwellSaver(storage))

    @turns.handler
    async def answer(turn: Turn) -> None:
        await run_graph(turn, graph)

    async with working(turns, people):
        await turns.admit(people.message("go"))
        assert await people.answered(2) == ["from a dict", "from a message"]
        await turns.admit(people.message("again"))
        assert len(await people.answered(4)) == 4
        await state_of(turns, "idle")
    assert len(people.texts) == 4, "nothing of an earlier turn is shown again"


@pytest.mark.every_backend
async def test_a_text_that_a_crash_has_left_in_the_thread_is_shown(backend: Backend) -> None:
    calls: list[str] = []

    async def pay() -> str:
        calls.append("pay")
        await die(bot)  # type: ignore[arg-type]
        return "paid"

    spoken = AIMessage("I pay now.", tool_calls=[{"name": "pay", "args": {}, "id": "c1"}], id="m1")
    bot, people = Bot(backend.storage(), "hello", spoken, "I do not know", tools=[made(pay)]), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("hi"))
        assert await people.answered() == ["hello"]
        await bot.turns.admit(people.message("buy tea"))
        assert await people.answered(3) == ["hello", "I pay now.", "I do not know"]
        await state_of(bot.turns, "idle")
    assert calls == ["pay"]


async def test_an_answer_of_a_graph_that_has_ended_survives_a_crash_behind_its_last_checkpoint() -> None:
    storage, people = MemoryStorage(), People()
    bot = Bot(storage, "all of it")
    bot.turns = turns = Turns("bot", storage=storage, collect=0.0, lease=0.4)

    @turns.handler
    async def answer(turn: Turn) -> None:
        await run_graph(turn, bot.graph)
        if turn.attempt == 1:
            await die(bot)  # type: ignore[arg-type]

    async with working(bot.turns, people):
        await bot.turns.admit(people.message("go"))
        assert await people.answered() == ["all of it"]
        await state_of(bot.turns, "idle")
    assert len(bot.told) == 1, "the model was not asked again"


@pytest.mark.every_backend
async def test_a_tool_with_an_intent_gives_its_result_or_an_unknown_outcome_to_the_next_attempt(
    backend: Backend,
) -> None:
    calls: list[str] = []

    async def pay() -> str:
        calls.append("pay")
        return "receipt"

    async def look() -> str:
        calls.append("look")
        if calls.count("look") == 1:
            await die(bot)  # type: ignore[arg-type]
        return "looked"

    async def ship() -> str:
        calls.append("ship")
        await die(bot)  # type: ignore[arg-type]
        return "sent"

    def steps() -> Any:
        return [{"pay": {}}, {"look": {}}, {"ship": {}}, "done"]

    tools = [made(pay), made(look), made(ship)]
    tools[1].metadata = {"replay": "safe"}
    bot, people = Bot(backend.storage(), *steps(), tools=tools, once=True), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("go"))
        assert await people.answered() == ["done"]
        await state_of(bot.turns, "idle")
    assert calls == ["pay", "look", "look", "ship"]
    assert bot.told[3][1:6] == ["pay", "receipt", "look", "looked", "ship"] and "outcome of this call" in bot.told[3][6]


@pytest.mark.every_backend
async def test_a_tool_with_an_intent_that_waits_for_an_approval_runs_once_after_a_restart(backend: Backend) -> None:
    url = backend.place()
    storage = backend.storage(url)
    await storage.open()
    people, calls = People(), []

    async def delete(path: str) -> Any:
        if not interrupt(f"Delete {path}?"):
            return "left"
        calls.append(path)
        return Command(update={"messages": [ToolMessage("gone", tool_call_id="delete-0")]})

    first = Bot(storage, {"delete": {"path": "a"}}, tools=[made(delete)], once=True)
    async with working(first.turns, people):
        await first.turns.admit(people.message("delete a"))
        await until(lambda: people.sent, lambda sent: bool(sent))
        await state_of(first.turns, "asking")
    again = Bot(storage if not backend.shared else backend.storage(url), "deleted", tools=[made(delete)], once=True)
    assert (await again.turns.admit(people.press(people.sent[0], "Yes"))).outcome == "answer"
    async with working(again.turns, people):
        assert (await people.answered(2))[1] == "deleted"
        await state_of(again.turns, "idle")
    assert calls == ["a"] and again.told == [["delete a", "delete", "gone"]]


async def test_each_request_is_counted_in_the_budget_of_the_person() -> None:
    def price(usage: Usage) -> float:
        assert (usage.model, usage.cache_read) == ("small", 4)
        return usage.output / 100 + usage.input / 1000

    storage, people = MemoryStorage(), People()
    turns = Turns("bot", storage=storage, collect=0.0, budget=Budget(usd=0.05, prices=price, refusal="No more."))
    used = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12, "input_token_details": {"cache_read": 4}}

    async def ask(state: MessagesState) -> Any:
        number = len(state["messages"])
        message = AIMessage(f"{number}", usage_metadata=used, response_metadata={"model_name": "small"})  # type: ignore[arg-type]
        return {"messages": [message]}

    builder = StateGraph(MessagesState)
    builder.add_sequence([("first", ask), ("second", ask)])
    builder.add_edge(START, "first")
    graph = builder.compile(checkpointer=StepwellSaver(storage))

    @turns.handler
    async def answer(turn: Turn) -> None:
        await run_graph(turn, graph)

    async with working(turns, people):
        await turns.admit(people.message("tea"))
        assert await people.answered(2) == ["1", "2"]
        await state_of(turns, "idle")
        (status,) = [each async for each in turns.budgets()]
        await turns.admit(people.message("more"))
        assert (await people.answered(3))[2] == "No more."
    assert (status.payer, status.spent) == (42, pytest.approx(0.06))
