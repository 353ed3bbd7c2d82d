"""Reports of the bot's process: the page shows the newest record, in whatever order reports and answers come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from stepwell.botapi import BotAPI
from stepwell.errors import UsageError
from stepwell.fsm import FSM, Committed, Flow, MachineReady, Update, keys, state
from stepwell.playground import report_server
from stepwell.playground.board import Board
from stepwell.playground.bot_process.reporter import Reporter
from stepwell.playground.observer import BotObserver
from stepwell.playground.records import Records
from stepwell.storage import MemoryStorage
from stepwell.storage.operations import Apply, Get, Operation
from tests.constants import Constants
from tests.until import until

BOT, KEY = "bot", "(42,42)"


class Form(Flow, name="form"):
    one = state()
    two = state()
    default_state = one


def record(number: int, at: str) -> dict[str, Any]:
    return {
        "version": f"{number}.abc", "flow": "form", "state": at, "history": [], "deadline": None, "data": {},
    }  # fmt: skip


def written(stored: dict[str, Any] | None) -> dict[str, Any]:
    """Return the report of a write."""
    return {
        "kind": "record", "bot": BOT, "key": KEY, "user": 42, "chat": 42, "at": 1.0, "duration": 0.0,
        "update_id": None, "error": None, "traceback": None, "before": None, "record": stored, "snapshot": {},
    }  # fmt: skip


def place(stored: dict[str, Any] | None) -> dict[str, Any]:
    """Return the answer to the lookup of a place."""
    return {"records": [{"bot": BOT, "key": KEY, "record": stored, "snapshot": {}}]}


class BotConnection:
    """The connection of a bot's process, whose lines the test writes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def request(self) -> dict[str, Any]:
        """Return the next request of the playground."""
        async with asyncio.timeout(60):
            request: dict[str, Any] = json.loads(await self._reader.readline())
        return request

    def send(self, *lines: dict[str, Any]) -> None:
        """Send lines in one piece, as they arrive when the playground is busy."""
        self.writer.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    def answer(self, request: dict[str, Any], answer: Any, *reports: dict[str, Any]) -> None:
        """Send an answer and the reports after it."""
        self.send({"kind": "answer", "id": request["id"], "answer": answer}, *reports)


@pytest.fixture
async def observer() -> AsyncIterator[BotObserver]:
    """An observer of a bot with two users."""
    api = BotAPI()
    bot = api.bot("my_bot")
    for user in (42, 43):
        api.chat(bot, user)
    observer = BotObserver(api.world, Board(), lambda: True)
    await observer.start()
    yield observer
    await observer.stop()


@pytest.fixture
async def connect(observer: BotObserver) -> AsyncIterator[Callable[[], Any]]:
    opened: list[BotConnection] = []

    async def connect() -> BotConnection:
        host, port, secret = observer.reports.address.split(":")
        opened.append(new := BotConnection(*await asyncio.open_connection(host, int(port))))
        new.send({"secret": secret})
        return new

    yield connect
    for each in opened:
        each.writer.close()


@pytest.fixture
async def process(connect: Callable[[], Any]) -> BotConnection:
    """A process that has reported its machine."""
    new: BotConnection = await connect()
    new.send({"kind": "machine", "bot": BOT, "flows": []})
    return new


@pytest.fixture
async def reporter(observer: BotObserver) -> Reporter:
    """The reporter of a bot in this process."""
    host, port, secret = observer.reports.address.split(":")
    return Reporter(host, int(port), secret)


def machine(reporter: Reporter, **options: Any) -> FSM:
    """Return a machine whose start and writes are reported."""
    fsm = FSM(BOT, flows=[Form], **options)
    fsm.subscribe(lambda event: reporter.observe(event, None) if isinstance(event, MachineReady | Committed) else None)
    return fsm


def shown(observer: BotObserver) -> str | None:
    found = observer.records.get(BOT, KEY)
    assert found is not None
    return None if found.record is None else str(found.record["state"])


@pytest.mark.parametrize("newest", [record(2, "two"), None])
async def test_a_lookup_never_replaces_a_newer_report(
    observer: BotObserver, process: BotConnection, newest: dict[str, Any] | None
) -> None:
    process.answer(await process.request(), place(record(1, "one")), written(newest))
    await process.request()  # the lookup of the next user, after the first was handled
    assert shown(observer) == (newest and newest["state"])


