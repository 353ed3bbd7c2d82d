"""Bots: people register with a polling bot and get reminders; and two workers handle the same updates."""

from __future__ import annotations

import asyncio
from itertools import groupby, pairwise
from typing import Any

from examples.registration import Registration

from stepwell.botapi.errors import NotPossible
from stepwell.botapi.person import Person
from stepwell.errors import StepwellError
from stepwell.fsm import Flow, state
from stepwell.fsm.timers import outbox
from stepwell.telegram import run_polling
from stepwell.testing.simulated_store import NETWORK_FAULTS
from tests.reliability.polling_bot import make_router
from tests.reliability.roles import converse
from tests.reliability.test_bot_kills import chat, keep_waiting
from tests.simulation.faults import TELEGRAM_FAULTS
from tests.simulation.telegram import Telegram
from tests.simulation.world import Life, World

__all__ = ["PollingBot", "Updates"]


#: Records that were migrated twice.
_TWICE: list[dict[str, Any]] = []


class NewerRegistration(Flow, name="registration", revision=2):
    """The same flow in a newer release."""

    get_name = state(to=["get_email"])
    get_email = state(to=["confirm"])
    confirm = state(to=[])
    default_state = get_name

    @staticmethod
    def migrate(old_revision: int, state: str | None, data: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
        if "migrated" in data:
            _TWICE.append(data)
        return state, {**data, "migrated": True}


class PollingBot(World):
    """One process polls; people chat with it and wait for reminders."""

    places = {"bot": ("kill", "kill", "pause", "stop", *NETWORK_FAULTS), "telegram": TELEGRAM_FAULTS}
    span = 4.0
    steps = 800
    requests = 50

    def run(self) -> None:
        before, outbox.RETRY = outbox.RETRY, 2.0
        try:
            super().run()
        finally:
            outbox.RETRY = before

    async def live(self) -> None:
        self.telegram = Telegram(self)
        self.keep("bot", self.poll)
        people = [self.telegram.person(100 + number) for number in range(2)]
        waiting = self.telegram.person(200)
        stop = asyncio.Event()
        stop.set()
        chats = [asyncio.create_task(self.chat(person, f"N{place}-")) for place, person in enumerate(people)]
        reminding = asyncio.create_task(keep_waiting(waiting, stop, timeout=900))
        blocking = asyncio.create_task(self.block_and_return(self.telegram.person(300)))
        again = asyncio.create_task(self.redeliver())
        expected = await asyncio.gather(*chats)
        reminded = await reminding
        await blocking
        self.calm()
        await again
        for person, wanted in zip(people, expected, strict=True):
            said = [message["text"] for message in person.messages if message["from"]["is_bot"]]
            assert [text for text, _ in groupby(said)] == wanted, f"{said} instead of {wanted}"
        said = [message["text"] for message in waiting.messages if message["from"]["is_bot"]]
        assert list(dict.fromkeys(said)) == reminded, f"{said} instead of {reminded}"
        assert not _TWICE, f"a record was migrated twice: {_TWICE.pop()}"
        self.telegram.close()

    async def chat(self, person: Person, name: str) -> list[str]:
        await asyncio.sleep(self.choose.random())
        return await chat(person, name, 1, timeout=900)

    async def block_and_return(self, person: Person) -> None:
        """Block the bot while it answers, and find the conversation as it was when it is unblocked."""
        await person.send("/register")
        await asyncio.sleep(self.choose.choice([0, 0.05, 0.2]))
        await person.block()
        await asyncio.sleep(self.choose.choice([0, 0.5, 3]))
        await person.unblock()
        await person.send("Eve")
        while await person.answer(timeout=900) != "Got it, Eve! What's your email?":
            pass

    async def redeliver(self) -> None:
        for _ in range(self.choose.randrange(4)):
            await asyncio.sleep(self.choose.uniform(0, 2))
            try:
                self.telegram.telegram.redeliver(self.telegram.bot)
            except NotPossible:
                continue

    async def poll(self, life: Life) -> None:
        # Each start may be one of an older or of a newer release.
        release = self.choose.choice([Registration, NewerRegistration])
        async with self.telegram.client() as client:
            await run_polling(make_router(self.storage(), release), client=client)


class Updates(World):
    """Two processes handle updates, each of which is delivered several times, out of order and to both."""

    places = dict.fromkeys(("one", "two"), ("kill", "kill", "pause", "stop", *NETWORK_FAULTS))
    span = 2.0
    steps = 300
    requests = 40

    async def live(self) -> None:
        ids = [(user, user * 100 + number) for user in (1, 2) for number in range(4)]
        several = [update for update in ids for _ in range(self.choose.randint(1, 3))]
        self.choose.shuffle(several)
        self.deliveries = [(number, *update) for number, update in enumerate(several)]
        for slot in self.places:
            self.keep(slot, self.work)
        await self.until(lambda: all(task.done() for task in self._supervisors), "all updates are handled")
        handled = sorted((began, ended, update) for _, update, began, ended in self.reports("handled"))
        storage = self.store.storage()
        async with storage:
            for user in (1, 2):
                seen = (await storage.get_data("bot", (user, user)) or {}).get("seen", [])
                assert sorted(seen) == sorted(update for owner, update in ids if owner == user), f"{user}: {seen}"
                mine = [each for each in handled if each[2] // 100 == user]
                # A handler goes on without its lease if it cannot renew it. Only its commit is refused.
                if not any(self.happened[kind] for kind in ("pause", *NETWORK_FAULTS)):
                    for (_, ended, one), (began, _, other) in pairwise(mine):
                        assert ended <= began, f"{one} and {other} were handled at once"

    async def work(self, life: Life) -> None:
        """Deliver until every update is acknowledged. Telegram repeats what was not."""
        while left := self.unacknowledged():
            self.choose.shuffle(left)
            try:
                async with self.storage() as storage:
                    await converse(storage, life.report, deliveries=left, at_once=3, lease=2.0, pause=0.05)
            except (StepwellError, ExceptionGroup) as error:
                life.report("error", type(error).__name__)
                await asyncio.sleep(0.5)

    def unacknowledged(self) -> list[tuple[int, int, int]]:
        known = {line[1] for line in self.reports("acknowledged")}
        return [each for each in self.deliveries if each[0] not in known]
