"""The audit: each change is in the storage with who, what, before and after, and without secrets."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from stepwell.fsm import FSM
from stepwell.operate import audit
from stepwell.operate.audit import ChangedThing, record_change, recorded
from stepwell.operate.edits import Edit, clear, edit, forget
from stepwell.operate.record import read
from stepwell.storage import Storage
from tests.backends import Backend
from tests.constants import Constants


@pytest.fixture
async def storage(backend: Backend) -> AsyncIterator[Storage]:
    async with backend.storage(backend.place()) as storage:
        yield storage


async def _filled(storage: Storage) -> FSM:
    fsm = FSM("shop", storage=storage, flows=[], run_timers=False)
    async with fsm.conversation(key=(42, 42)) as ctx:
        ctx.update_data(name="Anna", password="hunter2")
    return fsm


@pytest.mark.every_backend
async def test_a_change_has_its_values_before_and_after_with_secrets_masked(storage: Storage) -> None:
    await _filled(storage)
    address = storage.address("shop", (42, 42))
    for fields in ({"name": "Bob", "password": "hunter3"}, {"name": "x" * 10_000}):
        version = (await read(storage, address)).version
        await edit(storage, address, Edit(fields=fields), version=version, who="anna\n")
    newest, oldest = await recorded(storage, limit=10)
    assert (oldest.who, oldest.what) == ("anna\\u000a", "changed field name, field password of shop (42,42)")
    assert oldest.subject is not None
    assert oldest.subject[:3] == ("record", "shop", "(42,42)")
    assert oldest.before == {"name": "Anna", "password": "•••"}
    assert oldest.after == {"name": "Bob", "password": "•••"}
    assert newest.after is not None
    assert len(newest.after["name"]) < 1000
    assert await recorded(storage, before=newest.number, limit=10) == [oldest]


@pytest.mark.every_backend
async def test_who_is_forgotten_leaves_no_values_in_the_audit(storage: Storage) -> None:
    fsm = await _filled(storage)
    address = storage.address("shop", (42, 42))
    await edit(storage, address, Edit(fields={"name": "Bob"}), version=(await read(storage, address)).version, who="a")
    await fsm.forget(user=42)
    (change,) = await recorded(storage, limit=10)
    assert (change.who, change.before, change.after) == ("a", None, None)
    await _filled(storage)
    await edit(storage, address, Edit(fields={"name": "Bob"}), version=(await read(storage, address)).version, who="b")
    await forget(storage, address, version=(await read(storage, address)).version, who="b")
    assert [(each.what, each.before) for each in await recorded(storage, limit=2)] == [
        ("forgot shop (42,42)", None),
        ("changed field name of shop (42,42)", None),
    ]


async def test_the_audit_keeps_the_last_changes(storage: Storage, constants: Constants) -> None:
    constants(audit_keep=10)
    for number in range(1, 101):
        await record_change(storage, "anna", f"did {number}")
    found = await recorded(storage, limit=100)
    assert [each.what for each in found] == [f"did {number}" for number in range(100, 90, -1)]


async def test_a_change_that_cannot_be_recorded_is_still_made_and_logged(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, audit.LOGGER)
    await storage.close()
    await record_change(
        storage, "anna", "cleared shop (42,42)", ChangedThing("record", "shop", "(42,42)"), before={"a": 1}
    )
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "anna cleared shop (42,42)",
        "a change was made and is not in the audit",
    ]


async def test_the_end_of_a_conversation_shows_what_it_had(storage: Storage) -> None:
    await _filled(storage)
    address = storage.address("shop", (42, 42))
    await clear(storage, address, version=(await read(storage, address)).version, who="anna")
    (change,) = await recorded(storage, limit=10)
    assert change.before == {"name": "Anna", "password": "•••"}
    assert change.after is None
