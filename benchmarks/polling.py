"""Bots by long polling with 50 chats, answers included: ours on SQLite, aiogram in memory, grammY on Redis.

Each bot has its own process. The local Bot API and the users are in the process of the benchmark. A user sends the next
message when the last one is answered. A bot loads state and data, changes a field, sets the next state and answers.
grammY runs with its runner and its sessions in Redis. It needs node and npm; without them its row is left out.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.servers.redis import RedisServer

from stepwell.botapi import BotAPI, Person
from stepwell.botapi.world import WorldEvent

CHATS, SECONDS, ROUNDS = 50, 2.0, 5
#: Answers before the measurement, in which the compiler of node ends its work.
WARM = 4000
#: The required speedup.
TARGET = 3
GRAMMY = Path(__file__).parent / "grammy"


class Figures(NamedTuple):
    """The figures of one bot in one round."""

    #: Answered updates a second.
    rate: float
    #: CPU time in microseconds for each update: of the bot's process, and of the Bot API with its users.
    bot: float
    api: float


async def main() -> int:
    """Print the table; return the number of missed targets."""
    bots = [name for name in BOTS if name != "grammy" or install_grammy()]
    figures: dict[str, list[Figures]] = {name: [] for name in bots}
    redis = RedisServer()
    try:
        for _ in range(ROUNDS):
            for name in bots:
                figures[name].append(await measured(name, redis.port))
    finally:
        redis.stop()
    print(f"{'50 chats by polling':28}{'updates':>12}{'CPU of the bot':>18}{'CPU of the Bot API':>22}")
    for name, rounds in figures.items():
        rate, bot, api = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{BOTS[name]:28}{rate:>10,.0f}/s{bot:>15,.0f} us{api:>19,.0f} us")
    pairs = list(zip(figures["stepwell"], figures["aiogram"], strict=True))
    faster = statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)
    cheaper = statistics.median(theirs.bot / ours.bot for ours, theirs in pairs)
    missed = shown("updates a second", faster) + shown("updates for the CPU time of the bot", cheaper)
    if "grammy" in figures:
        pairs = list(zip(figures["stepwell"], figures["grammy"], strict=True))
        ratio = statistics.median(ours.bot / theirs.bot for ours, theirs in pairs)
        late = ratio > 1
        print(f"{'CPU time of the bot':40}{ratio:6.2f} times that of grammY, at most 1{'   MISSED' if late else ''}")
        missed += late
    return missed


def install_grammy() -> bool:
    """Install grammY once, and return whether it can run."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        print("grammY is left out: it needs node and npm")
        return False
    if not (GRAMMY / "node_modules").exists():
        subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund"], cwd=GRAMMY, check=True)
    return True


def command(name: str, api: str, token: str, folder: str, redis: int) -> tuple[str, ...]:
    """Return the command line of a bot."""
    if name == "grammy":
        return "node", str(GRAMMY / "bot.mjs"), api, token, str(redis)
    return sys.executable, "-m", "benchmarks.polling", name, api, token, f"{folder}/bot.db"


def shown(what: str, ratio: float) -> int:
    """Print one line; return 1 if the target is missed."""
    missed = ratio < TARGET
    print(f"{what:40}{ratio:6.1f} times those of aiogram, at least {TARGET}{'   MISSED' if missed else ''}")
    return int(missed)


async def measured(name: str, redis: int) -> Figures:
    """Let 50 users chat with a bot."""
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        with tempfile.TemporaryDirectory() as folder:
            line = command(name, api.url, bot.token, folder, redis)
            process = await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.PIPE)
            try:
                users = Users([api.chat(bot, 100 + number) for number in range(CHATS)])
                stop = api.world.watch(users.on_event)
                for person in users.persons.values():
                    await person.send("hi")
                await asyncio.wait_for(users.warm.wait(), 120)
                assert process.stdout is not None

                async def cpu_of_bot() -> float:
                    process.send_signal(signal.SIGUSR2)
                    return float(await process.stdout.readline())

                bot_cpu, own_cpu = await cpu_of_bot(), time.process_time()
                began, before = time.perf_counter(), users.answers
                await asyncio.sleep(SECONDS)
                taken, updates = time.perf_counter() - began, users.answers - before
                own_cpu, bot_cpu = time.process_time() - own_cpu, await cpu_of_bot() - bot_cpu
                stop()
            finally:
                process.kill()
                await process.wait()
    return Figures(updates / taken, bot_cpu / updates * 1e6, own_cpu / updates * 1e6)


