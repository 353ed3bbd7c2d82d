"""Encrypted records: which texts a store sees, and what happens without the right key or with changed texts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from stepwell import (
    Log,
    MemoryStorage,
    SealedStorage,
    SQLiteStorage,
    State,
    StateStorage,
    Storage,
    copy_records,
    open_storage,
)
from stepwell.errors import CorruptRecord, InvalidOption, KeyMissing, NotEncrypted, StoredDataError, TooLarge
from stepwell.fsm import FSM, Flow, state
from stepwell.nodes import Node, NodeFlow, worker
from stepwell.record import Address, Change, Head, Queue, Stored
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Get
from stepwell.storage.operations import Operation
from stepwell.storage.sealed import new_key
from stepwell.testing import Clock
from tests.backends import Backend
from tests.until import until, yields

KEY, OLDER, OTHER, NAMES = new_key(), new_key(), new_key(), new_key()


def sealed(inner: Storage | None = None, *keys: str, **options: Any) -> SealedStorage:
    return SealedStorage(inner or MemoryStorage(), keys=keys or (KEY,), **options)


async def fill(storage: Storage, key: Any = 1, **data: Any) -> None:
    async with Slot(storage, "bot", key) as slot:
        slot.flow, slot.state = "sign-up", "e-mail"
        slot.data.update({"name": "Alice Liddell", **data})
        await slot.commit(
            memo=["one of the handled"], parts={"0001": "part of Alice"}, queue=Queue("mail-queue"), tags=("user:1",)
        )


async def raw(storage: SealedStorage, key: Any = 1) -> Stored:
    found: Stored = await storage.inner.perform(Get(storage.address("bot", key), parts=True))
    return found


async def put(storage: SealedStorage, key: Any = 1, **change: Any) -> None:
    """Change the stored texts of a record."""
    await storage.inner.perform(Apply(storage.address("bot", key), Change(write=storage.ids(), **change)))


class CountingStorage(MemoryStorage):
    """Counts the reads of records."""

    gets = 0

    def perform(self, operation: Operation) -> Coroutine[Any, Any, Any]:
        self.gets += isinstance(operation, Get)
        return super().perform(operation)


class Ask(Flow, name="ask-something"):
    """Two states."""

    first = state(to=["second"])
    second = state(to=[])
    default_state = first


class Double(Node):
    """Doubles a number."""

    def post(self, shared: dict[str, Any], prep_res: Any, exec_res: Any) -> None:
        shared["number"] *= 2


async def test_a_conversation_a_run_a_queue_and_a_log_work_on_each_backend(backend: Backend) -> None:
    storage = sealed(backend.storage(), KEY, names_key=NAMES)
    async with storage:
        fsm = FSM("bot", storage=storage, flows=[Ask], run_timers=False)
        update = {"update_id": 1, "message": {"chat": {"id": 42, "type": "private"}, "from": {"id": 42}, "text": "hi"}}

        async def handler(ctx: Any) -> None:
            ctx.start_flow(Ask)
            ctx.data["the-name"] = "Alice Liddell"

        async with fsm:
            await fsm.handle(update, handler)
            assert await fsm.handle(update, handler) is None, "the memo is read"
        assert (await storage.get_state("bot", (42, 42))) == State(
            "ask-something", "first", {"the-name": "Alice Liddell"}
        )
        assert [entry.key async for entry in storage.scan("bot", flow="ask-something", state="first")] == [(42, 42)]
        flow = NodeFlow(name="double").start(Double)
        async with worker([flow], storage=storage):
            handle = await flow.submit({"number": 21}, storage=storage)
            assert (await handle.result())["number"] == 42
        log: Log[Any] = Log(storage, "bot", "log")
        await log.append("one", "two")
        assert [entry.value for entry in await log.read()] == ["one", "two"]
        stored = await raw(storage, (42, 42))
        assert not any(text in str(stored) for text in ("Alice Liddell", "the-name", "ask-something"))
        copy = MemoryStorage()
        copied = await copy_records(storage, copy)
        assert copied.written == copied.verified and not copied.damaged
        assert await copy.get_state("bot", (42, 42)) == State("ask-something", "first", {"the-name": "Alice Liddell"})


@pytest.mark.parametrize("names_key", [None, NAMES], ids=["names in clear", "encrypted names"])
async def test_the_file_has_no_value_in_clear(tmp_path: Path, names_key: str | None) -> None:
    async with sealed(SQLiteStorage(str(tmp_path / "bot.db")), names_key=names_key) as storage:
        await fill(storage, **{"home-town": "Oxford, England"})
        await storage.update_data("bot", 1, {"home-town": "Guildford, England"})
        assert await storage.get_data("bot", 1) == {"name": "Alice Liddell", "home-town": "Guildford, England"}
    found = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for secret in ("Alice Liddell", "Oxford, England", "England", "one of the handled", "part of Alice"):
        assert secret.encode() not in found
    for name in ("e-mail", "home-town", "sign-up", "mail-queue"):
        assert (name.encode() in found) is (names_key is None), name
    for visible in ("0001", "user:1"):
        assert visible.encode() in found


async def test_a_text_in_another_place_is_damaged() -> None:
    async with sealed() as storage:
        await fill(storage, 1, city="Oxford")
        await fill(storage, 2, city="London")
        one, two = await raw(storage, 1), await raw(storage, 2)
        moves: list[dict[str, Any]] = [
            {"set": {"city": two.fields["city"]}},
            {"set": {"city": one.fields["name"]}},
            {"set": {"other": one.fields["city"]}},
            {"head": Head("sign-up", "e-mail", two.head or "")},
            {"set": {"city": one.head or ""}},
            {"parts": {"0001": (two.parts or {})["0001"]}},
            {"parts": {"0002": (one.parts or {})["0001"]}},
        ]
        for change in moves:
            await fill(storage, 1, city="Oxford")
            await put(storage, 1, **change)
            with pytest.raises(CorruptRecord, match="moved from another place"):
                await read(storage, 1)
            await storage.clear("bot", 1)
        assert (await storage.get_data("bot", 2)) == {"name": "Alice Liddell", "city": "London"}


async def read(storage: Storage, key: Any) -> Any:
    """Decode everything of a record."""
    await storage.get_state("bot", key)
    address = storage.address("bot", key)
    stored = await storage.perform(Get(address, parts=True))
    for name, text in stored.parts.items():
        storage.seal(address).value("p", name, text)


async def test_a_changed_or_shortened_text_is_damaged_and_a_copy_is_kept() -> None:
    async with sealed() as storage:
        await fill(storage)
        text = (await raw(storage)).fields["name"]
        for changed in (text[:-8], text[:8], text[:20], text[:30] + "A" * 8 + text[38:], text + "AAAA", text + "é"):
            await put(storage, set={"name": changed})
            for _ in range(2):
                with pytest.raises(CorruptRecord, match=r"the field 'name' cannot be decrypted.*a copy is kept"):
                    await storage.get_data("bot", 1)
            kept = await storage.quarantined("bot", 1)
            assert kept is not None and kept["fields"] == {"name": changed}
        await put(storage, set={"name": text})
        assert await storage.get_data("bot", 1) == {"name": "Alice Liddell"}


async def test_a_missing_key_is_named_and_harms_only_its_records() -> None:
    inner = MemoryStorage()
    async with sealed(inner, OLDER) as older:
        await fill(older, 1)
        async with sealed(inner, KEY) as storage:
            await fill(storage, 2)
            ids = older.keyring.ids + storage.keyring.ids
            with pytest.raises(KeyMissing, match="needs the key with the id") as caught:
                await storage.get_state("bot", 1)
            assert (caught.value.key_id, caught.value.known) == (ids[0], ids[1:])
            with pytest.raises(KeyMissing):
                async with Slot(storage, "bot", 1):
                    pass
            assert (await storage.beside(storage.address("bot", 1))).holder is None
            assert await storage.quarantined("bot", 1) is None, "it is not damaged"
            places = {}
            async for entry in storage.scan("bot"):
                try:
                    places[entry.key] = entry.place.state
                except KeyMissing:
                    places[entry.key] = "unreadable"
            assert places == {1: "unreadable", 2: "e-mail"}
            with pytest.raises(KeyMissing):
                await copy_records(storage, MemoryStorage())
        await inner.open()
        async with sealed(inner, KEY, OLDER) as both:
            assert (await both.get_data("bot", 1)) == (await both.get_data("bot", 2)) == {"name": "Alice Liddell"}


async def test_without_keys_the_error_says_what_to_do() -> None:
    async with sealed() as storage:
        await fill(storage)
        for reading in (storage.inner.get_state("bot", 1), storage.inner.get_data("bot", 1)):
            with pytest.raises(KeyMissing, match=r"write sealed\+ before its URL"):
                await reading
        assert await storage.inner.quarantined("bot", 1) is None


@pytest.mark.parametrize("keys", [(), (OTHER,)], ids=["without keys", "with another key"])
async def test_a_write_that_does_not_read_is_refused_with_a_wrong_key(keys: tuple[str, ...], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bot.db"
    async with sealed(open_storage(url)) as owner:
        await owner.set_state("bot", 1, State("sign-up", "e-mail", {"name": "Alice"}))
        await StateStorage(owner).update_state("run", {"a": 1})
        await Log(owner, "bot", 1).append("one")
    async with sealed(open_storage(url), *keys) if keys else open_storage(url) as storage:
        await storage.update_data("bot", "new", {"name": "Eve"})
        for write in (
            storage.update_data("bot", 1, {"age": 7}),
            storage.set_data("bot", 1, {"age": 7}),
            StateStorage(storage).merge_state("run", {"b": 2}),
            StateStorage(storage).update_state("run", {"b": 2}),
            Log(storage, "bot", 1).append("two"),
            Log(storage, "bot", 1).append("three"),
        ):
            with pytest.raises(KeyMissing):
                await write
    async with sealed(open_storage(url)) as owner:
        assert await owner.get_state("bot", 1) == State("sign-up", "e-mail", {"name": "Alice"})
        assert await StateStorage(owner).get_state("run") == {"a": 1}
        assert [entry.value for entry in await Log(owner, "bot", 1).read()] == ["one"]


async def test_keys_are_checked_once_for_each_bot_and_again_after_an_unreadable_record() -> None:
    inner = CountingStorage()
    await inner.set_data("bot", 1, {"name": "Alice"})
    await inner.set_data("bot", 2, {"name": "Bob"})
    inner.gets = 0
    for key in (1, 2, 1, 2):
        await inner.update_data("bot", key, {"age": 7})
    assert inner.gets == 1
    async with sealed(inner) as storage:
        await storage.set_data("bot", 3, {"name": "Cleo"})
        with pytest.raises(KeyMissing):
            await inner.get_data("bot", 3)
        with pytest.raises(KeyMissing):
            await inner.update_data("bot", 3, {"age": 7})
        assert await storage.get_data("bot", 3) == {"name": "Cleo"}


async def test_plaintext_is_refused_unless_it_is_allowed() -> None:
    inner = MemoryStorage()
    await fill(inner)
    async with sealed(inner) as storage:
        with pytest.raises(NotEncrypted, match="has plaintext in an encrypted storage"):
            await storage.get_state("bot", 1)
        async with sealed(inner, KEY, allow_plaintext=True) as migrating:
            await migrating.update_data("bot", 1, {"city": "Oxford"})
            assert await migrating.get_data("bot", 1) == {"name": "Alice Liddell", "city": "Oxford"}
            assert (await raw(migrating)).fields["city"].startswith("~1")
            plain = inner.seal(inner.address("bot", 1)).fields({"name": "Eve"})
            await put(migrating, set=plain)
        await inner.open()
        with pytest.raises(NotEncrypted, match="the field 'name'"):
            await storage.get_data("bot", 1)
    with pytest.raises(InvalidOption, match="copy them to an empty storage"):
        sealed(inner, KEY, allow_plaintext=True, names_key=NAMES)


async def test_names_need_their_key() -> None:
    inner = MemoryStorage()
    async with sealed(inner, KEY, names_key=NAMES) as storage:
        await fill(storage)
        for options in ({}, {"names_key": OTHER}):
            with pytest.raises(KeyMissing, match="the name of a field"):
                await sealed(inner, KEY, **options).get_data("bot", 1)
            await inner.open()
        await sealed(inner, KEY).set_data("bot", 2, {"a": 1})
        with pytest.raises(NotEncrypted, match="the name of a field"):
            await storage.get_data("bot", 2)


async def test_no_error_log_or_repr_shows_a_key_or_a_value(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    for keys in (KEY, [KEY[:-3]], [KEY, KEY], [], [KEY + "="], [42], None):
        try:
            shown.append(repr(SealedStorage(MemoryStorage(), keys=keys)))  # type: ignore[arg-type]
        except InvalidOption as error:
            shown.append(str(error))
    async with sealed(None, KEY, OLDER, names_key=NAMES) as storage:
        await fill(storage)
        text = next(iter((await raw(storage)).fields.values()))
        await put(storage, set=dict.fromkeys((await raw(storage)).fields, text[:-4]))
        for call in (storage.get_data("bot", 1), storage.get_state("bot", 1)):
            try:
                await call
            except StoredDataError as error:
                shown.append(f"{error!r} {error}")
        shown += [repr(storage), repr(vars(storage)), repr(storage.keyring), repr(vars(storage._codec))]
    assert len(shown) == 13
    for secret in (KEY, OLDER, NAMES, KEY[:-3], "Alice"):
        assert secret not in "".join(shown) and secret not in caplog.text


async def test_a_url_takes_its_keys_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sealed+sqlite:///{tmp_path}/bot.db"
    with pytest.raises(InvalidOption, match="set STEPWELL_KEYS"):
        open_storage(url)
    monkeypatch.setenv("STEPWELL_KEYS", f"{KEY}, {OLDER}")
    async with open_storage(url, clock=Clock()) as storage:
        assert isinstance(storage, SealedStorage) and isinstance(storage.inner, SQLiteStorage)
        assert storage.clock is storage.inner.clock
        await storage.set_data("bot", 1, {"a": 1})
        await storage.inner.set_data("bot", 2, {"a": 2})
    monkeypatch.setenv("STEPWELL_NAMES_KEY", NAMES)
    for given in ({}, {"keys": [KEY]}):
        opened = open_storage("sealed+memory://", **given)
        assert isinstance(opened, SealedStorage)
        assert opened._names is not None
    monkeypatch.delenv("STEPWELL_NAMES_KEY")
    monkeypatch.delenv("STEPWELL_KEYS")
    path = tmp_path / "keys"
    path.write_text(f"# the newest first\n{OLDER}\n{KEY}  # 2026\n")
    monkeypatch.setenv("STEPWELL_KEYS_FILE", str(path))
    async with open_storage(f"{url}?allow_plaintext=true&synchronous=NORMAL") as storage:
        assert await storage.get_data("bot", 1) == {"a": 1}
        assert await storage.get_data("bot", 2) == {"a": 2}
    monkeypatch.setenv("STEPWELL_NAMES_KEY", NAMES)
    async with open_storage(url) as storage:
        with pytest.raises(NotEncrypted):
            await storage.get_data("bot", 1)
    with pytest.raises(InvalidOption, match="must not contain keys") as caught:
        open_storage(f"{url}?keys={KEY}")
    assert KEY not in str(caught.value)
    for name in ("STEPWELL_KEYS", "STEPWELL_KEYS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "no file"))
    with pytest.raises(InvalidOption, match="both"):
        open_storage(url)
    monkeypatch.delenv("STEPWELL_KEYS")
    with pytest.raises(InvalidOption, match="cannot be read"):
        open_storage(url)


async def test_listeners_of_expired_records_get_plaintext(clock: Clock) -> None:
    seen: list[Any] = []
    async with sealed(MemoryStorage(clock=clock, sweep_every=0.001)) as storage:

        async def listener(address: Any, head: str | None) -> None:
            seen.append(storage.seal(address).open_head(head).place.state)
            done.set()

        done = asyncio.Event()
        storage.expired_listeners.append(listener)
        await storage.init("bot", ttl=5)
        await storage.set_state("bot", 1, State("form", "email"))
        clock.advance(6)
        await asyncio.wait_for(done.wait(), 10)
    assert seen == ["email"]
    assert storage.inner.expired_listeners == []


async def test_a_cancelled_claim_of_a_large_record_is_released() -> None:
    async with sealed() as storage:
        async with Slot(storage, '"runs"', "big") as slot:
            address = slot.address
        seal = storage.seal(address)
        fields = {f"f{n}": seal.field(f"f{n}", "x" * 200_000) for n in range(10)}
        await storage.perform(Apply(address, Change(write="w", set=fields, limit=1 << 30)))
        task = asyncio.create_task(storage.perform(Claim(address, "t", 60)))
        await yields(3)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: storage.beside(address), lambda it: it.holder is None)
        assert len((await storage.perform(Get(address))).fields) == 10


async def test_the_limit_of_a_record_counts_about_its_plaintext() -> None:
    async with sealed() as storage:
        await storage.set_data("bot", 1, {"a": "x" * 100_000, "b": "y" * 100_000})
        with pytest.raises(TooLarge, match="the encrypted record"):
            await storage.update_data("bot", 1, {"c": "z" * 100_000})
        with pytest.raises(TooLarge, match="the value of 'c'"):
            await storage.update_data("bot", 1, {"c": "z" * 300_000})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_draws_other_nonces() -> None:
    cipher = sealed().keyring.at(Address("bot", "1"))
    cipher.encrypt("f", "a", "")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, cipher.encrypt("f", "a", "").encode())
        os._exit(0)
    os.waitpid(child, 0)
    nonces = {cipher.encrypt("f", "a", "")[8:24] for _ in range(200)}
    assert len(nonces) == 200
    assert os.read(read, 100).decode()[8:24] not in nonces


async def test_the_same_value_has_another_text_each_time_and_names_have_the_same() -> None:
    async with sealed(None, KEY, names_key=NAMES) as storage:
        texts, names = set(), set()
        for _ in range(5):
            await storage.set_data("bot", 1, {"a": 1})
            names |= set((await raw(storage)).fields)
            texts |= set((await raw(storage)).fields.values())
        assert (len(texts), len(names)) == (5, 1)
        await storage.set_data("other", 1, {"a": 1})
        assert set((await storage.inner.perform(Get(storage.address("other", 1)))).fields) != names


async def test_remembered_texts_are_those_of_the_store() -> None:
    inner = MemoryStorage()
    async with sealed(inner) as one, sealed(inner) as two:
        for number in range(4):
            await one.update_data("bot", 1, {"a": number, **{f"f{n}": n for n in range(40)}, "long": "x" * 5000})
            for each in (two, one):
                data = await each.get_data("bot", 1)
                assert data is not None and data["a"] == number and len(data) == 42
            await two.update_data("bot", 1, {"a": -number})
            assert (await one.get_data("bot", 1) or {})["a"] == -number
        cipher = one.keyring.at(one.address("bot", 1))
        assert len(cipher._known) <= 32
