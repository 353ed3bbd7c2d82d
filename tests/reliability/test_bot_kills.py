"""A bot that is killed while users chat with it: no answer is missing or out of order."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from asyncio import create_subprocess_exec as spawn
from itertools import groupby
from pathlib import Path

import pytest

from stepwell.botapi import BotAPI, Person
from stepwell.botapi.world import Bot
from tests.backends import Backend
from tests.reliability.dose import LARGE, dose, seeded

BOT = Path(__file__).with_name("polling_bot.py")
ROOT = Path(__file__).parents[2]


class Process:
    """``stepwell run`` with the local Bot API."""

    def __init__(self, api: BotAPI, bot: Bot, storage: str) -> None:
        self._arguments = (sys.executable, "-m", "stepwell", "run", str(BOT), "--api", api.url)
        self._env = {
            **os.environ,
            "BOT_TOKEN": bot.token,
            "STEPWELL_STORAGE": storage,
            "PYTHONPATH": f"{ROOT}:{ROOT}/src",
        }

    async def start(self) -> None:
        self._process = await spawn(*self._arguments, env=self._env, stdout=asyncio.subprocess.PIPE)
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            assert b"is running" in await self._process.stdout.readline()

    async def kill(self, number: int = signal.SIGKILL) -> None:
        self._process.send_signal(number)
        async with asyncio.timeout(60):
            await self._process.wait()


async def chat(person: Person, name: str, rounds: int, *, timeout: float = 60) -> list[str]:
    """Register some times, and return the expected answers."""
    expected: list[str] = []
    for number in range(rounds):
        answers = {
            "/register": "What's your name?",
            f"{name}{number}": f"Got it, {name}{number}! What's your email?",
            f"{number}@example.com": "Please confirm.",
            "yes": f"Registered! Welcome, {name}{number}!",
        }
        for text, answer in answers.items():
            await person.send(text)
            expected.append(answer)
            # An earlier answer may be repeated after a kill.
            while await person.answer(timeout=timeout) != answer:
                pass
    return expected


async def test_killed_bots_lose_no_answer_and_keep_their_order(shared_backend: Backend) -> None:
    if not LARGE and shared_backend.name not in ("sqlite", "postgres"):
        pytest.skip("the large dose runs on all backends")
    choose = seeded()
    kills, people = dose("BOT_KILLS", 2, 100), dose("BOT_USERS", 10, 20)
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        process = Process(api, bot, shared_backend.place())
        await process.start()
        persons = [api.chat(bot, 100 + number) for number in range(people)]
        stop = asyncio.Event()
        chats = [asyncio.create_task(keep_chatting(each, stop, random.Random(choose.random()))) for each in persons]
        waiting = [api.chat(bot, 1000 + number) for number in range(people // 2)]
        reminders = [asyncio.create_task(keep_waiting(each, stop)) for each in waiting]
        for _ in range(kills):
            await asyncio.sleep(choose.uniform(0, 1.5))
            await process.kill()
            await process.start()
        stop.set()
        expected = await asyncio.gather(*chats)
        reminded = await asyncio.gather(*reminders)
        await process.kill(signal.SIGTERM)
    answers = repeated = 0
    for person, wanted in zip(persons, expected, strict=True):
        said = [message["text"] for message in person.messages if message["from"]["is_bot"]]
        assert [text for text, _ in groupby(said)] == wanted
        answers += len(wanted)
        repeated += len(said) - len(wanted)
    print(f"{kills} kills, {answers} answers, {repeated} repeated")
    assert answers >= 4 * people
    # A kill repeats at most the answers to the one update of each chat that was not finished.
    assert repeated <= kills * people
    sent = 0
    for person, wanted in zip(waiting, reminded, strict=True):
        said = [message["text"] for message in person.messages if message["from"]["is_bot"]]
        # After a kill the repeated answer to the update may come after the reminder.
        assert list(dict.fromkeys(said)) == wanted
        sent += len(wanted) // 2
        repeated = len(said) - len(wanted)
        assert repeated <= 2 * kills
    print(f"{sent} reminders, {sum(map(repeats, waiting))} repeated")
    assert sent >= len(waiting)


def repeats(person: Person) -> int:
    said = [message["text"] for message in person.messages if message["text"].startswith("Reminder")]
    return len(said) - len(set(said))


async def keep_waiting(person: Person, stop: asyncio.Event, *, timeout: float = 60) -> list[str]:
    """Let states time out, and return the expected answers. The second one is a timer's."""
    expected: list[str] = []
    number = 0
    while not stop.is_set() or number == 0:
        await person.send(f"/remind {number}")
        for answer in (f"Waiting {number}", f"Reminder {number}"):
            expected.append(answer)
            while await person.answer(timeout=timeout) != answer:
                pass
        number += 1
    return expected


async def keep_chatting(person: Person, stop: asyncio.Event, choose: random.Random) -> list[str]:
    expected: list[str] = []
    number = 0
    while not stop.is_set() or number == 0:
        expected += await chat(person, f"N{number}-", 1)
        number += 1
        await asyncio.sleep(choose.uniform(0, 0.05))
    return expected