class Users:
    """Users who send the next message as soon as the bot has answered."""

    def __init__(self, persons: list[Person]) -> None:
        self.persons = {person.id: person for person in persons}
        self.answers = 0
        self.warm = asyncio.Event()
        self._tasks: set[asyncio.Task[object]] = set()

    def on_event(self, event: WorldEvent) -> None:
        if event.kind != "message" or not event.body["from"]["is_bot"]:
            return
        self.answers += 1
        if self.answers == WARM:
            self.warm.set()
        task = asyncio.create_task(self.persons[event.body["chat"]["id"]].send("hi"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def run_stepwell(api: str, token: str, path: str) -> None:
    from stepwell.fsm import FSM, Context, Flow, Router, fsm_state, state
    from stepwell.telegram import run_polling_sync

    class Pair(Flow, name="pair"):
        a = state(to=["b"])
        b = state(to=["a"])
        default_state = a

    router = Router(FSM("my_bot", storage=f"sqlite:///{path}", flows=[Pair]))

    @router.on(fsm_state(Pair.a))
    async def at_a(ctx: Context) -> None:
        ctx.update_data(n=ctx.data["n"] + 1)
        ctx.transition("b")
        ctx.answer(f"{ctx.data['n']}")

    @router.on(fsm_state(Pair.b))
    async def at_b(ctx: Context) -> None:
        ctx.update_data(n=ctx.data["n"] + 1)
        ctx.transition("a")
        ctx.answer(f"{ctx.data['n']}")

    @router.on()
    async def at_first(ctx: Context) -> None:
        ctx.start_flow(Pair)
        ctx.update_data(n=1)
        ctx.answer("1")

    run_polling_sync(router, token, api=api, limits=None)


def run_aiogram(api: str, token: str, path: str) -> None:
    from aiogram import Bot, Dispatcher
    from aiogram.client.session.aiohttp import AiohttpSession
    from aiogram.client.telegram import TelegramAPIServer
    from aiogram.filters import StateFilter
    from aiogram.fsm.context import FSMContext
    from aiogram.fsm.state import State, StatesGroup
    from aiogram.fsm.storage.memory import MemoryStorage
    from aiogram.types import Message

    class Pair(StatesGroup):
        a = State()
        b = State()

    logging.getLogger("aiogram").setLevel(logging.WARNING)
    dispatcher = Dispatcher(storage=MemoryStorage())

    async def step(message: Message, state: FSMContext, to: State) -> None:
        data = await state.get_data()
        data = await state.update_data(n=data["n"] + 1)
        await state.set_state(to)
        await message.answer(f"{data['n']}")

    @dispatcher.message(StateFilter(Pair.a))
    async def at_a(message: Message, state: FSMContext) -> None:
        await step(message, state, Pair.b)

    @dispatcher.message(StateFilter(Pair.b))
    async def at_b(message: Message, state: FSMContext) -> None:
        await step(message, state, Pair.a)

    @dispatcher.message()
    async def at_first(message: Message, state: FSMContext) -> None:
        await state.set_data({"n": 1})
        await state.set_state(Pair.a)
        await message.answer("1")

    async def run() -> None:
        bot = Bot(token, session=AiohttpSession(api=TelegramAPIServer.from_base(api)))
        await dispatcher.start_polling(bot)

    asyncio.run(run())


BOTS = {
    "stepwell": "run_polling, SQLite",
    "aiogram": "aiogram, MemoryStorage",
    "grammy": "grammY's runner, Redis",
}


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, lambda *_: print(time.process_time(), flush=True))
    {"stepwell": run_stepwell, "aiogram": run_aiogram}[sys.argv[1]](*sys.argv[2:])
