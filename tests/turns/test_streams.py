"""A turn that streams: its text is shown at the pace of Telegram, completed once, and continued after a crash."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stepwell import MemoryStorage, open_storage
from stepwell.engine import TURNS, Get
from stepwell.telegram import BotClient, Sender
from stepwell.turns import Turn, Turns
from stepwell.turns.record import table_of
from tests.telegram.documented_api import DocumentedAPI
from tests.telegram.virtual_time import VirtualTimeLoop
from tests.turns.people import People
from tests.until import until

USER, GROUP, TOKEN = 42, -1001234567890, "42:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
WORDS = [f"word{number} " for number in range(200)]
TEXT = "".join(WORDS).rstrip()


class Bot:
    """Turns with a client of the documented server, in virtual time."""

    def __init__(self, api: DocumentedAPI, client: BotClient, storage: MemoryStorage) -> None:
        self.api, self.client, self.storage = api, client, storage
        self.people = People()
        self.events: list[str] = []

    def turns(self, handler: Callable[[Turn], Any], **options: Any) -> Turns:
        turns = Turns("bot", storage=self.storage, **{"collect": 0.0, **options})
        turns.handler(handler)
        turns.subscribe(lambda event: self.events.append(type(event).__name__))
        return turns

    @asynccontextmanager
    async def working(self, turns: Turns) -> AsyncIterator[None]:
        async with turns.worker(send=Sender(self.client).send, client=self.client, drain=0):
            yield

    async def say(self, turns: Turns, text: str, chat: int = USER) -> None:
        await turns.admit(self.people.message(text, chat=chat))

    async def idle(self, turns: Turns, chat: int = USER) -> None:
        while (status := await turns.status((chat, 0))).state != "idle" or status.unsent:
            await asyncio.sleep(0.05)

    async def asked(self, turns: Turns, chat: int = USER) -> None:
        while (await turns.status((chat, 0))).state != "asking":
            await asyncio.sleep(0.05)


def play(scene: Callable[[Bot], Awaitable[None]]) -> DocumentedAPI:
    """Run a scene in virtual time, and return the server."""

    async def run() -> DocumentedAPI:
        loop = asyncio.get_running_loop()
        storage = MemoryStorage(clock=lambda: 1_700_000_000 + loop.time())
        async with DocumentedAPI().serving() as api, BotClient(TOKEN, api=api.url) as client, storage:
            await scene(Bot(api, client, storage))
        return api

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())


async def tell(turn: Turn) -> AsyncIterator[str]:
    """Write 200 words in 20 seconds."""
    for word in WORDS:
        yield word
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("wait", [0, 10])
def test_a_turn_in_a_private_chat_shows_drafts_twice_a_second_and_one_message(wait: int) -> None:
    took: list[float] = []

    async def timed(turn: Turn) -> AsyncIterator[str]:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(0.6)
        began = now()
        async for word in tell(turn):
            yield word
        took.append(now() - began)

    async def scene(bot: Bot) -> None:
        turns = bot.turns(timed)
        if wait:
            bot.api.ask_to_wait(USER, wait, after=10)
        async with bot.working(turns):
            await bot.say(turns, "hi")
            await bot.idle(turns)

    api = play(scene)
    assert api.texts(USER) == [TEXT]
    assert {method for _, method, *_ in api.requests} == {"sendMessageDraft", "sendMessage"}
    assert len(api.times("sendMessage")) == 1
    drafts = [params for _, method, params, _ in api.requests if method == "sendMessageDraft"]
    assert drafts[0]["text"] == "" and all(each["can_stop"] and each["keep_on_stop"] for each in drafts)
    assert len({each["draft_id"] for each in drafts}) == 1
    # A 429 pauses the writer, not the agent.
    assert took[0] < 20.5
    pauses = [later - earlier for earlier, later in pairwise(api.times("sendMessageDraft"))]
    if wait:
        assert len(api.times("sendMessageDraft", 429)) == 1 and sum(pause > 9 for pause in pauses) == 1
    else:
        assert api.statuses() == {200} and max(pauses) < 0.7 and 38 <= len(drafts) <= 42


@pytest.mark.parametrize("wait", [0, 10])
def test_a_turn_in_a_group_edits_one_message_within_its_limits(wait: int) -> None:
    async def scene(bot: Bot) -> None:
        turns = bot.turns(tell)
        if wait:
            bot.api.ask_to_wait(GROUP, wait, after=4)
        async with bot.working(turns):
            await bot.say(turns, "hi", GROUP)
            await bot.idle(turns, GROUP)

    api = play(scene)
    assert api.texts(GROUP) == [TEXT]
    assert len(api.times("sendMessage")) == 1
    refused = len(api.times("sendMessage", 429) + api.times("editMessageText", 429))
    assert refused == (1 if wait else 0)
    assert len(api.times("editMessageText")) in ((3, 4, 5) if wait else (6, 7, 8))


@pytest.mark.parametrize("chat", [USER, GROUP])
def test_a_stop_leaves_the_partial_text_with_a_mark(chat: int) -> None:
    ended: list[float] = []

    async def scene(bot: Bot) -> None:
        turns = bot.turns(tell)
        now = asyncio.get_running_loop().time
        async with bot.working(turns):
            await bot.say(turns, "hi", chat)
            await asyncio.sleep(10)
            began = now()
            await turns.admit(bot.people.message("/stop", chat=chat))
            await bot.idle(turns, chat)
            ended.append(now() - began)

    api = play(scene)
    (text,) = api.texts(chat)
    assert text.startswith("word0 word1 ") and text.endswith(" [stopped]") and "word110 " not in text
    assert ended[0] < 0.5


def test_the_stop_button_of_a_draft_stops_its_turn_and_no_later_one() -> None:
    async def scene(bot: Bot) -> None:
        turns = bot.turns(tell)

        def press(draft: dict[str, Any]) -> dict[str, Any]:
            generation = {"chat": {"id": USER, "type": "private"}, "draft_id": draft["draft_id"]}
            return {"update_id": 1000, "stopped_message_generation": generation}

        async with bot.working(turns):
            await bot.say(turns, "one")
            await asyncio.sleep(5)
            first = bot.api.drafts[USER]
            began = asyncio.get_running_loop().time()
            assert await turns.admit(press(first))
            await bot.idle(turns)
            assert asyncio.get_running_loop().time() - began < 0.5
            await bot.say(turns, "two")
            await asyncio.sleep(5)
            await turns.admit(press(first))
            await bot.idle(turns)

    stopped, whole = play(scene).texts(USER)
    assert stopped.endswith(" [stopped]") and whole == TEXT


@pytest.mark.parametrize("chat", [USER, GROUP])
def test_text_before_a_question_is_a_message_of_its_own(chat: int) -> None:
    async def agent(turn: Turn) -> AsyncIterator[str]:
        yield "One moment. "
        await asyncio.sleep(3)
        decision = await turn.ask("Delete 3 files?")
        yield f"You said {decision}."
        await asyncio.sleep(3)

    async def scene(bot: Bot) -> None:
        turns = bot.turns(agent)
        async with bot.working(turns):
            await bot.say(turns, "hi", chat)
            await bot.asked(turns, chat)
            await turns.decide((chat, 0), "Yes", by=USER)
            await bot.idle(turns, chat)
        history = await turns.history((chat, 0)).read()
        assert history[-1]["content"] == "One moment. You said Yes."

    api = play(scene)
    assert api.texts(chat) == ["One moment.", "Delete 3 files?", "You said Yes."]
    assert 429 not in api.statuses()


@pytest.mark.parametrize("chat", [USER, GROUP])
def test_text_before_a_question_is_not_sent_again_by_the_next_worker(chat: int) -> None:
    attempts: list[int] = []

    async def agent(turn: Turn) -> AsyncIterator[str]:
        attempts.append(len(attempts))
        yield "One moment. "
        await asyncio.sleep(3)
        decision = await turn.ask("Delete 3 files?")
        yield f"You said {decision}."
        await asyncio.sleep(3)

    async def scene(bot: Bot) -> None:
        first, second = bot.turns(agent), bot.turns(agent)
        async with bot.working(first):
            await bot.say(first, "hi", chat)
            await bot.asked(first, chat)
        async with bot.working(second):
            await second.decide((chat, 0), "No", by=USER)
            await bot.idle(second, chat)

    api = play(scene)
    assert attempts == [0, 1]
    assert api.texts(chat) == ["One moment.", "Delete 3 files?", "You said No."]


def test_the_next_worker_completes_the_same_message() -> None:
    async def scene(bot: Bot) -> None:
        first, second = bot.turns(tell), bot.turns(tell)
        async with bot.working(first):
            await bot.say(first, "hi", GROUP)
            await asyncio.sleep(8)
            status = await first.status((GROUP, 0))
            assert status.state == "running"
        assert len(bot.api.texts(GROUP)) == 1 and bot.api.texts(GROUP) != [TEXT]
        async with bot.working(second):
            await bot.idle(second, GROUP)

    api = play(scene)
    assert api.texts(GROUP) == [TEXT] and len(api.times("sendMessage")) == 1


def test_a_message_of_the_client_completes_the_text_before_it() -> None:
    async def agent(turn: Turn) -> AsyncIterator[str]:
        yield "Here is the map. "
        await turn.bot.get_chat(chat_id=USER)
        await turn.bot.send_message(chat_id=GROUP, text="for others")
        await turn.bot.send_message(chat_id=USER, text="(map)")
        yield "Do you see it?"

    async def scene(bot: Bot) -> None:
        turns = bot.turns(agent)
        async with bot.working(turns):
            await bot.say(turns, "hi")
            await bot.idle(turns)

    api = play(scene)
    assert api.texts(USER) == ["Here is the map.", "(map)", "Do you see it?"]
    sent = [params["text"] for _, method, params, _ in api.requests if method == "sendMessage"]
    assert sent[0] == "for others"


def test_a_second_stream_completes_the_first_one() -> None:
    async def agent(turn: Turn) -> None:
        async with turn.stream() as out:
            out.write("one")
            await asyncio.sleep(2)
        async with turn.stream() as other:
            other.write("two")
            out.write(" late")
            await asyncio.sleep(2)
        await turn.flush()
        turn.answer("three")

    async def scene(bot: Bot) -> None:
        turns = bot.turns(agent)
        for chat in (USER, GROUP):
            async with bot.working(turns):
                await bot.say(turns, "hi", chat)
                await bot.idle(turns, chat)

    api = play(scene)
    assert api.texts(USER) == api.texts(GROUP) == ["one", "two", "late", "three"]


def test_a_turn_that_is_rolled_back_leaves_no_message() -> None:
    async def agent(turn: Turn) -> AsyncIterator[str]:
        if turn.text == "two":
            yield "second"
            return
        async for word in tell(turn):
            yield word

    async def scene(bot: Bot) -> None:
        turns = bot.turns(agent, on_busy="rollback")
        async with bot.working(turns):
            await bot.say(turns, "one", GROUP)
            await asyncio.sleep(6)
            assert bot.api.texts(GROUP) != []
            await bot.say(turns, "two", GROUP)
            await bot.idle(turns, GROUP)

    assert play(scene).texts(GROUP) == ["second"]


def test_texts_of_turns_have_the_formatting_of_turns_and_long_ones_are_split() -> None:
    async def agent(turn: Turn) -> None:
        async with turn.stream() as out:
            out.write("**Bold** " + "a" * 5000)
        await turn.ask("**Sure?** " + "b" * 5000)
        turn.answer("*done*")
        turn.answer("**plain**", parse_mode=None)

    async def scene(bot: Bot) -> None:
        turns = bot.turns(agent, parse_mode="CommonMark", link_preview_options={"is_disabled": True})
        async with bot.working(turns):
            await bot.say(turns, "hi")
            await bot.asked(turns)
            await turns.decide((USER, 0), "Yes", by=USER)
            await bot.idle(turns)

    api = play(scene)
    sent = [params for _, method, params, _ in api.requests if method == "sendMessage"]
    firsts = ["Bold ", "aaaaa", "aaaaa", "Sure?", "bbbbb", "bbbbb", "done", "**pla"]
    assert [each["text"][:5] for each in sent] == firsts
    assert sent[0]["entities"][0]["type"] == sent[3]["entities"][0]["type"] == "bold"
    assert [place for place, each in enumerate(sent) if "reply_markup" in each] == [5]
    assert all(each["link_preview_options"] == {"is_disabled": True} for each in sent)


async def test_without_a_client_a_stream_is_one_message_at_the_end_of_the_turn() -> None:
    turns, people = Turns("bot", storage=MemoryStorage(), collect=0.0), People()

    @turns.handler
    async def answer(turn: Turn) -> AsyncIterator[str]:
        yield "One moment. "
        await turn.ask("Sure?")
        yield "Done."

    async with turns.worker(send=people.send, drain=0):
        await turns.admit(people.message("hi"))
        assert await people.answered(2) == ["One moment. ", "Sure?"]
        await turns.decide((42, 0), "Yes")
        assert (await people.answered(3))[2] == "Done."


def test_a_worker_hears_of_a_stop_that_another_one_got() -> None:
    async def scene(bot: Bot) -> None:
        runs, hears = bot.turns(tell), bot.turns(tell)
        async with bot.working(runs):
            await bot.say(runs, "hi")
            await asyncio.sleep(5)
            began = asyncio.get_running_loop().time()
            await hears.admit(bot.people.message("/stop", chat=USER))
            await bot.idle(runs)
            assert asyncio.get_running_loop().time() - began < 0.5

    assert play(scene).texts(USER)[0].endswith(" [stopped]")


@pytest.mark.parametrize("chat", [USER, GROUP])
async def test_a_stream_whose_process_is_killed_is_completed_once_and_no_call_is_refused(
    chat: int, tmp_path: Path
) -> None:
    # With 0.1 it takes 20 seconds.
    url, pause, people = f"sqlite:///{tmp_path / 'bot.db'}", os.environ.get("STEPWELL_WORD_PAUSE", "0.02"), People()

    async def started(api: DocumentedAPI) -> asyncio.subprocess.Process:
        script = Path(__file__).with_name("stream_worker.py")
        return await asyncio.create_subprocess_exec(sys.executable, script, url, api.url, TOKEN, pause)

    async with DocumentedAPI().serving() as api, open_storage(url) as storage:
        turns = Turns("bot", storage=storage, collect=0.0)
        await turns.admit(people.message("hi", chat=chat))
        address = storage.address(TURNS, ("bot", (chat, 0)))

        async def is_shown() -> bool:
            turn = table_of(storage.seal(address), await storage.perform(Get(address))).turn
            # A message whose id is not stored yet would stay as it is.
            return "word1" in str(api.drafts) if chat == USER else turn is not None and turn.shown is not None

        process = await started(api)
        await until(is_shown)
        process.kill()
        await process.wait()
        assert api.texts(chat) != [TEXT]
        process = await started(api)
        await until(lambda: api.texts(chat) == [TEXT])
        process.terminate()
        await process.wait()
    assert len(api.times("sendMessage")) == 1 and api.statuses() == {200}
    calls = {method for _, method, *_ in api.requests}
    assert calls == {"sendMessage", "sendMessageDraft" if chat == USER else "editMessageText"}
