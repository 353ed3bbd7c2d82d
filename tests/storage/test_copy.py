"""Copying records between any two storages, once or repeatedly."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from stepwell import Log, MemoryStorage, State, Storage, copy_records, open_storage
from stepwell.codec.json import replaced
from stepwell.errors import Busy, CorruptRecord, InvalidOption, NotCopied, StorageUnavailable, VersionChanged
from stepwell.record import INBOX, LOGS, QUARANTINE, RUNS, Address, Change, Queue, Stored
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Claimed, Copied, Get, Operation, Range, Release
from stepwell.storage.copying import claims, copy
from stepwell.testing import Clock
from tests import backends
from tests.backends import Backend
from tests.constants import Constants
from tests.reliability.dose import LARGE
from tests.until import until

#: Each backend as source and as target. All pairs are copied with ``STEPWELL_DOSE=large``.
PAIRS = [
    (source, target)
    for source in backends.ALL
    for target in backends.ALL
    if LARGE or source is target or backends.Memory in (source, target)
]


@pytest.fixture
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Backend, Backend]]:
    """A source and a target."""
    source, target = (cls(tmp_path) for cls in request.param)
    yield source, target
    await source.close()
    await target.close()


async def fill(storage: Storage, count: int = 110) -> None:
    async def one(number: int) -> None:
        async with Slot(storage, "bot" if number % 3 else "other:bot", (number, "k")) as slot:
            slot.flow, slot.state = ("form", f"s{number % 4}") if number % 5 else (None, None)
            slot.extension = f'{{"n":{number}}}'
            slot.data.update({"n": number, "nul\0": "a\0b", 7: {"z": (1, 1e16), "a": -0.0}})
            if number % 50 == 1:
                slot.data["long"] = "x" * 20_000
            await slot.commit(
                tags=(f"user:{number % 7}",),
                deadline=30.0 + number,
                expiry=None if number % 2 else 3600.0,
                memo=[number],
                parts={f"item{n}": "p" * 100 for n in range(number % 4)},
            )

    await asyncio.gather(*(one(number) for number in range(count)))
    await storage.set_data("bot", "no flow", {"a": 1})
    async with Slot(storage, RUNS, "run-1") as slot:
        slot.flow, slot.state = "words", "Split"
        await slot.commit(parts={f"item{n}": "p" * 400_000 for n in range(4)})
    await storage.set_state("bot", "cleared", State())
    await storage.clear("bot", "cleared")


async def everything(storage: Storage) -> dict[Any, Any]:
    """Return the content of a storage, without values that differ between storages, such as clocks."""
    found = {}
    for namespace in ("bot", "other:bot", RUNS):
        async for entry in storage.scan(namespace):
            stored: Stored = await storage.perform(Get(entry.address, parts=True))
            claimed: Claimed = await storage.perform(Claim(entry.address, "reader", 1))
            await storage.perform(Release(entry.address, "reader"))
            found[entry.address] = (
                entry.state,
                stored.head,
                stored.fields,
                stored.parts,
                stored.tags,
                claimed.memo,
                None if stored.deadline is None else round(stored.deadline - claimed.now, 3),
                None if stored.expires_at is None else round(stored.expires_at - claimed.now, 3),
            )
    return found


@pytest.mark.parametrize("pair", PAIRS, indirect=True, ids=lambda pair: f"{pair[0].name} to {pair[1].name}")
async def test_a_copy_has_the_whole_content(pair: tuple[Backend, Backend]) -> None:
    source, target = pair[0].storage(clock=Clock()), pair[1].storage(clock=Clock(1.0))
    await fill(source)
    calls: list[int] = []
    copied = await copy_records(source, target, progress=lambda so_far: calls.append(so_far.written))
    assert copied.written == copied.verified == 112
    assert (copied.same, copied.kept, copied.damaged) == (0, 0, [])
    assert len(copied.namespaces) == 3
    assert calls == sorted(calls)
    assert len(calls) >= 6
    assert await everything(target) == await everything(source)
    assert {entry.key async for entry in target.scan("bot", state="s1", tag="user:1")} == {
        entry.key async for entry in source.scan("bot", state="s1", tag="user:1")
    }
    assert len(await target.due("bot", before=target.clock() + 100 if target.clock else None)) > 10
    # No record stays claimed in either storage.
    for storage in (source, target):
        assert isinstance(await storage.perform(Claim(storage.address("bot", (1, "k")), "t", 1)), Claimed)


async def test_a_second_copy_writes_only_changed_records(backend: Backend) -> None:
    source, target = backend.storage(), backend.storage()
    await fill(source, 120)
    await copy_records(source, target)
    await source.update_data("bot", (1, "k"), {"n": "changed"})
    await source.set_state("bot", "new", State("f", "s", {}))
    again = await copy_records(source, target)
    assert (again.written, again.same) == (2, 121)
    assert await target.get_data("bot", (1, "k")) == await source.get_data("bot", (1, "k"))


class Breaking(MemoryStorage):
    """Becomes unreachable after some writes."""

    left = 40

    async def perform(self, operation: Operation) -> Any:
        if type(operation) is Apply:
            self.left -= 1
            if self.left < 0:
                raise StorageUnavailable("unreachable", final=True)
        return await super().perform(operation)


async def test_an_interrupted_copy_can_be_continued() -> None:
    clock = Clock()
    source, target = MemoryStorage(clock=clock), Breaking(clock=clock)
    await fill(source, 120)
    with pytest.raises(StorageUnavailable):
        await copy_records(source, target)
    target.left = 1_000_000
    copied = await copy_records(source, target)
    assert copied.same >= 30
    assert copied.written + copied.same == copied.verified == 122
    assert await everything(target) == await everything(source)


async def test_only_the_given_namespaces_are_copied(backend: Backend) -> None:
    source, target = backend.storage(), backend.storage()
    await fill(source, 30)
    await copy_records(source, target, namespaces=["other:bot"])
    assert await target.namespaces() == ["other:bot"]


async def test_invalid_arguments_are_refused_before_anything_is_copied() -> None:
    source, target = MemoryStorage(), MemoryStorage()
    await source.set_data("my_bot", 1, {})
    with pytest.raises(InvalidOption, match=r"write \['my_bot'\]"):
        await copy_records(source, target, namespaces="my_bot")
    with pytest.raises(InvalidOption, match=r"no records of the bot 'my_bott'; it has 'my_bot'"):
        await copy_records(source, target, namespaces=["my_bot", "my_bott"])
    with pytest.raises(InvalidOption, match="source must be a Storage or a URL"):
        await copy_records(None, target)  # type: ignore[arg-type]
    assert await target.namespaces() == []
    # RUNS is accepted even if there are no runs.
    assert (await copy_records(source, target, namespaces=["my_bot", RUNS])).verified == 1


async def test_overwrite_decides_whether_records_of_the_target_are_replaced() -> None:
    source, target = MemoryStorage(), MemoryStorage()
    await source.set_data("bot", 1, {"a": "source"})
    await target.set_state("bot", 1, State("f", "s", {"a": "target", "b": 1}))
    left = await copy_records(source, target, overwrite=False)
    assert (left.kept, left.verified) == (1, 0)
    assert await target.get_state("bot", 1) == State("f", "s", {"a": "target", "b": 1})
    await copy_records(source, target)
    assert await target.get_state("bot", 1) == State(None, None, {"a": "source"})


class Forgetful(MemoryStorage):
    """Returns success, but does not write the fields of one record."""

    async def perform(self, operation: Operation) -> Any:
        if type(operation) is Apply and operation.address.key == "3":
            operation = replaced(operation, change=replaced(operation.change, set={}))
        return await super().perform(operation)


async def test_verify_names_records_that_differ() -> None:
    source, target = MemoryStorage(), Forgetful()
    for key in range(5):
        await source.set_data("bot", key, {"a": key})
    with pytest.raises(NotCopied, match="bot/3") as caught:
        await copy_records(source, target)
    assert caught.value.places == ["bot/3"]


async def test_a_damaged_record_is_copied_unchanged_and_named() -> None:
    source, target = MemoryStorage(), MemoryStorage()
    address = source.address("bot", 1)
    await source.perform(Apply(address, Change(write="w", set={"a": "00000000 [broken"})))
    await source.set_data("bot", 2, {"fine": 1})
    other = source.address("bot", 3)
    await source.perform(Apply(other, Change(write="w", parts={"items": "00000000 [broken"})))
    copied = await copy_records(source, target)
    assert copied.damaged == [address, other]
    assert (await target.perform(Get(address))).fields == {"a": "00000000 [broken"}
    assert (await target.perform(Get(other, parts=True))).parts == {"items": "00000000 [broken"}
    assert await target.get_data("bot", 2) == {"fine": 1}


@pytest.mark.parametrize("target", backends.ALL)
async def test_damaged_rows_of_sqlite_are_copied_and_named(target: type[Backend], tmp_path: Path) -> None:
    path = str(tmp_path / "damaged.db")
    url = f"sqlite:///{path}"
    async with open_storage(url) as source:
        for key in range(1, 4):
            async with Slot(source, "bot", key) as slot:
                slot.flow, slot.state, slot.data = "form", "name", {"a": key}
                await slot.commit(parts={"p": key, "q": key})
        addresses = [source.address("bot", key) for key in (1, 2)]
    connection = apsw.Connection(path)
    connection.execute("UPDATE record SET checksum = checksum + 1 WHERE key = '1'")
    connection.execute("DELETE FROM part WHERE key = '2' AND name = 'q'")
    connection.close()
    backend = target(tmp_path)
    try:
        async with backend.storage() as storage:
            copied = await copy_records(url, storage)
            assert (copied.written, copied.verified) == (3, 3)
            assert sorted(copied.damaged) == addresses
            for read in (storage.get_state, storage.get_data):
                with pytest.raises(CorruptRecord):
                    await read("bot", 1)
            seal, record = storage.seal(addresses[1]), await storage.perform(Get(addresses[1], parts=True))
            with pytest.raises(CorruptRecord):
                [seal.body("p", name, text) for name, text in record.parts.items()]
            assert await storage.get_state("bot", 3) == State("form", "name", {"a": 3})
    finally:
        await backend.close()


class Paging(MemoryStorage):
    """Counts the parts that are read at once, and lets another process write between pages."""

    def __init__(self, *writes: Change) -> None:
        super().__init__()
        self.most = 0
        self.writes = list(writes)

    async def perform(self, operation: Operation) -> Any:
        result = await super().perform(operation)
        if isinstance(operation, Get) and isinstance(result, Stored) and result.parts is not None:
            self.most = max(self.most, len(result.parts))
            if self.writes:
                await super().perform(Apply(operation.address, self.writes.pop()))
        return result


async def with_many_parts(storage: Storage, count: int) -> Address:
    address = storage.address("bot", 1)
    seal = storage.seal(address)
    parts = {f"part/{number:05}": seal.seal("p", f"part/{number:05}", number) for number in range(count)}
    fields = seal.fields({"a": 1})
    await storage.perform(Apply(address, Change(write=storage.ids(), set=fields, parts=parts, limit=1 << 30)))
    return address


@pytest.mark.parametrize("count", [200, 450])
async def test_many_parts_are_copied_in_pages(backend: Backend, count: int, constants: Constants) -> None:
    constants(copy_parts_at_once=200)
    source, target, again = Paging(), backend.storage(), Paging()
    address = await with_many_parts(source, count)
    for one, other in ((source, target), (target, again)):
        copied = await copy_records(one, other)
        assert (copied.written, copied.verified, copied.damaged) == (1, 1, [])
        assert (await copy_records(one, other)).same == 1
    assert source.most <= 200 and again.most <= 200
    expected, found = [await storage.perform(Get(address, Range())) for storage in (source, again)]
    assert (found.fields, list(found.parts.items())) == (expected.fields, list(expected.parts.items()))
    part = f"part/{count - 1:05}"
    await target.perform(Apply(address, Change(write="w", parts={part: "00000000 damaged"}, limit=1 << 30)))
    assert (await copy_records(target, MemoryStorage())).damaged == [address]


async def test_verify_names_a_record_of_which_one_of_many_parts_differs(constants: Constants) -> None:
    class LosesOne(MemoryStorage):
        async def perform(self, operation: Operation) -> Any:
            if isinstance(operation, Apply):
                parts = {name: text for name, text in operation.change.parts.items() if name != "part/00099"}
                operation = replaced(operation, change=replaced(operation.change, parts=parts))
            return await super().perform(operation)

    constants(copy_parts_at_once=10)
    source = MemoryStorage()
    await with_many_parts(source, 100)
    with pytest.raises(NotCopied):
        await copy_records(source, LosesOne())


async def test_a_record_that_is_written_while_it_is_copied_is_read_again(constants: Constants) -> None:
    constants(copy_parts_at_once=10)
    late = Change(write="late", parts={"part/00000": None}, limit=1 << 30)
    source, target = Paging(late), MemoryStorage()
    address = await with_many_parts(source, 100)
    assert (await copy_records(source, target)).verified == 1
    assert len((await target.perform(Get(address, Range()))).parts) == 99
    source, target = Paging(*(replaced(late, write=f"w{number}") for number in range(9))), MemoryStorage()
    await with_many_parts(source, 100)
    with pytest.raises(VersionChanged):
        await copy_records(source, target)


async def test_a_record_that_stays_held_raises_busy() -> None:
    source, target = MemoryStorage(), MemoryStorage()
    await source.set_data("bot", 1, {"a": 1})
    async with Slot(source, "bot", 1):
        with pytest.raises(Busy):
            await copy_records(source, target, wait=0.1)
    copied: Copied = await copy_records(source, target)
    assert copied.verified == 1


@pytest.mark.parametrize("where", ["source", "target"])
async def test_a_copy_that_waits_for_held_records_logs_one_of_them(
    where: str, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants(copy_waits_silently=0.05)
    clock = Clock()
    source, target = MemoryStorage(clock=clock), MemoryStorage(clock=clock)
    for key in range(3):
        await source.set_data("bot", key, {"a": 1})
        # As an earlier copy leaves them that was killed.
        held = source if where == "source" else target
        await held.perform(Claim(held.address("bot", key), "killed", 30))
    copying = asyncio.create_task(copy_records(source, target))
    await until(lambda: caplog.records)
    clock.advance(31)
    assert (await copying).verified == 3
    [line] = [each.getMessage() for each in caplog.records if each.name == claims.logger.name]
    assert re.match(
        r"waiting for bot/[012] in memory: it is held, .* by a process that was killed, for up to 30 s", line
    )


async def test_a_storage_is_not_copied_onto_itself() -> None:
    storage = MemoryStorage()
    with pytest.raises(InvalidOption):
        await copy_records(storage, storage)


async def test_queues_and_priorities_are_copied(backend: Backend) -> None:
    async with MemoryStorage() as source, backend.storage() as target:
        for key, queue in ((1, Queue("q", 1)), (2, Queue("q", 2)), (3, Queue("r")), (4, None)):
            await source.set_state("bot", key, State("f", "s"))
            await source.perform(Apply(source.address("bot", key), Change(write=source.ids(), queue=queue)))
        await copy_records(source, target)
        assert await target.queued("bot", "q") == [target.address("bot", key) for key in (2, 1)]
        assert await target.queues("bot") == ["q", "r"]
        # A record that has left its queue leaves it in the target too.
        await source.perform(Apply(source.address("bot", 1), Change(write=source.ids(), queue=None)))
        assert (await copy_records(source, target)).written == 1
        assert await target.queued("bot", "q") == [target.address("bot", 2)]


async def with_tags(storage: Storage, bot: str, *keys: int) -> None:
    for key in keys:
        async with Slot(storage, bot, key) as slot:
            slot.flow, slot.state = "form", "name"
            await slot.commit(tags=(f"user:{key}",), memo=[key])


async def test_records_that_are_gone_in_the_source_are_counted_and_removed_on_request(backend: Backend) -> None:
    source, target = backend.storage(), backend.storage()
    await with_tags(source, "bot", 1, 2, 3)
    await with_tags(source, "old bot", 4)
    assert (await copy_records(source, target)).extra == 0
    await source.clear("bot", 1)
    for bot, key in (("bot", 2), ("old bot", 4)):
        await source.forget(source.address(bot, key))
    again = await copy_records(source, target)
    assert (again.same, again.extra, again.removed, again.changed) == (1, 3, 0, 0)
    assert await target.get_state("bot", 2) == State("form", "name", {})
    # Without a comparison nothing of the target is read.
    assert (await copy_records(source, target, verify=False)).extra == 0
    some = await copy_records(source, target, namespaces=["bot"], remove=True)
    assert (some.same, some.extra, some.removed) == (1, 0, 2)
    assert [entry.key async for entry in target.scan("old bot")] == [4]
    every = await copy_records(source, target, remove=True, verify=False)
    assert (every.extra, every.removed) == (0, 1)
    for bot, left in (("bot", [3]), ("old bot", [])):
        assert [entry.key async for entry in target.scan(bot)] == left
    # Nothing of a user who was forgotten is left.
    assert await target.traces("bot", "user:2") == []
    assert await target.perform(Get(target.address("bot", 3))) is not None


async def test_a_record_that_is_written_in_the_target_is_not_removed() -> None:
    class Late(MemoryStorage):
        """Another process writes a record just before it is removed."""

        async def perform(self, operation: Operation) -> Any:
            if isinstance(operation, Apply) and operation.change.delete:
                await super().perform(Apply(operation.address, Change(write="late")))
            return await super().perform(operation)

    source, target = MemoryStorage(), Late()
    await with_tags(target, "bot", 1)
    copied = await copy_records(source, target, remove=True)
    assert (copied.extra, copied.removed) == (1, 0)
    assert await target.perform(Get(target.address("bot", 1))) is not None


async def test_records_that_change_after_they_were_copied_are_no_differences(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = backend.storage(), backend.storage()
    await with_tags(source, "bot", 1, 2, 3, 4)

    async def change_both() -> None:
        await source.set_data("bot", 1, {"a": "changed"})
        await source.clear("bot", 2)
        await source.set_state("bot", 5, State("form", "new"))
        # The target is wrong, and the source was not changed.
        await target.set_data("bot", 4, {"a": "wrong"})

    change = change_both
    changing: asyncio.Task[None] | None = None
    compare = copy._Copier.compare

    async def compare_later(self: copy._Copier, address: Address) -> None:
        nonlocal changing
        if changing is None:
            changing = asyncio.create_task(change())
        await asyncio.shield(changing)
        await compare(self, address)

    monkeypatch.setattr(copy._Copier, "compare", compare_later)
    with pytest.raises(NotCopied) as caught:
        await copy_records(source, target)
    assert caught.value.places == ["bot/4"]
    # Only the records that were changed since are copied, and nothing changes meanwhile.
    again = await copy_records(source, target, remove=True)
    assert (again.written, again.same, again.removed, again.changed) == (3, 1, 1, 0)

    async def change_source() -> None:
        await source.set_data("bot", 1, {"a": "again"})
        await source.clear("bot", 6)
        await source.set_state("bot", 7, State("form", "new"))

    changing, change = None, change_source
    await source.set_state("bot", 6, State("form", "name"))
    live = await copy_records(source, target)
    assert live.written == 1
    # 1 was changed, and 6 was copied and then cleared; 7 is not listed by all backends.
    assert (live.verified, live.extra) == (3, 0)
    assert live.changed in (2, 3)


async def test_a_bot_is_copied_with_its_logs_inbox_and_quarantine(backend: Backend) -> None:
    source, target = backend.storage(), backend.storage()
    for bot in ("bot", "other:bot"):
        await source.set_state(bot, 1, State("form", "name"))
        await Log(source, bot, 1).append("Hello")
        await source.perform(Apply(source.address(INBOX, bot), Change(write="w", parts={"1": "update"})))
        address = source.address(bot, 2)
        await source.perform(Apply(address, Change(write="w", set={"a": "00000000 [broken"})))
        with pytest.raises(CorruptRecord) as damaged:
            await source.get_data(bot, 2)
        log = Log(source, bot, 1).address
        await source.quarantine(log, await source.perform(Get(log, parts=True)), damaged.value)
    copied = await copy_records(source, target, namespaces=["other:bot"])
    assert (copied.written, copied.verified, copied.extra) == (6, 6, 0)
    assert await target.namespaces() == sorted([INBOX, LOGS, QUARANTINE, "other:bot"])
    assert [entry.value for entry in await Log(target, "other:bot", 1).read()] == ["Hello"]
    assert await Log(target, "bot", 1).read() == []
    assert await target.quarantined("other:bot", 2) is not None
    # Those of other bots are not removed.
    await copy_records(source, target)
    assert (await copy_records(source, target, namespaces=["bot"], remove=True)).removed == 0
    # The log, and its copy in quarantine.
    await source.forget(Log(source, "bot", 1).address)
    assert (await copy_records(source, target, namespaces=["bot"], remove=True)).removed == 2
    assert await Log(target, "other:bot", 1).read() != []
