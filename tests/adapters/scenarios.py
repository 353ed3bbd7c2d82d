"""The same tests for the bots of each framework: examples with a restart or with kills, and a walk of many users."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from stepwell.botapi import Bot, BotAPI, Person
from tests.adapters.processes import PATIENCE, Bots
from tests.until import until

LARGE = os.environ.get("STEPWELL_DOSE") == "large"
REGISTRATION = [
    ("/register", "What's your name?"),
    ("Alice", "Got it, Alice! What's your email?"),
    ("alice@example.com", "Please confirm."),
    ("yes", "Registered! Welcome, Alice!"),
]
WIZARD = [
    ("/register", "What's your name?"),
    ("Alice", "What's your email?"),
    ("alice@example.com", "Alice, alice@example.com: is that right?"),
    ("Confirm", "Registered! Welcome, Alice!"),
]
STEPS = [str(number) for number in range(10)]


async def until_confirmed(bot: Bot) -> None:
    """Wait until every update is confirmed. Another one would be delivered again after a restart."""
    await until(lambda: not bot.updates.pending)


async def check_registration(chat: Person, running: Callable[[], AbstractAsyncContextManager[None]]) -> None:
    """Talk to the registration bot, with a restart."""
    bob = chat.user(7)
    async with running():
        assert await chat.ask("/register") == "What's your name?"
        assert await bob.ask("/register") == "What's your name?"
        assert await chat.ask("Alice") == "Got it, Alice! What's your email?"
        assert await bob.ask("/cancel") == "Cancelled."
        await until_confirmed(chat.bot)
    async with running():
        assert await chat.ask("alice@example.com") == "Please confirm."
        assert await chat.ask("yes") == "Registered! Welcome, Alice!"
        await until_confirmed(chat.bot)


async def check_wizard(chat: Person, running: Callable[[], AbstractAsyncContextManager[None]]) -> None:
    """Talk to the wizard, with a restart."""
    async with running():
        assert await chat.ask("/register") == "What's your name?"
        assert await chat.ask("Alic") == "What's your email?"
        assert await chat.ask("/back") == "What's your name?"
        assert await chat.ask("Alice") == "What's your email?"
        await until_confirmed(chat.bot)
    async with running():
        assert await chat.ask("nowhere") == "Please send an email address, such as alice@example.com."
        assert await chat.ask("alice@example.com") == "Alice, alice@example.com: is that right?"
        await chat.press("Confirm")
        assert await chat.answer() == "Registered! Welcome, Alice!"
        await chat.ask("/register")
        assert await chat.ask("/cancel") == "Cancelled."
        await until_confirmed(chat.bot)


async def check_kills(
    api: BotAPI, bots: Bots, make: str, storage: str, conversation: Sequence[tuple[str, str]], kills: Sequence[int]
) -> None:
    """Talk to a bot that is killed at any moment after these messages. ``make`` has no effect on the first worker."""
    chat = api.chat(bots.bot)
    for number, (said, answer) in enumerate(conversation):
        await (chat.press(said) if said == "Confirm" else chat.send(said))
        for _ in range(kills.count(number)):
            await asyncio.sleep(random.uniform(0, 0.05))
            bots.workers[-1].kill()
            bots.start(make, storage)
        async with asyncio.timeout(PATIENCE):
            while chat.last != answer:
                try:
                    await chat.hear(timeout=PATIENCE)
                except TimeoutError:
                    raise AssertionError(f"no answer to {said!r}; the workers said:\n{bots.log()[-3000:]}") from None
        await bots.settled()
    # At least once, and never anything else or out of order.
    texts = [message["text"] for message in chat.messages if message["from"]["is_bot"]]
    expected = [answer for _, answer in conversation]
    assert list(dict.fromkeys(texts)) == expected
    assert texts == sorted(texts, key=expected.index)
    assert bots.bot.token not in bots.log()


class Walk:
    """Users who send the steps of a walk, as fast as possible, to two workers behind one webhook."""

    def __init__(self, api: BotAPI, bots: Bots, *, users: int) -> None:
        self.bots = bots
        self.chats = [api.chat(bots.bot, user=1000 + number) for number in range(users)]
        self.seed = random.randrange(10**6)
        #: The users with an update that was delivered again. It may overtake others.
        self.again: set[int] = set()
        self._workers: Counter[int] = Counter()

    async def run(self, make: str, url: str, *, kills: int) -> None:
        """Send all steps, deliver one of twenty again, and kill a worker several times."""
        bots, dice = self.bots, random.Random(self.seed)
        for _ in range(2):
            bots.start(make, url)
        for step in STEPS:
            for chat in self.chats:
                await chat.send(step)
                if dice.random() < 0.05 or not self.again:
                    await chat.redeliver()
                    self.again.add(chat.id)
        # A connection stays with the worker that accepted it, so both must be running first.
        await bots.until_listening(2)
        await bots.listen()
        total = len(bots.bot.updates.pending)
        for kill in range(1, kills + 1):
            await until(
                lambda: len(bots.bot.updates.pending) <= total * (1 - kill / (kills + 1)), patience=PATIENCE * 3
            )
            bots.workers[-2].kill()
            bots.start(make, url)
            await bots.until_listening(2 + kill)
        await bots.settled(PATIENCE * (10 if LARGE else 3))

    def check(self, chat: Person, record: Any, state: str, data: Mapping[str, Any], *, ordered: bool = False) -> None:
        """Require that a user has arrived, with each step made once."""
        assert record is not None, f"seed {self.seed}: {chat.id} is missing; {self.bots.log()[-2000:]}"
        assert (record.flow, record.state) == ("walk", state), f"seed {self.seed}: {record}"
        in_order = ordered and chat.id not in self.again
        steps = data["steps"] if in_order else sorted(data["steps"])
        assert steps == STEPS, f"seed {self.seed}"
        self._workers.update(data["by"])

    def check_workers(self, at_least: int) -> None:
        """Require that each step was made by one worker, and that so many workers made steps."""
        assert sum(self._workers.values()) == len(self.chats) * len(STEPS)
        assert len(self._workers) >= at_least, f"only these workers did anything: {self._workers}"