@pytest.mark.parametrize("do", ["edit", "clear", "restore"])
async def test_an_edit_never_replaces_a_newer_report(observer: BotObserver, process: BotConnection, do: str) -> None:
    for _ in range(2):
        process.answer(await process.request(), place(record(1, "one")))
    edits = {
        "edit": lambda: observer.edit(BOT, KEY, version="1.abc", state="one", data="{}"),
        "clear": lambda: observer.clear(BOT, KEY, version="1.abc"),
        "restore": lambda: observer.restore(BOT, KEY, {}),
    }
    editing = asyncio.create_task(edits[do]())
    if do == "restore":
        process.answer(await process.request(), {"record": record(1, "one"), "snapshot": {}})
    process.answer(
        await process.request(), {"record": record(2, "one"), "snapshot": {}}, written(record(3, "two")), written(None)
    )
    await editing
    assert shown(observer) is None
    titles = [event.title for group in observer.timeline.groups for event in group.events]
    assert titles == [*(["form / one"] if do != "restore" else []), "form / two", "The record was deleted"]


async def test_a_restore_replaces_the_version_that_the_record_has_then(
    observer: BotObserver, process: BotConnection
) -> None:
    for _ in range(2):
        process.answer(await process.request(), place(record(1, "one")))
    restoring = asyncio.create_task(observer.restore(BOT, KEY, {}))
    reading = await process.request()
    assert (reading["do"], reading["bot"], reading["key"]) == ("read", BOT, KEY)
    process.answer(reading, {"record": record(2, "two"), "snapshot": {}})
    request = await process.request()
    assert (request["do"], request["version"]) == ("restore", "2.abc")
    process.answer(request, {"record": None, "snapshot": {}})
    await restoring
    assert shown(observer) is None


async def test_an_older_version_that_was_read_is_ignored() -> None:
    records = Records()
    records.written(BOT, KEY, record(10, "two"), {})
    records.found(BOT, KEY, record(9, "one"), {})
    assert records.json()[f"{BOT}\n{KEY}"]["record"]["state"] == "two"
    records.found(BOT, KEY, record(11, "one"), {})
    assert records.json()[f"{BOT}\n{KEY}"]["record"]["state"] == "one"


async def test_a_damaged_record_without_a_version_is_shown(observer: BotObserver, process: BotConnection) -> None:
    damaged = {**record(1, "damaged"), "version": "0."}
    whole = stored = record(1, "one")

    async def answer() -> None:
        # The report of the machine makes the playground look places up too.
        while True:
            process.answer(await process.request(), place(stored))

    answering = asyncio.create_task(answer())
    for stored, at in ((whole, "one"), (damaged, "damaged"), (whole, "one")):  # noqa: B007 - answer() reads it
        await observer.places.locate()
        assert shown(observer) == at
    answering.cancel()


