"""Agents of the frameworks in turns, under kill -9, steering, stops and approvals, in real processes.

The model of each is scripted, and refuses a history as the providers of models do: a call without a result, or with
two. Each scenario ends with a message that is answered, so that a history that is refused later shows.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stepwell import Storage
from stepwell.turns import Turns
from tests.backends import Backend
from tests.reliability.agent_roles import AGENT_POINTS, FRAMEWORKS, MODULES
from tests.reliability.dose import LARGE, dose, seeded
from tests.reliability.turn_roles import LEASE, lines, pressed, update
from tests.reliability.workers import Worker, Workers
from tests.until import until

MESSAGES = dose("AGENT_MESSAGES", 20, 1000)
#: More than the frameworks answer with the requests of models that they allow an agent by default.
MESSAGES_OF_A_TURN = 30
KILLS = dose("AGENT_KILLS", 2, 60)
ANN = (42, 0)

#: The points of the small dose: what each framework stores, and where its tools are.
FEW = {
    ("behind the keep", "openai_agents"), ("behind the keep", "langgraph"), ("asking", "pydantic_ai"),
    ("in the tool", "openai_agents"), ("in the tool", "langgraph"), ("behind the result", "pydantic_ai"),
    ("before the end", "langgraph"), ("in the tool", "google_adk"), ("behind the keep", "google_adk"),
}  # fmt: skip
frameworks = pytest.mark.parametrize("framework", FRAMEWORKS)
_ANSWER = re.compile(r"\[(\d+)\] ?(.*)")


@pytest.fixture(scope="module")
def _agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    workers = Workers(tmp_path_factory.mktemp("agents"), *MODULES)
    yield workers
    workers.close()


class Bot:
    """Workers that run an agent on one store, and what they have paid and sent."""

    def __init__(self, workers: Workers, place: str, turns: Turns, framework: str, folder: Path) -> None:
        self._workers = workers
        self._place = place
        self.turns = turns
        self.framework = framework
        self.go = folder / "go"
        self._files = {name: folder / name for name in ("payments", "sent", "ended")}
        self._update = count(1000)
        self._started: list[Worker] = []

    def start(self, **options: Any) -> Worker:
        files = {name: str(path) for name, path in self._files.items()}
        worker = self._workers.start("run_agents", self._place, framework=self.framework, **files, **options)
        self._started.append(worker)
        return worker

    async def ready(self, **options: Any) -> Worker:
        worker = self.start(**options)
        await worker.wait_for("ready")
        return worker

    async def say(self, number: int, words: str, chat: int = 42) -> None:
        """Say it as a person does: once more if it was not taken, because too many messages wait already."""
        said = update(number, f"{number} {words}", chat=chat)
        taken = await until(lambda: self.turns.admit(said), lambda admission: admission.outcome != "full")
        assert taken.outcome == "taken", taken

    async def press(self, may: Callable[[], bool]) -> None:
        """Answer each question with yes, when that may be done."""
        for place in count():
            await until(lambda place=place: len(self.cards()) > place and may())
            await self.turns.admit(pressed(next(self._update), self.cards()[place], 0))

    def cards(self) -> list[dict[str, Any]]:
        return [call for (call,) in lines(self._files["sent"]) if "reply_markup" in call]

    def results(self) -> dict[int, list[str]]:
        """Return the results with which each message was answered."""
        found: dict[int, list[str]] = {}
        # A call whose process dies behind it is made again.
        for call in {json.dumps(call): call for (call,) in lines(self._files["sent"])}.values():
            for number, result in _ANSWER.findall(call.get("text", "")):
                found.setdefault(int(number), []).append(result.strip())
        return found

    def paid(self) -> Counter[str]:
        return Counter(number for _, number in lines(self._files["payments"]))

    def turns_of(self) -> list[list[int]]:
        """Return the messages of each turn that has ended."""
        ended: dict[str, list[int]] = dict(lines(self._files["ended"]))
        return list(ended.values())

    async def answered(self, *numbers: int) -> dict[int, list[str]]:
        """Wait until messages are answered, each once, and nothing is left to do."""

        async def look() -> dict[int, list[str]]:
            for worker in self._started:
                # Raises if it has failed.
                worker.reported()
            failed = [status.failed async for status in self.turns.conversations(failed=True)]
            assert not failed, failed
            return self.results()

        try:
            found = await until(look, lambda results: set(numbers) <= set(results))
        except TimeoutError as error:
            error.add_note(f"{[status async for status in self.turns.conversations()]}")
            raise

        async def idle() -> bool:
            statuses = [status async for status in self.turns.conversations()]
            assert not any(status.failed for status in statuses), statuses
            return all(status.state == "idle" and not status.unsent for status in statuses)

        await until(idle)
        assert {number: len(results) for number, results in self.results().items()} == dict.fromkeys(found, 1)
        return found

    async def goes_on(self, number: int = 99) -> None:
        """Say one more thing: the framework takes the history."""
        await self.say(number, "hello")
        await self.answered(number)


@pytest.fixture
async def bot(framework: str, shared_backend: Backend, _agents: Workers, tmp_path: Path) -> Any:
    if not shared_backend.durable:
        pytest.skip("this backend does not survive a kill")
    if not LARGE and shared_backend.name != "sqlite":
        pytest.skip("other backends with the large dose only")
    place = shared_backend.place()
    storage: Storage = shared_backend.storage(place, sweep_every=None)
    await storage.open()
    turns = Turns("bot", storage=storage, collect=0.05, lease=LEASE, on_busy="steer")
    yield Bot(_agents, place, turns, framework, tmp_path)
    _agents.end_all()


@frameworks
@pytest.mark.parametrize("point", AGENT_POINTS)
async def test_an_agent_goes_on_after_a_kill_at_every_point(point: str, framework: str, bot: Bot) -> None:
    if not LARGE and (point, framework) not in FEW:
        pytest.skip("with the large dose only")
    first = await bot.ready(kill_at=point)
    early = AGENT_POINTS.index(point) <= AGENT_POINTS.index("asking")
    presses = asyncio.create_task(bot.press(lambda: not (early and first.alive())))
    await bot.say(1, "ask")
    await first.wait_ended()
    await bot.ready()
    ((result,),) = (await bot.answered(1)).values()
    presses.cancel()
    if result == "unknown":
        assert point in ("behind the intent", "in the tool", "before the result")
        assert bot.paid() in ({}, {"1": 1})
    else:
        assert result == "receipt for 1" and bot.paid() == {"1": 1} and point != "in the tool"
    await bot.goes_on()


@frameworks
async def test_an_agent_goes_on_after_a_kill_at_every_write(framework: str, bot: Bot) -> None:
    """Around each write in turn, of the turn or of the framework, until none is left."""
    if not LARGE:
        pytest.skip("with the large dose only")
    kills = 0
    for number in count(1):
        alive = 0
        for side in ("before", "behind"):
            chat = 1000 + 10 * number + (side == "behind")
            first = await bot.ready(kill_at=f"{side} write {number}")
            await bot.say(chat, "look pay", chat=chat)
            while first.alive() and chat not in bot.results():
                await asyncio.sleep(0.02)
            if first.alive():
                alive += 1
                await first.kill()
            else:
                kills += 1
            other = await bot.ready()
            (result,) = (await bot.answered(chat))[chat]
            assert result in (f"receipt for {chat}; look {chat}", f"unknown; look {chat}")
            assert bot.paid()[str(chat)] <= 1
            await bot.say(chat + 5000, "hello", chat=chat)
            await bot.answered(chat + 5000)
            await other.kill()
        if alive == 2:
            break
    print(f"{kills} kills around {number - 1} writes of {framework}")
    assert kills >= 10


@frameworks
async def test_a_message_steers_an_agent_behind_its_tool(framework: str, bot: Bot) -> None:
    worker = await bot.ready(go=str(bot.go))
    await bot.say(1, "wait")
    await worker.wait_for("waiting")
    await bot.say(2, "pay")
    bot.go.touch()
    await bot.answered(1, 2)
    assert bot.turns_of() == [[1, 2]] and bot.paid() == {"2": 1}
    await bot.goes_on()


@frameworks
@pytest.mark.parametrize("end", ["released", "killed"])
async def test_a_message_that_is_too_late_for_an_agent_is_the_next_turn(framework: str, end: str, bot: Bot) -> None:
    if not LARGE and end == "killed":
        pytest.skip("with the large dose only")
    worker = await bot.ready(hold=["end", str(bot.go)])
    await bot.say(1, "pay")
    await worker.wait_for("held")
    await bot.say(2, "look")
    if end == "killed":
        await worker.kill()
        await bot.ready()
    bot.go.touch()
    found = await bot.answered(1, 2)
    assert found == {1: ["receipt for 1"], 2: ["look 2"]} and bot.paid() == {"1": 1}
    if end == "released":
        assert bot.turns_of() == [[1], [2]]
    await bot.goes_on()


@frameworks
@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_a_stop_in_a_tool_leaves_an_agent_that_goes_on(framework: str, end: str, bot: Bot) -> None:
    if not LARGE and end == "stopped":
        pytest.skip("with the large dose only")
    worker = await bot.ready(go=str(bot.go))
    await bot.say(1, "wait")
    await worker.wait_for("waiting")
    if end == "killed":
        worker.signal(signal.SIGSTOP)
    await bot.turns.stop(ANN)
    if end == "killed":
        await worker.kill()
        await bot.ready()

    async def idle() -> bool:
        return (await bot.turns.status(ANN)).state == "idle"

    await until(idle)
    assert bot.results() == {}
    await bot.goes_on(2)


@frameworks
async def test_two_workers_of_an_agent_answer_each_message_once_while_they_are_killed(framework: str, bot: Bot) -> None:
    random = seeded()
    running = [await bot.ready(), await bot.ready()]
    said: dict[int, str] = {}

    async def kill() -> None:
        for _ in range(KILLS):
            await asyncio.sleep(random.uniform(0.1, 0.6))
            victim = random.randrange(2)
            await running[victim].kill()
            running[victim] = bot.start()

    async def type_messages() -> None:
        for number in range(1, MESSAGES + 1):
            said[number] = random.choice(["hello", "pay", "look", "pay look"])
            await bot.say(number, said[number], chat=random.randrange(1, 5))
            await asyncio.sleep(random.uniform(0, 0.05))

    await asyncio.gather(type_messages(), kill())
    found = await bot.answered(*said)
    assert set(found) == set(said)
    paid = bot.paid()
    assert set(paid.values()) <= {1}, "no payment was made twice"
    unknown = 0
    for number, words in said.items():
        if "pay" in words.split():
            unknown += "unknown" in found[number][0]
            assert "unknown" in found[number][0] or f"receipt for {number}" in found[number][0]
            assert "unknown" in found[number][0] or paid[str(number)] == 1
    print(f"{MESSAGES} messages, {KILLS} kills with {framework}: {sum(paid.values())} payments, {unknown} unknown")


@frameworks
async def test_an_agent_answers_many_messages_in_one_turn(framework: str, bot: Bot) -> None:
    numbers = list(range(1, MESSAGES_OF_A_TURN + 1))
    for number in numbers:
        await bot.say(number, "look pay")
    await bot.ready()
    await bot.answered(*numbers)
    assert bot.turns_of() == [numbers] and bot.paid() == {str(number): 1 for number in numbers}
    await bot.goes_on()
