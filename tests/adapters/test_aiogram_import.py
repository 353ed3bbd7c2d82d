"""``stepwell import-aiogram``: the records of aiogram's RedisStorage, found by StepwellStorage."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Literal

import pytest
import redis
from aiogram.fsm.storage.base import DefaultKeyBuilder, KeyBuilder, StorageKey
from aiogram.fsm.storage.redis import RedisStorage

from stepwell import MemoryStorage, Storage, open_storage
from stepwell.adapters.aiogram import StepwellStorage
from stepwell.adapters.imports.aiogram import import_aiogram
from stepwell.adapters.imports.key_patterns import KeyPatterns, default_patterns
from stepwell.adapters.imports.records import ImportResult
from stepwell.errors import InvalidOption
from tests.backends import Backend
from tests.reliability.dose import dose
from tests.servers.redis import the_server

PRIVATE = StorageKey(bot_id=7, chat_id=42, user_id=42)
GROUP = StorageKey(bot_id=7, chat_id=-1001234, user_id=43)
TOPIC = StorageKey(bot_id=7, chat_id=-1001234, user_id=43, thread_id=5)
CHAT = StorageKey(bot_id=7, chat_id=-1001234, user_id=-1001234)
OTHER_BOT = StorageKey(bot_id=8, chat_id=42, user_id=42)
BUSINESS = StorageKey(bot_id=7, chat_id=42, user_id=42, business_connection_id="AbC_-9")
BUSINESS_TOPIC = StorageKey(bot_id=7, chat_id=42, user_id=42, thread_id=3, business_connection_id="AbC_-9")
SCENES = StorageKey(bot_id=7, chat_id=42, user_id=42, destiny="scenes_history")
DIALOG = StorageKey(bot_id=7, chat_id=-1001234, user_id=43, thread_id=5, destiny="aiogd:stack:")
SIMPLE = [PRIVATE, GROUP, TOPIC, CHAT]
#: Options of aiogram's builder, and the keys that it can tell apart.
BUILDERS: dict[str, tuple[dict[str, Any], list[StorageKey]]] = {
    "default": ({}, SIMPLE),
    "separator": ({"separator": "-"}, SIMPLE),
    "slash": ({"separator": "//"}, SIMPLE),
    "bot": ({"with_bot_id": True}, [*SIMPLE, OTHER_BOT]),
    "business": ({"with_business_connection_id": True}, [*SIMPLE, BUSINESS, BUSINESS_TOPIC]),
    "destiny": ({"with_destiny": True}, [*SIMPLE, SCENES, DIALOG]),
    "all": (
        {"with_bot_id": True, "with_business_connection_id": True, "with_destiny": True},
        [*SIMPLE, OTHER_BOT, BUSINESS, BUSINESS_TOPIC, SCENES, DIALOG],
    ),
}
DATA = {"name": "Anna", "n": 2**70, "list": [1, None, 1.5], "deep": {"1": "ü"}, "$odd": True}


@pytest.fixture
def prefix() -> str:
    return f"fsm-{uuid.uuid4().hex}"


@pytest.fixture
async def theirs(prefix: str) -> AsyncIterator[RedisStorage]:
    storage = RedisStorage.from_url(the_server().url(), key_builder=DefaultKeyBuilder(prefix=prefix))
    yield storage
    await storage.close()


@pytest.fixture
def server() -> redis.Redis:
    return the_server().client()


async def fill(storage: RedisStorage, keys: Iterable[StorageKey]) -> None:
    for number, key in enumerate(keys):
        if number != 1:
            await storage.set_state(key, f"Form:{number}" if number != 2 else "alone")
        if number != 3:
            await storage.set_data(key, {**DATA, "number": number})


async def the_same(theirs: RedisStorage, storage: Storage, keys: Iterable[StorageKey], name: str = "aiogram") -> None:
    ours = StepwellStorage(storage, name=name)
    for key in keys:
        assert await ours.get_state(key) == await theirs.get_state(key)
        assert await ours.get_data(key) == await theirs.get_data(key)


@pytest.mark.parametrize(("options", "keys"), BUILDERS.values(), ids=list(BUILDERS))
async def test_stepwell_storage_reads_what_redis_storage_has_written(
    options: dict[str, Any], keys: list[StorageKey], prefix: str, theirs: RedisStorage
) -> None:
    theirs.key_builder = DefaultKeyBuilder(prefix=prefix, **options)
    await fill(theirs, keys)
    async with theirs.create_isolation().lock(PRIVATE), MemoryStorage() as storage:
        done = await import_aiogram(the_server().url(), storage, prefix=prefix, bot_id=7, **options)
        assert (done.read, done.written, done.verified, done.failed) == (len(keys), len(keys), len(keys), 0)
        await the_same(theirs, storage, keys)
        ours = StepwellStorage(storage)
        for key in keys:
            await ours.update_data(key, {"more": 1})
            await ours.set_state(key, None)
            await ours.set_data(key, {})
        for bot in (7, 8):
            # All of them were at the addresses where StepwellStorage reads and writes them.
            assert [entry async for entry in storage.scan(f"aiogram:{bot}")] == []


@pytest.mark.every_backend
async def test_an_imported_record_is_the_one_that_the_adapter_writes(
    backend: Backend, prefix: str, theirs: RedisStorage
) -> None:
    storage = backend.storage()
    await fill(theirs, SIMPLE)
    done = await import_aiogram(the_server().url(), storage, prefix=prefix, bot_id=7)
    assert (done.written, done.verified) == (4, 4)
    written = StepwellStorage(storage, name="written")
    for key in SIMPLE:
        await written.set_state(key, await theirs.get_state(key))
        await written.set_data(key, await theirs.get_data(key))

    async def records(namespace: str) -> list[Any]:
        found = [
            (entry.key, entry.place, entry.stored.tags, entry.state.data) async for entry in storage.scan(namespace)
        ]
        return sorted(found, key=str)

    assert await records("aiogram:7") == await records("written:7")
    again = await import_aiogram(the_server().url(), storage, prefix=prefix, bot_id=7)
    assert (again.written, again.same, again.kept) == (0, 4, 0)


class Custom(KeyBuilder):
    """Writes ``None`` for a missing thread, and the part first."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def build(self, key: StorageKey, part: Literal["data", "state", "lock"] | None = None) -> str:
        return f"{self.prefix}/{part}/{key.user_id}@{key.chat_id}.{key.thread_id}"


