"""``stepwell outbox`` and ``stepwell inbox``: unsent and refused calls, and unfinished updates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepwell import copy_records, open_storage
from stepwell.botapi import Bot, BotAPI, Person
from stepwell.fsm import FSM, Context, FSMEvent, Router, UpdateSetAside, text
from stepwell.fsm.conversation.extension import Extension, with_kept
from stepwell.fsm.refusals import KEEP, refused_calls, refused_log
from stepwell.log import Log
from stepwell.record import INBOX, NO_HEAD, REFUSED, Change
from stepwell.slot import Slot
from stepwell.storage import Apply, Get, Storage
from stepwell.telegram import run_polling
from stepwell.telegram.engine import updates_aside
from stepwell.telegram.receiving.aside import ASIDE, set_aside
from tests.cli.conftest import Command
from tests.until import until


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'bot.db'}"
    monkeypatch.setenv("STEPWELL_STORAGE", url)
    return url


@pytest.fixture
async def storage(url: str) -> AsyncIterator[Storage]:
    async with open_storage(url) as storage:
        yield storage


@asynccontextmanager
async def running(api: BotAPI, token: str, storage: Storage, answers: list[str]) -> AsyncIterator[FSM]:
    fsm = FSM("my_bot", storage=storage, flows=[])
    router = Router(fsm)

    @router.on(text())
    async def answer(ctx: Context) -> None:
        for each in answers:
            ctx.answer(each)

    task = asyncio.create_task(run_polling(router, token, api=api.url))
    try:
        yield fsm
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def refuse(api: BotAPI, storage: Storage, *texts: str) -> tuple[Bot, Person]:
    """Let a bot answer with texts, the first of which is refused."""
    bot = api.bot("my_bot")
    person = api.chat(bot, 42)
    bot.refuse(400, "Bad Request: topic closed", method="sendMessage")
    async with running(api, bot.token, storage, [*texts, "Last"]):
        await person.send("hi")
        assert [await person.answer() for _ in texts][-1] == "Last"
    return bot, person


async def test_refused_calls_are_listed_sent_again_and_forgotten(
    command: Command, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BotAPI() as api:
        bot, person = await refuse(api, storage, "First")
        monkeypatch.setenv("BOT_API", api.url)
        monkeypatch.setenv("BOT_TOKEN", bot.token)
        listed = await command("outbox", "my_bot", "--refused")
        assert "sendMessage" in listed.out
        assert "400" in listed.out
        assert "topic closed" in listed.out
        ((refused),) = (await command("outbox", "my_bot", "--refused", "--json")).json["refused"]
        assert (refused["chat"], refused["method"], refused["code"]) == (42, "sendMessage", 400)
        assert refused["handler"].endswith("answer")
        assert refused["call"]["text"] == "First"
        assert (await command("outbox", "my_bot", "--refused", "--chat", "43", "--json")).json == {"refused": []}
        tried = await command("outbox", "my_bot", "--refused", "--resend", "--dry-run")
        assert "nothing was changed (dry run)" in tried.out
        sent = await command("outbox", "my_bot", "--refused", "--resend", "--yes")
        assert (sent.code, sent.out.splitlines()[-1]) == (0, "sent 1 call")
        assert sent.logged != []
        assert await person.answer() == "First"
        assert (await command("outbox", "my_bot", "--refused", "--json")).json == {"refused": []}


async def test_a_call_that_is_refused_again_is_kept_and_reported(
    command: Command, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BotAPI() as api:
        bot, _ = await refuse(api, storage, "First")
        monkeypatch.setenv("BOT_API", api.url)
        monkeypatch.setenv("BOT_TOKEN", bot.token)
        bot.refuse(403, "Forbidden: bot was kicked", method="sendMessage")
        again = await command("outbox", "my_bot", "--refused", "--resend", "--yes")
        assert again.code == 1
        assert "bot was kicked" in again.out
        assert len((await command("outbox", "my_bot", "--refused", "--json")).json["refused"]) == 1
        dropped = await command("outbox", "my_bot", "--refused", "--drop", "--yes")
        assert (dropped.code, dropped.out.splitlines()[-1]) == (0, "dropped 1 call")
        assert (await command("outbox", "my_bot", "--refused")).err == "nothing found\n"


async def test_secrets_of_a_refused_call_are_masked(command: Command, storage: Storage) -> None:
    await keep(storage, {"method": "sendInvoice", "chat_id": 42, "provider_token": "s3cret"})
    listed = await command("outbox", "my_bot", "--refused", "--json")
    assert "s3cret" not in listed.out
    assert listed.json["refused"][0]["call"]["method"] == "sendInvoice"


async def keep(storage: Storage, call: dict[str, Any], *, chat: int = 42) -> None:
    from stepwell.fsm.refusals import keep_refused

    about = {"update_id": 1, "handler": None, "code": 400, "description": "Bad Request"}
    await keep_refused(storage, "my_bot", call, method=call["method"], chat=chat, **about)


async def test_a_chat_keeps_its_last_refused_calls_and_no_large_ones(storage: Storage) -> None:
    for number in range(KEEP + 3):
        await keep(storage, {"method": "sendMessage", "chat_id": 42, "text": str(number)})
    await keep(storage, {"method": "sendMessage", "chat_id": 42, "text": "x" * 100_000})
    await keep(storage, {"method": "sendDocument", "chat_id": 42, "document": object()})
    found = [each async for each in refused_calls(storage, "my_bot")]
    assert len(found) == KEEP
    assert [each.call for each in found[-2:]] == [None, None]
    (log,) = [entry async for entry in storage.scan(REFUSED)]
    assert log.expires_at is not None


async def test_forget_deletes_the_refused_calls_of_a_user(storage: Storage) -> None:
    await keep(storage, {"method": "sendMessage", "chat_id": 42})
    await keep(storage, {"method": "sendMessage", "chat_id": 43}, chat=43)
    fsm = FSM("my_bot", storage=storage, flows=[])
    await fsm.forget(user=42)
    assert [each.chat async for each in refused_calls(storage, "my_bot")] == [43]
    await fsm.forget(chat=43)
    assert [each async for each in refused_calls(storage, "my_bot")] == []
    assert await refused_log(storage, "my_bot", 43).read() == []


async def test_unsent_calls_are_listed_sent_now_and_dropped(command: Command, storage: Storage) -> None:
    calls = json.dumps([{"method": "sendMessage", "chat_id": 42, "text": "Still there?"}])
    async with Slot(storage, "my_bot", (42, 42)) as slot:
        at = slot.time() + 3600
        slot.head = with_kept(NO_HEAD, Extension(outbox=((at, 3, calls),), own_expiry=True))
        await slot.commit()
    listed = await command("outbox", "my_bot")
    assert "sendMessage to 42" in listed.out
    assert "in 59m" in listed.out
    assert "Still there?" not in listed.out
    (unsent,) = (await command("outbox", "my_bot", "--json")).json["unsent"]
    assert (unsent["attempts"], unsent["calls"]) == (3, [{"method": "sendMessage", "chat": 42}])

    moved = await command("outbox", "my_bot", "--resend", "--yes")
    assert moved.out.splitlines()[-1] == "to be sent now: the calls of 1 conversation"
    sent: list[str] = []
    fsm = FSM("my_bot", storage=storage, flows=[], send=lambda call: sent.append(call["text"]))
    await fsm.tick()
    assert sent == ["Still there?"]
    assert (await command("outbox", "my_bot", "--json")).json == {"unsent": []}

    async with Slot(storage, "my_bot", (42, 42)) as slot:
        slot.head = with_kept(NO_HEAD, Extension(outbox=((at, 3, calls),), own_expiry=True))
        await slot.commit()
    dropped = await command("outbox", "my_bot", "--drop", "--yes")
    assert dropped.out.splitlines()[-1] == "dropped: the calls of 1 conversation"
    assert (await command("outbox", "my_bot")).err == "nothing found\n"
    assert [entry async for entry in storage.scan("my_bot")] == []


async def test_updates_that_were_set_aside_are_listed_and_handled_after_the_next_start(
    command: Command, storage: Storage
) -> None:
    events: list[FSMEvent] = []
    fsm = FSM("my_bot", storage=storage, flows=[])
    fsm.subscribe(events.append)
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        person = api.chat(bot, 42)
        message = await person.send("hi")
        update = {"update_id": 7, "message": message}
        await set_aside(fsm, update, why="its process has ended each time", attempts=5)
        await set_aside(fsm, "no JSON", why="it cannot be read")
        seen = [(each.update_id, each.chat, each.attempts) for each in events if isinstance(each, UpdateSetAside)]
        assert seen == [(7, 42, 5), (None, None, 0)]
        assert fsm.aside == 2

        listed = await command("inbox", "my_bot")
        assert "its process has ended each time" in listed.out
        assert "it cannot be read" in listed.out
        tried = await command("inbox", "my_bot", "--retry", "--dry-run")
        assert "nothing was changed (dry run)" in tried.out
        put = await command("inbox", "my_bot", "--retry", "--yes")
        assert put.out.splitlines()[-1] == "put 1 update back; the bot handles them after its next start"
        left = (await command("inbox", "my_bot", "--json")).json
        assert [each["update_id"] for each in left["waiting"]] == [7]
        assert [each["why"] for each in left["aside"]] == ["it cannot be read"]

        async with running(api, bot.token, storage, ["Hello"]):
            assert await person.answer() == "Hello"
            address = storage.address(INBOX, "my_bot")
            await until(lambda: storage.perform(Get(address, parts=True)), lambda it: not it.parts)
    assert (await command("inbox", "my_bot", "--json")).json["waiting"] == []


async def test_an_update_whose_handler_raises_is_kept_with_its_traceback_and_handled_after_the_next_start(
    command: Command, storage: Storage
) -> None:
    async with BotAPI() as api:
        bot = api.bot("my_bot")
        people = [api.chat(bot, user) for user in (42, 43)]
        router = Router(FSM("my_bot", storage=storage, flows=[]))

        @router.on(text())
        async def answer(ctx: Context) -> None:
            raise RuntimeError("password=hunter2")

        polling = asyncio.create_task(run_polling(router, bot.token, api=api.url))
        for person in people:
            await person.send("hi")
        failed = await until(lambda: updates_aside(storage, "my_bot"), lambda found: len(found) == 2)
        polling.cancel()
        await asyncio.wait((polling,))
        assert {each.chat for each in failed} == {42, 43}
        listed = await command("inbox", "my_bot", "--json")
        assert [each["why"] for each in listed.json["aside"]] == ["its handler raised RuntimeError"] * 2
        assert "in answer" in listed.json["aside"][0]["traceback"]
        assert "hunter2" not in listed.out
        await router.fsm.forget(user=43)
        assert [each.chat for each in await updates_aside(storage, "my_bot")] == [42]
        put = await command("inbox", "my_bot", "--retry", "--yes")
        assert put.out.splitlines()[-1] == "put 1 update back; the bot handles them after its next start"
        assert await updates_aside(storage, "my_bot") == []
        async with running(api, bot.token, storage, ["Hello"]):
            assert await people[0].answer() == "Hello"


async def test_a_damaged_update_in_the_inbox_is_listed(command: Command, storage: Storage) -> None:
    address = storage.address(INBOX, "my_bot")
    await storage.perform(Apply(address, Change(storage.ids(), parts={"7": "damaged"})))
    listed = (await command("inbox", "my_bot", "--json")).json
    assert [each["why"] for each in listed["waiting"]] == ["it is damaged"]


async def test_an_entry_of_a_log_is_removed_by_its_number(storage: Storage) -> None:
    log = Log(storage, "my_bot", ASIDE)
    await log.append("a", "b", "c")
    assert await log.remove(2)
    assert not await log.remove(2)
    assert not await log.remove(9)
    assert [entry.value for entry in await log.read()] == ["a", "c"]
    await log.remove(3)
    assert list(await log.append("d")) == [4]
    await log.trim(keep=1)
    assert [entry.value for entry in await log.read()] == ["d"]


async def test_the_refused_calls_of_a_bot_are_copied_with_it(storage: Storage, tmp_path: Path) -> None:
    await storage.set_data("my_bot", 42, {"name": "Alice"})
    await keep(storage, {"method": "sendMessage", "chat_id": 42})
    await refused_log(storage, "other_bot", 42).append("kept there")
    async with open_storage(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        await copy_records(storage, copy, namespaces=["my_bot"])
        assert [each.chat async for each in refused_calls(copy, "my_bot")] == [42]
        assert [entry.key[0] async for entry in copy.scan(REFUSED)] == ["my_bot"]
