"""What a page shows of turns that are killed, stopped, steered, rolled back and shared with Telegram."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.engine import Get, Stored
from stepwell.testing import FaultyStorage
from stepwell.turns import Turn, Turns
from stepwell.turns.running import transcript
from stepwell.web import Visitor, chat_conversation
from stepwell.web.chat_conversation import WebConversation
from tests.backends import Backend
from tests.turns.people import People
from tests.until import PATIENCE, forever, until


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


STORY = "".join(f"word{number} " for number in range(40))


class Page:
    """A page of one person that keeps what it shows as the AI SDK does."""

    def __init__(self, turns: Turns, chat: str = "main", *, tools: bool = True) -> None:
        self.conversation = WebConversation(turns, Visitor("ann", "Ann"), chat, tools=tools)

    async def say(self, number: str, text: str) -> Any:
        return await self.conversation.send(number, text)

    async def ask(self, number: str, text: str) -> tuple[str, str]:
        """Send a message, and return the text of its answer, and how its stream has ended."""
        await self.say(number, text)
        return await read(self.conversation.answer_to(number))

    async def shown(self) -> list[tuple[str, str]]:
        """Return who has said what."""
        messages = await self.conversation.messages()
        return [(each["role"], "|".join(part.get("text", part["type"]) for part in each["parts"])) for each in messages]


async def read(chunks: AsyncGenerator[Any, None], on_text: Callable[[], None] = lambda: None) -> tuple[str, str]:
    text, last = "", ""
    async with asyncio.timeout(PATIENCE), aclosing(chunks):
        async for chunk in chunks:
            text += (chunk or {}).get("delta", "")
            if text:
                on_text()
            last = (chunk or {}).get("type", last)
    return text, last


@asynccontextmanager
async def running(storage: Any, handler: Callable[[Turn], Any], **options: Any) -> AsyncIterator[Turns]:
    """Turns with a handler, and a worker in this process."""
    turns = Turns("bot", storage=storage, lease=0.4, **options)
    turns.handler(handler)
    async with turns.worker(send=People().send, drain=0):
        yield turns


async def lose_claim(turns: Turns) -> None:
    """End the attempt as that of a process that is gone: it writes nothing more."""
    runner: Any = turns.runner
    (attempt,) = runner.running.values()
    attempt.abandon()
    await forever()


@pytest.mark.every_backend
async def test_an_attempt_after_a_crash_continues_the_text_that_a_page_has(backend: Backend) -> None:
    page: Page

    async def answer(turn: Turn) -> AsyncIterator[str]:
        for number, word in enumerate(STORY.split()):
            yield f"{word} "
            if number == 20 and turn.attempt == 1:
                await until(page.shown, lambda shown: "word20" in str(shown))
                await lose_claim(turns)

    async with running(backend.storage(), answer) as turns:
        page = Page(turns)
        assert await page.ask("m1", "hello") == (STORY, "finish")
        assert await page.shown() == [("user", "hello"), ("assistant", STORY)]


@pytest.mark.every_backend
async def test_an_attempt_that_says_something_else_lets_the_page_load_the_answer_again(backend: Backend) -> None:
    seen = asyncio.Event()

    async def answer(turn: Turn) -> AsyncIterator[str]:
        yield f"I try {turn.attempt}. "
        if turn.attempt == 1:
            await seen.wait()
            await lose_claim(turns)
        yield "Done."

    async with running(backend.storage(), answer) as turns:
        page = Page(turns)
        await page.say("m1", "hello")
        assert await read(page.conversation.answer_to("m1"), seen.set) == ("I try 1. ", "error")
        chunks = await page.conversation.resumed()
        assert chunks is not None
        assert await read(chunks) == ("I try 2. Done.", "finish")
        assert await page.shown() == [("user", "hello"), ("assistant", "I try 2. Done.")]


@pytest.mark.every_backend
async def test_a_conversation_is_shared_with_telegram(backend: Backend) -> None:
    people = People()
    turns = Turns("bot", storage=backend.storage(), collect=0.0, identity=lambda update: "ann")

    @turns.handler
    async def answer(turn: Turn) -> None:
        turn.answer(f"{len(await turn.history.read())} before {turn.text}")

    async with turns.worker(send=people.send, drain=0):
        page = Page(turns)
        assert await page.ask("m1", "one") == ("0 before one", "finish")
        await turns.admit(people.message("two"))
        assert await people.answered() == ["2 before two"]
        assert await page.ask("m3", "three") == ("4 before three", "finish")
        assert people.texts == ["2 before two"]
        assert await page.shown() == [
            ("user", "one"), ("assistant", "0 before one"), ("user", "two"), ("assistant", "2 before two"),
            ("user", "three"), ("assistant", "4 before three"),
        ]  # fmt: skip


@pytest.mark.parametrize("shared", [False, True])
async def test_the_reply_of_an_operator_is_shown_and_sent_to_telegram_if_the_person_is_there(
    storage: MemoryStorage, shared: bool
) -> None:
    people = People()
    turns = Turns("bot", storage=storage, collect=0.0, identity=(lambda update: "ann") if shared else None)

    @turns.handler
    async def answer(turn: Turn) -> None:
        if turn.text == "wait":
            await forever()
        turn.answer("Hello.")

    async with turns.worker(send=people.send, drain=0):
        page = Page(turns)
        await page.ask("m1", "one")
        await turns.reply(page.conversation.key, "I am Bob.")
        assert await page.shown() == [("user", "one"), ("assistant", "Hello."), ("assistant", "I am Bob.")]
        if shared:
            await turns.admit(people.message("wait"))
            await until(page.shown, lambda shown: "wait" in str(shown))
            await turns.reply(page.conversation.key, "And now?")
            assert await people.answered() == ["And now?"]
            assert ("assistant", "And now?") in await page.shown()


async def test_a_conversation_without_pages_keeps_nothing_for_them(storage: MemoryStorage) -> None:
    people = People()

    async def answer(turn: Turn) -> AsyncIterator[str]:
        yield "Hello."

    turns = Turns("bot", storage=storage, collect=0.0)
    turns.handler(answer)
    async with turns.worker(send=people.send, drain=0):
        await turns.admit(people.message("one"))
        await people.answered()
        stored: Stored | None = await storage.perform(Get(turns.address((42, 0)), True))
        assert stored is not None and stored.parts is not None
        assert not [name for name in stored.parts if name.startswith(("T:", "d:"))]


async def test_a_message_that_steers_gets_an_answer_of_its_own(storage: MemoryStorage) -> None:
    steered = asyncio.Event()

    async def answer(turn: Turn) -> AsyncIterator[str]:
        yield "one"
        await steered.wait()
        yield f", then {(await turn.steered())[0].text}"

    async with running(storage, answer, on_busy="steer") as turns:
        page = Page(turns)
        await page.say("m1", "count")
        first = asyncio.create_task(read(page.conversation.answer_to("m1")))
        await until(page.shown, lambda shown: "one" in str(shown))
        await page.say("m2", "two")
        second = asyncio.create_task(read(page.conversation.answer_to("m2")))
        steered.set()
        assert await first == ("one", "finish")
        assert await second == (", then two", "finish")
        assert await page.shown() == [
            ("user", "count"), ("assistant", "one"), ("user", "two"), ("assistant", ", then two"),
        ]  # fmt: skip


@pytest.mark.parametrize(("policy", "first"), [("interrupt", "abcd [stopped]"), ("rollback", None)])
async def test_an_interrupted_turn_is_shown_and_a_rolled_back_one_is_not(
    storage: MemoryStorage, policy: Any, first: str | None
) -> None:

    async def answer(turn: Turn) -> AsyncIterator[str]:
        yield "abcd"
        if turn.text == "wait":
            await forever()

    async with running(storage, answer, on_busy=policy) as turns:
        page = Page(turns)
        await page.say("m1", "wait")
        stream = asyncio.create_task(read(page.conversation.answer_to("m1")))
        await until(page.shown, lambda shown: "abcd" in str(shown))
        await asyncio.sleep(0)
        assert await page.ask("m2", "go") == ("abcd", "finish")
        shown = await page.shown()
        before = [] if first is None else [("user", "wait"), ("assistant", first)]
        assert shown == [*before, ("user", "go"), ("assistant", "abcd")]
        assert (await stream)[1] == ("abort" if first is None else "finish")


async def test_a_busy_chat_says_so(storage: MemoryStorage) -> None:

    async def answer(turn: Turn) -> None:
        await forever()

    async with running(storage, answer, on_busy="reject") as turns:
        page = Page(turns)
        await page.say("m1", "hello")
        await until(lambda: turns.status(page.conversation.key), lambda status: status.state == "running")
        refused = await page.say("m2", "hello?")
        assert (refused.outcome, refused.calls[0]["text"]) == ("busy", (
            "I am still busy with your last message, so this one was not taken."
        ))  # fmt: skip


async def test_a_slow_page_gets_the_text_in_larger_pieces(storage: MemoryStorage) -> None:

    async def answer(turn: Turn) -> AsyncIterator[str]:
        for word in STORY.split():
            yield f"{word} "
            await asyncio.sleep(0.02)

    async with running(storage, answer) as turns:
        page = Page(turns)
        await page.say("m1", "hello")
        seen: list[str] = []
        async with aclosing(page.conversation.answer_to("m1")) as chunks:
            async for chunk in chunks:
                seen += [chunk["delta"]] if chunk is not None and "delta" in chunk else []
                if len(seen) == 1:
                    await until(lambda: turns.status(page.conversation.key), lambda status: status.state == "idle")
        assert "".join(seen) == STORY
        assert len(seen) == 2


async def test_a_stream_outlives_an_outage_of_the_storage(caplog: pytest.LogCaptureFixture) -> None:
    storage, seen = FaultyStorage(patience=0), asyncio.Event()

    def go_away() -> None:
        if not seen.is_set():
            sent = len(storage.batches)
            storage.before = range(sent + 1, sent + 5)
        seen.set()

    async def answer(turn: Turn) -> AsyncIterator[str]:
        yield "one "
        await seen.wait()
        yield "two"

    async with running(storage, answer) as turns:
        page = Page(turns)
        await page.say("m1", "hello")
        assert await read(page.conversation.answer_to("m1"), go_away) == ("one two", "finish")


async def test_a_connection_without_news_is_kept_open(storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_conversation, "HEARTBEAT", 0.0)
    monkeypatch.setattr(chat_conversation, "LOOK", 0.01)

    async with aclosing(Page(Turns("bot", storage=storage)).conversation.events()) as events:
        first = await anext(events)
        assert first == (0, [{"type": "state", "state": "idle", "stopping": False, "waiting": 0}])
        assert await anext(events) is None


async def test_a_turn_that_died_too_often_is_shown_with_its_text_and_a_note(storage: MemoryStorage) -> None:
    page: Page

    async def answer(turn: Turn) -> AsyncIterator[str]:
        yield "I begin. "
        await until(page.shown, lambda shown: "I begin" in str(shown))
        await lose_claim(turns)

    async with running(storage, answer, attempts=1) as turns:
        page = Page(turns)
        text, last = await page.ask("m1", "hello")
        assert text.startswith("I begin. Sorry, something went wrong")
        assert last == "finish"
        (failed,) = (await turns.status(page.conversation.key)).failed
        assert failed.texts == ("hello",)


async def test_tools_can_be_hidden(storage: MemoryStorage) -> None:

    async def answer(turn: Turn) -> None:
        turn.answer(await turn.tool(str.upper, "tea", replay="safe"))

    async with running(storage, answer) as turns:
        await Page(turns).ask("m1", "hello")
        assert await Page(turns).shown() == [("user", "hello"), ("assistant", "tool-upper|TEA")]
        assert await Page(turns, tools=False).shown() == [("user", "hello"), ("assistant", "TEA")]


async def test_tools_of_frameworks_are_shown_with_their_arguments_and_the_value_of_their_results(
    storage: MemoryStorage,
) -> None:

    async def work(arguments: Any) -> dict[str, str]:
        return {"wrapped": "TEA"}

    async def answer(turn: Turn) -> None:
        for call, shown in (("1", lambda result: result["wrapped"]), ("2", lambda result: result["missing"])):
            await turn.call_tool(work, ['{"what": "tea"}'], name="look", call_id=call, shown=shown)

    async with running(storage, answer) as turns:
        page = Page(turns)
        await page.ask("m1", "hello")
        first, second = (await page.conversation.messages())[1]["parts"]
        assert (first["type"], first["input"], first["output"]) == ("tool-look", {"what": "tea"}, "TEA")
        assert second["output"] == "dict"


async def test_a_tool_whose_outcome_is_unknown_is_shown_as_such(storage: MemoryStorage) -> None:
    page: Page

    async def pay() -> None:
        await until(page.shown, lambda shown: "tool-pay" in str(shown))
        await lose_claim(turns)

    async def answer(turn: Turn) -> None:
        await turn.tool(pay)

    async with running(storage, answer) as turns:
        page = Page(turns)
        await page.ask("m1", "hello")
        tool = (await page.conversation.messages())[1]["parts"][0]
        assert (tool["type"], tool["state"]) == ("tool-pay", "output-error")
        assert tool["errorText"].startswith("The outcome is unknown")


async def test_the_last_turns_are_kept_and_a_very_long_one_is_cut(
    storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "MOST_TURNS", 2)

    async def answer(turn: Turn) -> AsyncIterator[str]:
        yield "x" * 300_000 if turn.text == "long" else turn.text

    async with running(storage, answer) as turns:
        page = Page(turns)
        for text in ("one", "two", "three"):
            await page.ask(text, text)
        assert await page.shown() == [("user", "two"), ("assistant", "two"), ("user", "three"), ("assistant", "three")]
        text, last = await page.ask("long", "long")
        kept = (await page.shown())[-1][1]
        assert kept == "x" * 16380 + "…"
        assert len(text) <= 300_000
        assert last in ("finish", "error")


async def test_a_deleted_conversation_is_empty(storage: MemoryStorage) -> None:

    async def answer(turn: Turn) -> AsyncIterator[str]:
        yield "Hello."

    async with running(storage, answer) as turns:
        page = Page(turns)
        await page.ask("m1", "hello")
        async with aclosing(page.conversation.events()) as events:
            await anext(events)
            await storage.forget(page.conversation.address)
            await page.ask("m2", "again")
            assert [each[0] for each in await page.shown()] == ["user", "assistant"]


async def test_other_ids_of_a_person_are_another_conversation(storage: MemoryStorage) -> None:
    turns = Turns("bot", storage=storage)
    keys = [
        WebConversation(turns, Visitor(person), chat, tools=True).key
        for person, chat in ((42, "a"), ("42", "a"), ("a:42", "b"), (42, "b:a"), ('"42"', "a"), ("a", "42"))
    ]
    assert len({str(key) for key in keys}) == len(keys)
