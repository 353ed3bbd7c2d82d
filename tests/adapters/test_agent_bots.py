"""The agents of the examples, one for each framework: the same bot, in processes that are stopped and killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio import create_subprocess_exec as spawn
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

import pytest

from stepwell import Storage, open_storage
from stepwell.botapi import Bot, BotAPI, FloodLimits, Person
from stepwell.engine import TURNS
from stepwell.storage import Get
from stepwell.turns import Turns
from stepwell.turns.record import table_of
from tests.until import until

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = {"router": "cookbook/agent.py", "aiogram": "agent_aiogram.py", "ptb": "agent_ptb.py"}
#: More words than a bot writes in six seconds.
MANY = " ".join(f"word{number}" for number in range(120))

each_framework = pytest.mark.parametrize("framework", FRAMEWORKS)


@pytest.fixture
async def api() -> AsyncIterator[BotAPI]:
    async with BotAPI(limits=FloodLimits()) as api:
        yield api


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with open_storage(f"sqlite:///{tmp_path / 'agent.db'}") as storage:
        yield storage


@asynccontextmanager
async def running(framework: str, bot: Bot, api: BotAPI, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the example in a process until the end of the block, and require that it ends well."""
    file = str(EXAMPLES / FRAMEWORKS[framework])
    command = ["-m", "stepwell", "run", file, "--api", api.url] if framework == "router" else [file]
    environ = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    url = f"sqlite:///{folder / 'agent.db'}"
    env = {**environ, "BOT_TOKEN": bot.token, "BOT_API": api.url, "STEPWELL_STORAGE": url}
    with (folder / "log.txt").open("ab") as log:
        process = await spawn(sys.executable, *command, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        yield process
    except TimeoutError as error:
        raise AssertionError(f"{error}; the bot said:\n{(folder / 'log.txt').read_text()[-3000:]}") from None
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


def said(chat: Person) -> list[str]:
    return [message["text"] for message in chat.messages if message["from"]["is_bot"]]


@each_framework
async def test_the_agent_of_each_framework_collects_asks_streams_and_is_stopped_at_once(
    framework: str, api: BotAPI, storage: Storage, tmp_path: Path
) -> None:
    bot, turns = api.bot("agent"), Turns("agent", storage=storage)
    ann, ben, eve = (api.chat(bot, user) for user in (42, 43, 44))
    group = ann.group(-7)
    took: dict[str, float] = {}

    async def pay() -> None:
        await ann.send_at_once("one", "two")
        assert await ann.answer(timeout=60) == "Message 1 says: one\ntwo"
        await ann.send("pay 5")
        await until(lambda: said(ann)[-1] == "Really pay 5 EUR?")
        query = await ann.press("Yes")
        await until(lambda: said(ann)[-1] == "Message 4 says: Receipt for 5 EUR")
        assert said(ann)[-2].startswith("Really pay 5 EUR?\n\nYes (")
        answered = [call for call in bot.calls if call["method"] == "answerCallbackQuery"]
        assert [call["callback_query_id"] for call in answered] == [query]

    async def is_stopped(chat: Person, how: str, stop: Callable[[], Awaitable[object]]) -> None:
        await chat.send(MANY)
        await until(lambda: "word3" in str(chat.room.drafts))
        began = perf_counter()
        await stop()
        text: str = (await until(lambda: said(chat), lambda texts: texts and texts[-1].endswith("[stopped]")))[-1]
        took[how] = perf_counter() - began
        assert text.startswith("Message ") and "word3" in text and "word119" not in text

    async def tell_group() -> None:
        await group.send("tell " + "word " * 20)
        await until(lambda: said(group) == ["Message 1 says: tell" + " word" * 20])

    async with running(framework, bot, api, tmp_path):
        await asyncio.gather(
            pay(),
            tell_group(),
            is_stopped(ben, "by the button", ben.stop),
            is_stopped(eve, "by another process", lambda: turns.stop((44, 0))),
        )
        await is_stopped(ann, "by /stop", lambda: ann.send("/stop"))
    figures = ", ".join(f"{how} {1000 * seconds:.0f} ms" for how, seconds in took.items())
    print(f"{framework}: a stop takes effect {figures}")
    log = (tmp_path / "log.txt").read_text()
    assert "Traceback" not in log and bot.token not in log, log


@each_framework
async def test_the_agent_of_each_framework_survives_a_kill_in_a_stream_and_in_an_album(
    framework: str, api: BotAPI, storage: Storage, tmp_path: Path
) -> None:
    bot, turns = api.bot("agent"), Turns("agent", storage=storage)
    ann = api.chat(bot, 42)
    group = ann.group(-7)

    async def shown() -> bool:
        address = storage.address(TURNS, ("agent", (-7, 0)))
        turn = table_of(storage.seal(address), await storage.perform(Get(address))).turn
        return turn is not None and turn.shown is not None

    async def album(*captions: str) -> None:
        for caption in captions:
            await ann.send_photo(caption.encode(), caption=caption, media_group_id="1")

    async def waiting() -> int:
        return len((await turns.status((42, 0))).waiting)

    async with running(framework, bot, api, tmp_path) as process:
        await group.send("tell " + "word " * 20)
        await until(shown)
        await album("a", "b")
        await until(waiting, lambda count: count == 2)
        process.kill()
        await process.wait()
    assert len(said(group)) == 1
    await album("c", "d")
    whole = "Message 1 says: tell" + " word" * 20
    async with running(framework, bot, api, tmp_path):
        assert await ann.answer(timeout=60) == "Message 1 says: a\nb\nc\nd"
        await until(lambda: said(group) == [whole])


def test_the_agents_differ_by_the_lines_of_their_frameworks_only() -> None:
    def split(name: str) -> tuple[str, list[str]]:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        model, made = text.index("async def model("), text.index("def make_")
        begin, end = text.index("    turns = Turns("), text.index("        turn.history.append(*new)\n")
        return text[model:made] + text[begin:end], (text[:model] + text[made:begin] + text[end:]).splitlines()

    agents, others = zip(*map(split, FRAMEWORKS.values()), strict=True)
    assert len(set(agents)) == 1
    assert max(len([line for line in lines if line]) for lines in others) < 40
