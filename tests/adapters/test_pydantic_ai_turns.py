"""``run_agent`` of pydantic-ai: agents with scripted models in the turns of a chat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    ModelMessage,
    ModelResponse,
    RunContext,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.exceptions import ApprovalRequired, ModelRetry
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel

from stepwell import MemoryStorage
from stepwell.adapters.pydantic_ai import run_agent
from stepwell.errors import UsageError
from stepwell.turns import Budget, Turn, Turns, Usage
from tests.backends import Backend
from tests.turns.people import ANN, People, state_of, working
from tests.turns.test_tools import die
from tests.until import forever, until

Step = str | dict[str, Any]


class Bot:
    """Turns that an agent answers. Its model makes one scripted step for each request."""

    def __init__(self, storage: Any, steps: Callable[[int, list[str]], Step], **options: Any) -> None:
        self.turns = Turns("bot", storage=storage, collect=0.0, lease=0.4, **{"on_busy": "merge", **options})
        self.steps = steps
        #: What the model was told, as texts, for each request.
        self.told: list[list[str]] = []
        self.results: list[Any] = []
        self.calls: list[str] = []
        self.options: dict[str, Any] = {}
        self.agent: Agent[None, Any] = Agent(FunctionModel(stream_function=self.model))

        @self.turns.handler
        async def answer(turn: Turn) -> None:
            self.results.append(await run_agent(turn, self.agent, **self.options))

    async def model(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        self.told.append(texts_of(messages))
        step = self.steps(len(self.told), self.told[-1])
        if isinstance(step, str):
            for word in step.split(" "):
                yield word + " "
        else:
            for place, (name, arguments) in enumerate(step.items()):
                yield {place: DeltaToolCall(name, arguments, tool_call_id=f"{name}-{len(self.told)}")}


def texts_of(messages: list[ModelMessage]) -> list[str]:
    texts: list[str] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart | ToolReturnPart):
                texts.append(f"{part.part_kind}: {part.content}")
            elif isinstance(message, ModelResponse):
                texts.append(f"model: {getattr(part, 'content', None) or getattr(part, 'tool_name', '')}".strip())
    return texts


@pytest.mark.every_backend
async def test_the_text_is_streamed_and_the_next_turn_has_the_history(backend: Backend) -> None:
    bot, people = Bot(backend.storage(), lambda number, told: f"answer {number}"), People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("one"))
        await people.answered(1)
        await bot.turns.admit(people.message("two"))
        assert [text.strip() for text in await people.answered(2)] == ["answer 1", "answer 2"]
        await state_of(bot.turns, "idle")
    assert bot.told == [["user-prompt: one"], ["user-prompt: one", "model: answer 1", "user-prompt: two"]]
    assert bot.results[1].usage.requests == 1 and bot.results[1].output.strip() == "answer 2"


@pytest.mark.every_backend
async def test_a_crash_in_a_tool_that_runs_once_is_told_to_the_model_and_no_request_is_made_again(
    backend: Backend,
) -> None:
    def steps(number: int, told: list[str]) -> Step:
        script: list[Step] = [{"look": '{"what":"tea"}'}, {"pay": '{"what":"tea"}'}, "I do not know"]
        return script[number - 1]

    bot, people = Bot(backend.storage(), steps), People()

    @bot.agent.tool_plain(metadata={"replay": "safe"})
    async def look(what: str) -> str:
        bot.calls.append("look")
        return "3 coins"

    @bot.agent.tool_plain
    async def pay(what: str) -> str:
        bot.calls.append("pay")
        await die(bot)  # type: ignore[arg-type]
        return "paid"

    async with working(bot.turns, people):
        await bot.turns.admit(people.message("buy tea"))
        assert [text.strip() for text in await people.answered()] == ["I do not know"]
        await state_of(bot.turns, "idle")
    assert bot.calls == ["look", "pay"] and len(bot.told) == 3
    assert bot.told[2][-1].startswith("tool-return: The outcome of this call is unknown")
    assert bot.results[0].usage.requests == 3, "those of the first attempt are counted"


async def test_a_result_of_the_first_attempt_is_given_again_as_the_tool_has_returned_it() -> None:
    def steps(number: int, told: list[str]) -> Step:
        return {"pay": "{}", "fix": '{"n":1}', "crash": "{}"} if number == 1 else "done"

    bot, people = Bot(MemoryStorage(), steps), People()

    @bot.agent.tool_plain(sequential=True)
    async def pay() -> dict[str, int]:
        bot.calls.append("pay")
        return {"paid": 3}

    @bot.agent.tool_plain(sequential=True)
    async def fix(n: int) -> str:
        bot.calls.append("fix")
        raise ModelRetry("another number")

    @bot.agent.tool_plain(sequential=True, metadata={"replay": "safe"})
    async def crash() -> str:
        bot.calls.append("crash")
        if bot.calls.count("crash") == 1:
            await die(bot)  # type: ignore[arg-type]
        return "survived"

    async with working(bot.turns, people):
        await bot.turns.admit(people.message("go"))
        assert [text.strip() for text in await people.answered()] == ["done"]
    assert bot.calls == ["pay", "fix", "crash", "crash"]
    assert "tool-return: {'paid': 3}" in bot.told[1] and "tool-return: survived" in bot.told[1]


@pytest.mark.every_backend
async def test_an_approval_survives_a_restart_and_the_tool_runs_once(backend: Backend) -> None:
    url = backend.place()
    storage = backend.storage(url)
    await storage.open()
    people = People()

    def made(storage: Any) -> Bot:
        def steps(number: int, told: list[str]) -> Step:
            return "deleted" if told[-1] == "tool-return: gone" else {"delete": '{"path":"a"}'}

        bot = Bot(storage, steps)

        @bot.agent.tool_plain(requires_approval=True)
        async def delete(path: str) -> str:
            bot.calls.append(path)
            return "gone"

        return bot

    first = made(storage)
    async with working(first.turns, people):
        await first.turns.admit(people.message("delete a"))
        await until(lambda: people.sent, lambda sent: bool(sent))
        await state_of(first.turns, "asking")
    card = people.sent[0]
    assert card["text"] == "delete?\npath: a"
    again = made(storage if not backend.shared else backend.storage(url))
    assert (await again.turns.admit(people.press(card, "Yes"))).outcome == "answer"
    async with working(again.turns, people):
        assert (await people.answered(2))[1].strip() == "deleted"
    assert (first.calls, again.calls) == ([], ["a"]) and len(first.told) == len(again.told) == 1


async def test_a_second_approval_of_a_turn_that_was_continued_is_not_asked_again() -> None:
    def steps(number: int, told: list[str]) -> Step:
        done = sum(text.startswith("tool-return") for text in told)
        return "done" if done == 2 else {"delete": f'{{"path":"{done}"}}'}

    people, storage = People(), MemoryStorage()
    await storage.open()

    def made() -> Bot:
        bot = Bot(storage, steps)

        @bot.agent.tool
        async def delete(ctx: RunContext[None], path: str) -> str:
            if not ctx.tool_call_approved:
                raise ApprovalRequired
            bot.calls.append(path)
            return "gone"

        return bot

    bot = made()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("delete both"))
        cards = await until(lambda: list(people.sent), lambda sent: len(sent) == 1)
        await bot.turns.admit(people.press(cards[0], "Yes"))
        cards = await until(lambda: list(people.sent), lambda sent: len(sent) == 2)
        await state_of(bot.turns, "asking")
    again = made()
    async with working(again.turns, people):
        await again.turns.admit(people.press(cards[1], "No"))
        assert (await people.answered(3))[2].strip() == "done"
    assert (bot.calls, again.calls) == (["0"], []) and again.told[-1][-1] == "tool-return: The call was not approved."
    assert len(people.sent) == 3


async def test_an_external_tool_gets_the_next_message_as_its_result() -> None:
    from pydantic_ai import CallDeferred

    bot, people = Bot(MemoryStorage(), lambda number, told: {"ask_size": "{}"} if number == 1 else "ok"), People()

    @bot.agent.tool_plain
    async def ask_size() -> str:
        raise CallDeferred

    bot.options = {"question": lambda call: "Which size?", "approvers": [42]}
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("shoes"))
        assert await people.answered() == ["Which size?"]
        await state_of(bot.turns, "asking")
        await bot.turns.admit(people.message("43"))
        await people.answered(2)
    assert bot.told[1][-1] == "tool-return: 43"


async def test_messages_that_come_meanwhile_are_given_after_the_tools_and_before_the_end() -> None:
    bot, people = Bot(MemoryStorage(), lambda number, told: "x", on_busy="steer"), People()

    def steps(number: int, told: list[str]) -> Step:
        return {"work": "{}"} if number == 1 else f"answer {number}"

    bot.steps = steps

    @bot.agent.tool_plain
    async def work() -> str:
        await bot.turns.admit(people.message("and sugar"))
        return "worked"

    async with working(bot.turns, people):
        await bot.turns.admit(people.message("tea"))
        await people.answered()
        await state_of(bot.turns, "idle")
    assert bot.told[1] == ["user-prompt: tea", "model: work", "tool-return: worked", "user-prompt: and sugar"]
    assert len(bot.results) == 1

    def late(number: int, told: list[str]) -> Step:
        if number == 3:
            people_task.append(asyncio.ensure_future(bot.turns.admit(people.message("and milk"))))
        return f"answer {number} " + "word " * 20

    people_task: list[Any] = []
    bot.steps = late
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("cake"))
        await until(lambda: len(bot.told), lambda count: count == 4)
        await state_of(bot.turns, "idle")
    assert bot.told[3][-1] == "user-prompt: and milk"


@pytest.mark.every_backend
async def test_a_stop_in_a_tool_leaves_a_history_that_the_next_turn_goes_on_with(backend: Backend) -> None:
    begun = asyncio.Event()

    def steps(number: int, told: list[str]) -> Step:
        return {"pay": "{}", "wait": "{}"} if number == 1 else "on"

    bot, people = Bot(backend.storage(), steps), People()

    @bot.agent.tool_plain(sequential=True)
    async def pay() -> str:
        return "receipt"

    @bot.agent.tool_plain(sequential=True, metadata={"replay": "safe"})
    async def wait() -> None:
        begun.set()
        await forever()

    async with working(bot.turns, people):
        await bot.turns.admit(people.message("go"))
        await begun.wait()
        await bot.turns.stop(ANN)
        assert await people.answered() == ["Stopped."]
        await bot.turns.admit(people.message("go on"))
        assert (await people.answered(2))[1].strip() == "on"
    told = bot.told[1]
    assert told[:3] == ["user-prompt: go", "model: pay", "model: wait"] and told[-1] == "user-prompt: go on"
    assert "tool-return: receipt" in told and any("interrupted" in text for text in told)


async def test_a_stop_while_the_model_writes_keeps_its_text() -> None:
    begun = asyncio.Event()
    bot, people = Bot(MemoryStorage(), lambda number, told: "next"), People()

    async def slow(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "half of it"
        begun.set()
        await forever()

    writer = Agent(FunctionModel(stream_function=slow))
    reader, bot.agent = bot.agent, writer
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("write"))
        await begun.wait()
        await bot.turns.stop(ANN)
        assert await people.answered() == ["half of it [stopped]"]
        bot.agent = reader
        await bot.turns.admit(people.message("more"))
        await people.answered(2)
    assert bot.told == [["user-prompt: write", "model: half of it", "user-prompt: more"]]


async def test_a_model_that_cannot_stream_answers_as_well() -> None:
    def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        from pydantic_ai import TextPart

        return ModelResponse([TextPart("all of it")])

    bot, people = Bot(MemoryStorage(), lambda number, told: "x"), People()
    bot.agent, bot.options = Agent(FunctionModel(whole)), {"stream": False}
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("write"))
        assert await people.answered() == ["all of it"]


async def test_a_history_of_other_handlers_is_understood_and_that_of_a_later_release_refused() -> None:
    bot, people = Bot(MemoryStorage(), lambda number, told: "yes"), People()
    async with working(bot.turns, people):
        history = bot.turns.history(ANN)
        await history.append({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}, 7)
        await bot.turns.admit(people.message("more"))
        await people.answered()
        assert bot.told == [["user-prompt: hi", "model: hello", "user-prompt: more"]]
        await state_of(bot.turns, "idle")
        entries = await history.read()
        assert entries[-1]["pydantic_ai"] == 1
        await history.append({"pydantic_ai": 2, "message": {}})
        await bot.turns.admit(people.message("again"))
        await people.answered(2)
        failed = (await bot.turns.status(ANN)).failed
    assert failed and UsageError.__name__ in failed[0].error and "update stepwell" in failed[0].error


async def test_a_test_model_works_as_it_is() -> None:
    bot, people = Bot(MemoryStorage(), lambda number, told: "x"), People()
    bot.agent = Agent(TestModel())

    @bot.agent.tool_plain
    def price(item: str) -> int:
        return 3

    async with working(bot.turns, people):
        await bot.turns.admit(people.message("what is tea?"))
        assert await people.answered() == ['{"price":3}']


@pytest.mark.parametrize("stream", [True, False])
async def test_each_request_is_counted_in_the_budget_of_the_person(stream: bool) -> None:
    usages: list[Usage] = []

    def price(usage: Usage) -> float:
        usages.append(usage)
        return 0.6

    budget = Budget(usd=1, prices=price, refusal="No more.")
    bot = Bot(MemoryStorage(), lambda number, told: {"look": "{}"} if number == 1 else "seen", budget=budget)
    bot.options["stream"] = stream
    if not stream:

        async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            bot.told.append(texts_of(messages))
            return ModelResponse(parts=[TextPart("seen") if len(bot.told) > 1 else ToolCallPart("look", {})])

        bot.agent = Agent(FunctionModel(respond))

    @bot.agent.tool_plain
    async def look() -> str:
        return "3 coins"

    people = People()
    async with working(bot.turns, people):
        await bot.turns.admit(people.message("hi"))
        assert [text.strip() for text in await people.answered()] == ["seen"]
        await state_of(bot.turns, "idle")
        (status,) = [each async for each in bot.turns.budgets()]
        assert status.spent == pytest.approx(1.2)
        await bot.turns.admit(people.message("more"))
        assert (await people.answered(2))[1] == "No more."
    used = bot.results[0].usage
    counted = [(each.model.partition(":")[0], each.input, each.output) for each in usages]
    assert counted[0][0] == "function" and len(counted) == len(bot.told) == used.requests == 2
    assert (sum(each[1] for each in counted), sum(each[2] for each in counted)) == (
        used.input_tokens,
        used.output_tokens,
    )


async def test_no_further_request_is_made_when_the_budget_is_used_up() -> None:
    budget = Budget(usd=1, prices=lambda usage: 0.6, refusal="No more.")
    bot, people = Bot(MemoryStorage(), lambda number, told: {"look": "{}"}, budget=budget), People()

    @bot.agent.tool_plain
    async def look() -> str:
        return "3 coins"

    async with working(bot.turns, people):
        await bot.turns.admit(people.message("hi"))
        assert await people.answered() == ["No more."]
        await state_of(bot.turns, "idle")
    assert len(bot.told) == 2