async def test_a_pattern_describes_the_keys_of_a_custom_builder(prefix: str, theirs: RedisStorage) -> None:
    await fill(theirs, SIMPLE)
    theirs.key_builder = Custom(prefix)
    other = StorageKey(bot_id=7, chat_id=99, user_id=99)
    await theirs.set_state(other, "Form:x")
    await theirs.set_state(TOPIC, "Form:y")
    async with MemoryStorage() as storage:
        keys = [prefix + "/{part}/{user_id}@{chat_id}.{thread_id}", prefix + ":{chat_id}:{user_id}:{part}"]
        done = await import_aiogram(the_server().url(), storage, keys=keys, bot_id=7, name="mine")
        # The default builder's keys with a topic have neither form.
        assert (done.written, done.failed) == (5, 2)
        await the_same(theirs, storage, [other, TOPIC], "mine")


async def test_a_record_that_differs_is_left_alone_unless_it_may_be_overwritten(
    prefix: str, theirs: RedisStorage
) -> None:
    await fill(theirs, SIMPLE)
    async with MemoryStorage() as storage:
        ours = StepwellStorage(storage)
        await ours.set_state(PRIVATE, "Form:later")
        dry = await import_aiogram(the_server().url(), storage, prefix=prefix, bot_id=7, dry_run=True)
        assert (dry.written, dry.kept, dry.verified) == (3, 1, 0)
        assert [entry.key async for entry in storage.scan("aiogram:7")] == [(42, 42, None, None, "default")]
        done = await import_aiogram(the_server().url(), storage, prefix=prefix, bot_id=7)
        assert (done.written, done.kept, done.failed) == (3, 1, 0)
        assert done.kept_records[0].key == f"{prefix}:42:42:state"
        assert await ours.get_state(PRIVATE) == "Form:later"
        done = await import_aiogram(the_server().url(), storage, prefix=prefix, bot_id=7, overwrite=True)
        assert (done.written, done.overwritten, done.same, done.verified) == (1, 1, 3, 1)
        await the_same(theirs, storage, SIMPLE)


async def test_keys_that_cannot_be_read_are_reported_and_the_rest_is_imported(
    prefix: str, theirs: RedisStorage, server: redis.Redis
) -> None:
    await theirs.set_state(PRIVATE, "Form:name")
    bad = {
        "7:42:42:state": "ambiguous",
        "x:y:state": "another form",
        "1:1:other": "another form",
        "2:2:data": "is not JSON",
        "3:3:data": "JSON of a list, not of a dict",
        "4:4:data": "not UTF-8",
        "5:5:state": "is a hash",
        "6:6:data": "surrogate",
        "8:8:data": "262144",
    }
    with server:
        for key in ("7:42:42:state", "x:y:state", "1:1:other"):
            server.set(f"{prefix}:{key}", "x")
        server.set(f"{prefix}:2:2:data", "{")
        server.set(f"{prefix}:3:3:data", "[1]")
        server.set(f"{prefix}:4:4:data", b'{"a": "\xff"}')
        server.hset(f"{prefix}:5:5:state", "a", "b")
        server.set(f"{prefix}:6:6:data", '{"a": "\\ud800"}')
        server.set(f"{prefix}:8:8:data", json.dumps({"a": "x" * 300_000}))
        server.set(f"{prefix}:9:9:data", "{}")
    async with MemoryStorage() as storage:
        done = await import_aiogram(the_server().url(), storage, prefix=prefix, bot_id=7)
        found = {problem.key.removeprefix(f"{prefix}:"): problem.why for problem in done.problems}
        assert {key: why for key, why in bad.items() if why not in found[key]} == {}, found
        assert (done.written, done.failed) == (1, len(bad))
        few = await import_aiogram(the_server().url(), storage, prefix=prefix, bot_id=7, most_problems=2)
        assert (few.failed, len(few.problems)) == (len(bad), 2)