async def test_an_error_while_a_report_is_shown_is_logged_and_later_ones_are_shown(
    observer: BotObserver, process: BotConnection, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(report_server.TIMEOUT / 2):
        process.answer(await process.request(), {"records": [{"bot": BOT}]}, {"kind": "record"})
        process.answer(await process.request(), place(record(1, "one")))
        await until(lambda: observer.records.get(BOT, KEY) is not None)
    assert shown(observer) == "one"
    assert caplog.text.count("a report of the bot's process could not be shown") == 2
    assert "KeyError: 'key'" in caplog.text


@pytest.mark.parametrize("first", [b"1\n", b"[]\n", b"null\n", b'"a"\n', b"{}\n", b"{\n", b"\xff\n", b""])
async def test_a_connection_of_another_program_is_closed_without_a_traceback(
    observer: BotObserver, first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    host, port, _ = observer.reports.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(first)
    writer.write_eof()
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    assert caplog.text == ""


@pytest.mark.parametrize("how", ["its connection ends", "it has ended"])
async def test_the_next_process_may_have_older_records(
    observer: BotObserver, process: BotConnection, connect: Callable[[], Any], how: str
) -> None:
    for _ in range(2):
        process.answer(await process.request(), place(record(10, "two")))
    if how == "it has ended":
        observer.process_ended()
    else:
        process.writer.close()
        await process.writer.wait_closed()
    new = await connect()
    new.send({"kind": "machine", "bot": BOT, "flows": []})
    new.answer(await new.request(), place(record(9, "one")))
    await new.request()
    assert shown(observer) == "one"
    observer.records.found(BOT, KEY, record(8, "two"), {})
    assert shown(observer) == "one"


async def test_a_second_connection_of_the_process_may_end(
    observer: BotObserver, process: BotConnection, connect: Callable[[], Any]
) -> None:
    for _ in range(2):
        process.answer(await process.request(), place(None))
    other = await connect()
    other.send({"kind": "machine", "bot": BOT, "flows": []})
    request = await process.request()
    other.answer(await other.request(), place(None), written(record(2, "two")))
    await until(lambda: shown(observer) == "two")
    other.writer.close()
    await until(lambda: len(observer.reports._connections) <= 1)
    process.answer(request, place(record(1, "one")))
    await process.request()
    assert shown(observer) == "two"


async def test_requests_end_with_the_process(observer: BotObserver, process: BotConnection) -> None:
    async with asyncio.timeout(report_server.TIMEOUT / 2):
        for _ in range(2):
            process.answer(await process.request(), place(None))
        editing = asyncio.create_task(observer.clear(BOT, KEY, version="1.abc"))
        await process.request()
        process.writer.close()
        with pytest.raises(UsageError, match="the bot does not respond"):
            await editing


async def test_requests_end_with_the_process_although_its_connection_is_open(
    observer: BotObserver, process: BotConnection
) -> None:
    async with asyncio.timeout(report_server.TIMEOUT / 2):
        for _ in range(2):
            process.answer(await process.request(), place(None))
        editing = asyncio.create_task(observer.clear(BOT, KEY, version="1.abc"))
        late = await process.request()
        observer.process_ended()
        with pytest.raises(UsageError, match="the bot does not respond"):
            await editing
        # Reports are still shown.
        process.answer(late, {"record": record(1, "one"), "snapshot": {}}, written(record(2, "two")))
        await until(lambda: shown(observer) == "two")


async def test_a_killed_process_gets_no_requests_although_its_connection_is_open(
    observer: BotObserver, process: BotConnection, connect: Callable[[], Any]
) -> None:
    for _ in range(2):
        process.answer(await process.request(), place(record(1, "one")))
    observer.reports.forget()
    new = await connect()
    async with asyncio.timeout(report_server.TIMEOUT / 2):
        clearing = asyncio.create_task(observer.clear(BOT, KEY, version="1.abc"))
        new.answer(await new.request(), {"record": None, "snapshot": {}})
        await clearing
    assert shown(observer) is None


async def test_an_answer_that_comes_too_late_is_still_shown(
    observer: BotObserver, process: BotConnection, constants: Constants
) -> None:
    constants(report_server_timeout=0.01)
    late = await process.request()
    await process.request()  # the lookup of the next user, after the first was given up
    process.answer(late, place(record(1, "one")))
    await until(lambda: observer.records.get(BOT, KEY) is not None)
    assert shown(observer) == "one"


async def test_a_slow_read_of_the_bots_process_never_replaces_a_newer_record(
    observer: BotObserver, reporter: Reporter
) -> None:
    storage, applied = MemoryStorage(), asyncio.Event()
    perform, reads = storage.perform, 0

    async def slow(operation: Operation) -> Any:
        nonlocal reads
        result = await perform(operation)
        if isinstance(operation, Apply):
            applied.set()
        elif isinstance(operation, Get):
            reads += 1
            if reads == 1:
                # The record of this lookup is old when it is answered.
                await applied.wait()
                await asyncio.sleep(0.1)
        return result

    storage.perform = slow  # type: ignore[method-assign]
    fsm = machine(reporter, storage=storage, key=keys.ChatUser())
    async with asyncio.timeout(60), fsm:
        await until(lambda: reads)
        async with fsm.conversation(key=(42, 42)) as ctx:
            ctx.start_flow(Form)
        await until(lambda: "43/43/0" in observer.places.json() and observer.timeline.groups)
        assert shown(observer) == "one"


async def test_a_key_function_that_raises_leaves_later_requests_answered(
    observer: BotObserver, reporter: Reporter, caplog: pytest.LogCaptureFixture
) -> None:
    def family(update: Update) -> Any:
        return update.raw["message"]["from"]["last_name"], 42

    async with asyncio.timeout(60), machine(reporter, storage=MemoryStorage(), key=family) as fsm:
        async with fsm.conversation(key=("Smith", 42)) as ctx:
            ctx.start_flow(Form)
        await until(lambda: len(observer.places.json()) >= 2)
        known = await until(lambda: observer.records.get(BOT, '("Smith",42)'))
        assert "could not be found for the playground: KeyError('last_name')" in caplog.text
        assert known.record is not None
        with pytest.raises(UsageError, match="TypeError"):
            await observer.edit(BOT, '("Smith",42)', version="1.abc", state="two", data=None)  # type: ignore[arg-type]
        await observer.clear(BOT, '("Smith",42)', version=known.record["version"])
        assert await fsm.storage.get_state(BOT, ("Smith", 42)) is None


async def test_a_report_of_a_large_record_is_shown(observer: BotObserver, process: BotConnection) -> None:
    process.send({**written(record(1, "one")), "before": {"fields": {"text": "x" * 5_000_000}}})
    await until(lambda: observer.records.get(BOT, KEY) is not None)
    assert shown(observer) == "one"
