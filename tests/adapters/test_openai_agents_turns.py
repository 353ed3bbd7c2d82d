"""``run_agent`` of the OpenAI Agents SDK: agents with scripted models in the turns of a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from agents import Agent, ModelSettings, ModelTracing, RunConfig, Usage, function_tool
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from stepwell import MemoryStorage
from stepwell.adapters.openai_agents import TurnResult, run_agent
from stepwell.turns import Budget, Turn, Turns
from stepwell.turns import Usage as Tokens
from tests.backends import Backend
from tests.turns.people import ANN, People, state_of, working
from tests.turns.test_tools import die
from tests.until import forever, until


class Bot:
    """Turns that an agent answers, whose model makes scripted steps: a text, or calls of tools."""

    def __init__(self, storage: Any, *steps: Any, tools: Any = (), **options: Any) -> None:
        self.turns = Turns("bot", storage=storage, collect=0.0, lease=1.0, **options)
        script = [made(number, step) for number, step in enumerate(steps)]
        self.model = ScriptedModel(script, default_usage=Usage(requests=1, total_tokens=5))
        self.results: list[TurnResult] = []
        agent = Agent(name="clerk", model=self.model, tools=list(tools))

        @self.turns.handler
        async def answer(turn: Turn) -> None:
            config = RunConfig(tracing_disabled=True)
            self.results.append(await run_agent(turn, agent, run_config=config, safe=["look", "wait"]))

    def told(self, number: int) -> list[str]:
        """Return what the model was told in a request, as texts."""
        texts = []
        for item in self.model.calls[number].input:
            each: Any = item
            content = each.get("content") or each.get("output") or each.get("name")
            texts.append(content if isinstance(content, str) else content[0]["text"])
        return texts


def made(number: int, step: Any) -> ModelStep:
    if isinstance(step, ModelStep):
        return step
    if isinstance(step, str):
        return ModelStep(output=[assistant_message(step, item_id=f"m{number}")])
    calls = [function_call(name, arguments, call_id=f"{name}-{number}") for name, arguments in step.items()]
    return ModelStep(output=calls)


def tool(function: Callable[..., Any], **options: Any) -> Any:
    return function_tool(function, **options)


@pytest.mark.every_backend
async def test_the_text_is_streamed_and_the_next_turn_has_the_history(backend: Backend) -> None:
    bot, people = Bot(backend.storage(), "answer 1", "answer 2"), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("one"))
        await people.answered(1)
        await bot.turns.admit(people.message("two"))
        assert await people.answered(2) == ["answer 1", "answer 2"]
        await state_of(bot.turns, "idle")
    assert bot.told(1) == ["one", "answer 1", "two"]
    assert bot.results[1].usage.total_tokens == 5 and bot.results[1].output == "answer 2"


@pytest.mark.every_backend
async def test_a_crash_in_a_tool_that_runs_once_is_told_to_the_model(backend: Backend) -> None:
    calls: list[str] = []

    async def look(what: str) -> str:
        calls.append("look")
        return "3 coins"

    async def pay(what: str) -> str:
        calls.append("pay")
        await die(bot)  # type: ignore[arg-type]
        return "paid"

    steps = [{"look": {"what": "tea"}}, {"pay": {"what": "tea"}}, "I do not know"]
    bot, people = Bot(backend.storage(), *steps, tools=[tool(look), tool(pay)]), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("buy tea"))
        assert await people.answered() == ["I do not know"]
        await state_of(bot.turns, "idle")
    assert calls == ["look", "pay"] and len(bot.model.calls) == 3, "no request is made again"
    assert bot.told(2)[-1].startswith("The outcome of this call is unknown")


@pytest.mark.every_backend
async def test_an_approval_survives_a_restart_and_the_tool_runs_once(backend: Backend) -> None:
    url = backend.place()
    storage = backend.storage(url)
    await storage.open()
    people, calls = People(), []

    async def delete(path: str) -> str:
        calls.append(path)
        return "gone"

    guarded = tool(delete, needs_approval=True)
    first = Bot(storage, {"delete": {"path": "a"}}, tools=[guarded])
    async with working(first.turns, people):
        await first.turns.admit(people.message("delete a"))
        await until(lambda: people.sent, lambda sent: bool(sent))
        await state_of(first.turns, "asking")
    card = people.sent[0]
    assert card["text"] == "delete?\npath: a"
    again = Bot(storage if not backend.shared else backend.storage(url), "deleted", tools=[guarded])
    assert (await again.turns.admit(people.press(card, "Yes"))).outcome == "answer"
    async with working(again.turns, people):
        assert (await people.answered(2))[1] == "deleted"
        await state_of(again.turns, "idle")
    assert calls == ["a"] and again.told(0) == ["delete a", "delete", "gone"]


async def test_a_call_that_is_not_approved_is_told_to_the_model() -> None:
    async def delete(path: str) -> str:
        raise AssertionError

    guarded = tool(delete, needs_approval=True)
    bot, people = Bot(MemoryStorage(), {"delete": {"path": "a"}}, "left", tools=[guarded]), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("delete a"))
        cards = await until(lambda: list(people.sent), lambda sent: bool(sent))
        await bot.turns.admit(people.press(cards[0], "No"))
        assert (await people.answered(2))[1] == "left"
    assert bot.told(1)[-1] == "The call was not approved."


async def test_messages_that_come_meanwhile_are_given_after_the_tools_and_answered() -> None:
    async def work() -> str:
        await bot.turns.admit(people.message("and sugar"))
        return "worked"

    bot = Bot(MemoryStorage(), {"work": {}}, "first", "both", tools=[tool(work)], on_busy="steer")
    people = People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("tea"))
        await people.answered()
        await state_of(bot.turns, "idle")
    last = bot.told(len(bot.model.calls) - 1)
    assert last[:3] == ["tea", "work", "worked"] and last[-1] == "and sugar"
    assert [each.usage.requests for each in bot.results] == [len(bot.model.calls)]


@pytest.mark.every_backend
async def test_a_stop_in_a_tool_leaves_a_history_that_the_next_turn_goes_on_with(backend: Backend) -> None:
    begun, paid = asyncio.Event(), asyncio.Event()

    async def pay() -> str:
        paid.set()
        return "receipt"

    async def wait() -> str:
        begun.set()
        await forever()
        return ""

    tools = [tool(pay), tool(wait)]
    bot, people = Bot(backend.storage(), {"pay": {}}, {"wait": {}}, "on", tools=tools), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("go"))
        await begun.wait()
        await bot.turns.stop(ANN)
        assert await people.answered() == ["Stopped."]
        await bot.turns.admit(people.message("go on"))
        assert (await people.answered(2))[1] == "on"
    told = bot.told(2)
    assert told[:4] == ["go", "pay", "receipt", "wait"] and told[-1] == "go on"
    assert told[4].startswith("The call was interrupted") and len(told) == 6


async def test_a_stop_while_the_model_writes_keeps_its_text() -> None:
    begun = asyncio.Event()

    async def slow(call: Any) -> Any:
        async for event in events_of("half of it"):
            yield event
            if event.type == "response.output_text.delta":
                begun.set()
                await forever()

    def events_of(text: str) -> Any:
        return ScriptedModel([ModelStep(output=[assistant_message(text)])]).stream_response(
            None, "", ModelSettings(), [], None, [], ModelTracing.DISABLED,
            previous_response_id=None, conversation_id=None, prompt=None,
        )  # fmt: skip

    bot, people = Bot(MemoryStorage(), ModelStep.stream(slow), "next"), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("write"))
        await begun.wait()
        await bot.turns.stop(ANN)
        assert await people.answered() == ["half of it [stopped]"]
        await bot.turns.admit(people.message("more"))
        assert (await people.answered(2))[1] == "next"
    assert bot.told(1) == ["write", "half of it", "more"]


async def test_an_attempt_that_continues_shows_what_was_said_before_it() -> None:
    calls: list[str] = []

    async def look() -> str:
        calls.append("look")
        return "3 coins"

    async def wait() -> str:
        calls.append("wait")
        if calls.count("wait") == 1:
            await die(bot)  # type: ignore[arg-type]
        return "waited"

    spoken = [assistant_message("I look."), function_call("look", {}, call_id="c1")]
    steps = [ModelStep(output=spoken), {"wait": {}}, "done"]
    bot, people = Bot(MemoryStorage(), *steps, tools=[tool(look), tool(wait)]), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("go"))
        assert await people.answered(2) == ["I look.", "done"]
    assert calls == ["look", "wait", "wait"]


async def test_a_history_of_a_later_release_is_refused() -> None:
    bot, people = Bot(MemoryStorage(), "yes"), People()
    async with working(bot.turns, people):
        history = bot.turns.history(ANN)
        await history.append({"role": "user", "content": "hi"}, 7, {"openai_agents": 2, "item": {}})
        await bot.turns.admit(people.message("again"))
        await people.answered()
        failed = (await bot.turns.status(ANN)).failed
    assert failed and "update stepwell" in failed[0].error


async def test_each_request_is_counted_in_the_budget_of_the_person() -> None:
    async def look(what: str) -> str:
        return "3 coins"

    usages: list[Tokens] = []

    def price(usage: Tokens) -> float:
        usages.append(usage)
        return usage.output / 100 + usage.input / 1000

    storage, people = MemoryStorage(), People()
    steps = [{"look": {"what": "tea"}}, "It costs 3 coins"]
    bot = Bot(storage, *steps, tools=[tool(look)], budget=Budget(usd=0.05, prices=price, refusal="No more."))
    bot.model._default_usage = Usage(requests=1, input_tokens=10, output_tokens=2, total_tokens=12)
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("tea"))
        assert await people.answered() == ["It costs 3 coins"]
        await state_of(bot.turns, "idle")
        (status,) = [each async for each in bot.turns.budgets()]
        await bot.turns.admit(people.message("more"))
        assert (await people.answered(2))[1] == "No more."
    assert [(each.input, each.output) for each in usages] == [(10, 2)] * 2
    assert (status.payer, status.spent) == (42, pytest.approx(0.06))