@pytest.mark.parametrize(
    ("key", "options", "why"),
    [
        ("fsm:7:42:42:state", {}, "ambiguous"),
        ("fsm:-100:5:42:state", {"with_bot_id": True}, "another form"),
        ("fsm_AbC_1_42_42_state", {"separator": "_", "with_business_connection_id": True}, "ambiguous"),
        ("fsm:1:2:3:4:state", {}, "another form"),
        ("fsm:1:2:state\n", {}, "another form"),
        ("fsm:\u0661:2:state", {}, "another form"),
    ],
)
def test_a_key_with_two_meanings_has_none(key: str, options: dict[str, Any], why: str) -> None:
    found = KeyPatterns(default_patterns(**options), 7, default=True).read(key)
    assert isinstance(found, str)
    assert why in found


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("fsm:{chat}:{user_id}:{part}", "no field {chat}"),
        ("fsm:{bot_id}:{chat_id}:{user_id}", "needs {part}"),
        ("fsm:{bot_id}:{user_id}:{part}", "needs {chat_id}"),
        ("{bot_id}{chat_id}:{chat_id}:{user_id}:{part}", "only once"),
        ("fsm:{chat_id}:{user_id}:{part}", "do not contain the id of the bot"),
    ],
)
async def test_a_wrong_pattern_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        await import_aiogram("redis://localhost:1", MemoryStorage(), keys=[pattern])


async def test_the_command_imports_without_aiogram(prefix: str, theirs: RedisStorage, tmp_path: Path) -> None:
    await fill(theirs, SIMPLE)
    await theirs.redis.set(f"{prefix}:odd", "x")
    url = f"sqlite:///{tmp_path}/bot.db"
    code = "import sys; sys.modules['aiogram'] = None; from stepwell.cli import main; sys.exit(main())"
    given = [sys.executable, "-c", code, "import-aiogram", the_server().url(), "--prefix", prefix, "--storage", url]

    def command(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*given, *more], capture_output=True, text=True, check=False)

    dry = command("--bot-id", "7", "--dry-run")
    assert (dry.returncode, (tmp_path / "bot.db").exists()) == (1, False), dry.stderr
    assert "4 records read, 4 would be written (dry run)" in dry.stdout
    assert dry.stderr == f"not imported: {prefix}:odd: has another form than the patterns\n"
    done = command("--bot-id", "7", "--yes", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["imported"], report["written"], report["verified"]) == (1, True, 4, 4)
    assert report["problems"] == [{"key": f"{prefix}:odd", "why": "has another form than the patterns"}]
    assert "imported 4 records into" in done.stderr
    async with open_storage(url) as storage:
        await the_same(theirs, storage, SIMPLE)


async def test_many_records_are_imported_in_pages(prefix: str, server: redis.Redis, tmp_path: Path) -> None:
    count = dose("IMPORTED", 2_000, 100_000)
    with server, server.pipeline(transaction=False) as pipe:
        for user in range(1, count + 1):
            pipe.set(f"{prefix}:{user}:{user}:state", f"Form:{user % 5}")
            pipe.set(f"{prefix}:{user}:{user}:data", json.dumps({"name": f"user {user}", "items": [user, "x" * 50]}))
        pipe.execute()
    pages: list[int] = []

    def progress(result: ImportResult) -> None:
        pages.append(result.read)

    async with open_storage(f"sqlite:///{tmp_path}/bot.db") as storage:
        for expected in ((count, 0), (0, count)):
            started = time.monotonic()
            done = await import_aiogram(the_server().url(), storage, prefix=prefix, bot_id=7, progress=progress)
            took = time.monotonic() - started
            assert (done.written, done.same, done.failed) == (*expected, 0)
            print(f"{count} records in {took:.1f} s")
            assert took < 60 or count < 100_000
    assert pages[-1] == count
    with the_server().client() as client:
        client.delete(*(f"{prefix}:{user}:{user}:{part}" for user in range(1, count + 1) for part in ("state", "data")))
