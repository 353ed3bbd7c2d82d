"""Turns: people write, edit, press and stop, while two processes run the turns of their agent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

from stepwell.botapi.keyboards import buttons_of
from stepwell.botapi.person import Person
from stepwell.botapi.world import WorldEvent
from stepwell.errors import UnknownOutcome
from stepwell.record import TURNS
from stepwell.telegram import Sender, run_polling
from stepwell.telegram.engine import updates_in_inbox
from stepwell.testing.simulated_store import NETWORK_FAULTS
from stepwell.turns import Turn, Turns
from stepwell.turns.events import TurnEnded, TurnEvent, TurnStarted
from tests.reliability.turn_roles import LEASE, agent, answers_in
from tests.simulation.faults import TELEGRAM_FAULTS
from tests.simulation.telegram import Telegram
from tests.simulation.world import Life, World

__all__ = ["Agents"]

#: What is streamed.
WORDS = ("one", "two", "three")
#: The first one may approve, the second one stops turns.
ANN, BOB = 42, 43


class Agents(World):
    """One process polls and runs turns, another one runs turns only."""

    places = {
        "poller": ("kill", "kill", "pause", "stop", *NETWORK_FAULTS),
        "worker": ("kill", "kill", "pause", "stop", *NETWORK_FAULTS),
        "telegram": TELEGRAM_FAULTS,
    }
    span = 15.0
    steps = 800
    requests = 60

    def __init__(self, seed: int, faults: Any = None) -> None:
        super().__init__(seed, faults)
        #: What the payment service has got.
        self.paid: Counter[str] = Counter()
        self.policy = self.choose.choice(["merge", "queue", "steer", "interrupt", "rollback"])
        self.style = self.choose.choice(["agent", "streaming", "tasks"])

    async def live(self) -> None:
        self.telegram = Telegram(self)
        # Someone who presses before the bot has noted that the question was sent.
        self.telegram.telegram.watch(self.press_at_once)
        self.keep("poller", self.poll)
        self.keep("worker", self.serve)
        people = [self.telegram.person(ANN), self.telegram.person(BOB)]
        await asyncio.gather(*map(self.write, people))
        await asyncio.sleep(5)
        self.calm()
        storage = self.store.storage()
        async with storage:
            turns = self.turns(storage)

            async def settled() -> bool:
                states = [status.state async for status in turns.conversations()]
                if "asking" in states:
                    await self.press(people[0])
                if self.telegram.bot.updates.pending or await updates_in_inbox(storage, "bot"):
                    return False
                return set(states) <= {"idle"} and not await storage.due(TURNS, before=float(1 << 40))

            await self.until(settled, "all conversations are idle", seconds=600)
            for person in people:
                self.check(person, await turns.history((person.id, 0)).read())
        assert all(count == 1 for count in self.paid.values()), f"paid twice: {self.paid}"
        self.telegram.close()

    # Processes

    def turns(self, storage: Any, life: Life | None = None) -> Turns:
        def pay(text: str) -> None:
            self.paid[text] += 1

        async def think() -> None:
            await asyncio.sleep(self.choose.choice([0, 0.1, 3]))

        options: dict[str, Any] = {"on_busy": self.policy, "collect": 0.5, "attempts": 20}
        match self.style:
            case "agent":
                turns = agent(storage, pay, lambda point: None, think, **options)
            case "streaming":
                turns = self.streaming(storage, think, **options)
            case _:
                turns = self.asking_in_tasks(storage, pay, think, **options)
        if life is not None:

            def note(event: TurnEvent) -> None:
                if isinstance(event, TurnStarted):
                    life.report("began", event.turn, event.attempt, event.updates)
                elif isinstance(event, TurnEnded):
                    life.report("ended", event.turn, event.how, event.error)

            turns.subscribe(note)
        return turns

    def streaming(self, storage: Any, think: Callable[[], Awaitable[None]], **options: Any) -> Turns:
        """Return turns whose answers are streamed."""
        turns = Turns("bot", storage=storage, lease=LEASE, **options)

        @turns.handler
        async def answer(turn: Turn) -> AsyncIterator[str]:
            ids = " ".join(str(message.update.update_id) for message in turn.messages)
            turn.history.append(ids)
            yield f"{turn.id} [{ids}]"
            for word in WORDS:
                await think()
                yield f" {word}"

        return turns

    def asking_in_tasks(
        self, storage: Any, pay: Callable[[str], None], think: Callable[[], Awaitable[None]], **options: Any
    ) -> Turns:
        """Return turns that ask and call tools at the same time, so that a claim is released and made again."""
        turns = Turns("bot", storage=storage, lease=LEASE, **options)

        async def charge(text: str) -> str:
            pay(text)
            await think()
            return "paid"

        @turns.handler
        async def answer(turn: Turn) -> None:
            async def work() -> str:
                await think()
                try:
                    done: str = await turn.tool(charge, turn.text, replay="never")
                except UnknownOutcome:
                    done = "unknown"
                await think()
                await turn.tool(think, replay="safe")
                return done

            messages = turn.messages[:]
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(turn.ask("Sure?", timeout=self.choose.choice([1, 5])))
                working = group.create_task(work())
            if self.choose.random() < 0.5:
                await turn.ask("Really sure?", timeout=self.choose.choice([1, 5]))
            more = [each for each in await turn.steered() if each not in messages]
            ids = " ".join(str(message.update.update_id) for message in (*messages, *more))
            turn.history.append(ids)
            turn.answer(f"{turn.id} [{ids}] {working.result()} {asking.result().choice}")

        return turns

    async def poll(self, life: Life) -> None:
        async with self.telegram.client() as client:
            await run_polling(self.turns(self.storage(), life).as_router(), client=client)

    async def serve(self, life: Life) -> None:
        async with self.telegram.client() as client, self.storage() as storage:
            sender = Sender(client)
            async with self.turns(storage, life).worker(send=sender.send, client=client, drain=1.0):
                await asyncio.Event().wait()

    # People

    async def write(self, person: Person) -> None:
        for number in range(4):
            await asyncio.sleep(self.choose.choice([0, 0.2, 1, 3]))
            what = self.choose.choice(["hello", "pay", "ask", "ask and pay"] if person.id == ANN else ["hello", "pay"])
            await person.send(f"{what} {person.id}-{number}")
            self.simulation.note(person.me["first_name"], f"{what} {number}", to="bot")
            action = self.choose.random()
            if action < 0.15:
                self.telegram.telegram.redeliver(self.telegram.bot)
            elif action < 0.4 and person.id == BOB:
                await asyncio.sleep(self.choose.choice([0.1, 0.7, 2]))
                await person.send("/stop")
                self.simulation.note(person.me["first_name"], "/stop", to="bot")
            elif action < 0.6:
                await self.press(person)
            elif action < 0.7:
                await person.edit(f"{what} {person.id}-{number} edited")

    def press_at_once(self, event: WorldEvent) -> None:
        buttons = list(buttons_of(event.body.get("reply_markup") or {})) if event.kind == "message" else []
        if buttons and self.choose.random() < 0.3:
            person = self.telegram.person(event.body["chat"]["id"])
            query = {"from": dict(person.me), "message": event.body, "chat_instance": "1", "data": buttons[0].data}
            self.telegram.telegram.ask(self.telegram.bot, "callback_query", query)

    async def press(self, person: Person) -> None:
        """Press a button of the last question that has some."""
        for message in reversed(person.messages):
            buttons = [button for button in buttons_of(message.get("reply_markup") or {}) if button.data]
            if buttons:
                await person.push(self.choose.choice(buttons), message)
                self.simulation.note(person.me["first_name"], "presses a button", to="bot")
                return

    # Checks

    def check(self, person: Person, history: list[Any]) -> None:
        """Check that each message was answered once, in order; those of stopped turns were in no other."""
        # The update of each message, for that update and for those of its edits.
        by_message: dict[int, int] = {}
        first: dict[int, int] = {}
        for update in self.telegram.bot.updates.all:
            message = update.get("message") or update.get("edited_message") or {}
            if message.get("from", {}).get("id") == person.id and not message["text"].startswith("/"):
                first[update["update_id"]] = by_message.setdefault(message["message_id"], update["update_id"])
        said = [message["text"] for message in person.messages if message["from"]["is_bot"]]
        answers = answers_in(said)
        named = [first[number] for ids, _ in answers.values() for number in ids]
        assert len(set(named)) == len(named), f"a message is in two turns: {answers}"
        begun: dict[str, set[int]] = {}
        for _, turn, _, updates in self.reports("began"):
            begun.setdefault(turn, set()).update(first.get(number, 0) for number in updates)
        missing = set(by_message.values()) - set(named)
        # A turn may be stopped before it begins.
        unrun = [turn for _, turn, how, _ in self.reports("ended") if how == "stopped" and turn not in begun]
        in_no_turn = missing - set().union(*begun.values())
        assert unrun or not in_no_turn, f"{in_no_turn} of {first} were in no turn"
        stops = "Stopped." in said or "You said no." in said or self.policy in ("interrupt", "rollback")
        assert stops or not missing, f"{missing} of {first} were not answered: {said}"
        for (_, (ids, _)), (_, (later, _)) in pairwise(answers.items()):
            assert first[max(ids)] < first[min(later)], f"the answers are out of order: {answers}"
        if self.style == "streaming":
            for turn, (_, words) in answers.items():
                assert words == " ".join(WORDS) or "[stopped]" in words, f"the text of {turn} is {words}"
        kept = {first[int(number)] for entry in history if isinstance(entry, str) for number in entry.split()}
        assert set(named) <= kept, f"the history has {kept}, not {named}"
