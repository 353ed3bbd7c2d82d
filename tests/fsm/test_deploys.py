"""Deploys: a renamed state, a removed flow, a changed field, a rollback. Every conversation can continue."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import State, Storage
from stepwell.fsm import FSM, Context, Flow, state
from stepwell.record import Change, OpenedHead, Place
from stepwell.storage import Apply
from tests.backends import Backend


class First(Flow, name="form"):
    name = state(to=["phone"])
    phone = state(to=[])
    default_state = name


class Second(Flow, name="form", revision=2):
    """The second revision: phone is renamed to email, and age is a number."""

    name = state(to=["email"])
    email = state(to=["done"])
    done = state(to=[])
    default_state = name

    @staticmethod
    def migrate(old_revision: int, state: str | None, data: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
        data["age"] = int(data["age"])
        return ("email" if state == "phone" else state), data


class Third(Flow, name="form", revision=3):
    name = state(to=["email"])
    email = state(to=[])
    default_state = name

    @classmethod
    def migrate(cls, old_revision: int, state: str | None, data: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
        if old_revision == 1:
            state, data = Second.migrate(1, state, data)
        return ("email" if state == "done" else state), {**data, "from": old_revision}


@pytest.fixture
def storage(backend: Backend) -> Storage:
    return backend.storage()


def release(storage: Storage, *flows: Any, **options: Any) -> FSM:
    return FSM("bot", storage=storage, flows=flows, run_timers=False, **options)


async def at_phone(storage: Storage, key: Any = 1, age: Any = "7") -> None:
    async with release(storage, First).conversation(key=key) as ctx:
        ctx.start_flow(First)
        ctx.update_data(age=age)
        ctx.transition("phone")


async def test_a_renamed_state_and_a_changed_field_are_migrated_at_the_next_update(storage: Storage) -> None:
    await at_phone(storage)
    async with release(storage, Second).conversation(key=1) as ctx:
        assert (ctx.state, ctx.data) == ("email", {"age": 7})
        assert ctx.transition("done")
    assert await storage.get_state("bot", 1) == State("form", "done", {"age": 7})
    async with release(storage, Second).conversation(key=1) as ctx:
        assert ctx.back(), "the states of the history that still exist are kept"
        assert ctx.state == "email"


async def test_a_migration_is_written_once_and_not_repeated(storage: Storage) -> None:
    await at_phone(storage)
    async with release(storage, Third).conversation(key=1) as ctx:
        assert ctx.data == {"age": 7, "from": 1}
    async with release(storage, Third).conversation(key=1) as ctx:
        assert ctx.data == {"age": 7, "from": 1}
    assert await storage.get_state("bot", 1) == State("form", "email", {"age": 7, "from": 1})


async def test_a_handler_that_fails_leaves_the_record_unchanged(storage: Storage) -> None:
    await at_phone(storage)
    with pytest.raises(ZeroDivisionError):
        async with release(storage, Second).conversation(key=1):
            raise ZeroDivisionError
    assert await storage.get_state("bot", 1) == State("form", "phone", {"age": "7"})


async def test_all_records_can_be_migrated_at_once_and_a_bad_record_does_not_stop_others(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    for key in range(6):
        await at_phone(storage, key, age="x" if key == 3 else str(key))
    await storage.set_state("bot", "other", State("else", "where"))
    seen: list[int] = []
    fsm = release(storage, Second)
    report = await fsm.migrate(progress=seen.append)
    assert report.done == 5
    assert [key for key, _ in report.failed] == [3]
    assert "ValueError" in str(report.failed[0][1])
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert "is unchanged" in caplog.text
    assert await storage.get_state("bot", 3) == State("form", "phone", {"age": "x"})
    assert await storage.get_state("bot", 4) == State("form", "email", {"age": 4})
    assert (await fsm.migrate()).done == 0


async def test_a_record_that_cannot_be_migrated_can_still_be_used(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    await at_phone(storage, age="x")
    async with release(storage, Second).conversation(key=1) as ctx:
        assert (ctx.state, ctx.data) == ("phone", {"age": "x"})
    assert "could not be migrated" in caplog.text
    assert await storage.get_state("bot", 1) == State("form", "phone", {"age": "x"})
    async with release(storage, Second).conversation(key=1) as ctx:
        assert ctx.start_flow(Second)
    assert await storage.get_state("bot", 1) == State("form", "name", {})


@pytest.mark.parametrize(
    "wrong",
    [None, ("email",), ("nowhere", {}), ("email", 7), ("email", {"x": object()})],
    ids=lambda wrong: repr(wrong)[:20],
)
async def test_a_migration_with_an_invalid_result_changes_nothing(
    storage: Storage, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(Flow, name="form", revision=2):
        name = state()
        email = state()

        @staticmethod
        def migrate(old_revision: int, state: str | None, data: dict[str, Any]) -> Any:
            data.clear()
            return wrong

    await at_phone(storage)
    async with release(storage, Wrong).conversation(key=1) as ctx:
        assert ctx.data == {"age": "7"}
    assert "could not be migrated" in caplog.text
    assert await storage.get_state("bot", 1) == State("form", "phone", {"age": "7"})


async def test_a_rollback_keeps_all_records_and_a_second_deploy_does_not_migrate_twice(storage: Storage) -> None:
    await at_phone(storage)
    async with release(storage, Second).conversation(key=1) as ctx:
        ctx.update_data(seen="by two")
    old = release(storage, First)
    async with old.conversation(key=1) as ctx:
        assert ctx.state == "email", "the old release does not know it, and keeps it"
        assert ctx.set_state("phone", flow=First)
        ctx.update_data(more=1)
    async with release(storage, Second).conversation(key=1) as ctx:
        assert ctx.data == {"age": 7, "seen": "by two", "more": 1}
        ctx.set_state("email")
    assert await storage.get_state("bot", 1) == State("form", "email", {"age": 7, "seen": "by two", "more": 1})


async def test_a_user_can_leave_a_flow_that_was_removed(storage: Storage) -> None:
    await at_phone(storage)

    class Other(Flow, name="other"):
        a = state()
        default_state = a

    fsm = release(storage, Other)
    async with fsm.conversation(key=1) as ctx:
        assert (ctx.flow, ctx.state, ctx.data) == ("form", "phone", {"age": "7"})
        assert ctx.start_flow(Other)
    assert await storage.get_state("bot", 1) == State("other", "a", {})


async def test_an_outer_flow_is_migrated_when_it_continues(storage: Storage) -> None:
    class Inner(Flow, name="inner"):
        a = state()
        default_state = a

    await at_phone(storage)
    async with release(storage, First, Inner).conversation(key=1) as ctx:
        ctx.push_flow(Inner)
    async with release(storage, Second, Inner).conversation(key=1) as ctx:
        ctx.pop_flow()
        assert (ctx.state, ctx.data) == ("email", {"age": 7})


async def test_a_new_revision_without_migrate_uses_old_records_unchanged(storage: Storage) -> None:
    class Same(Flow, name="form", revision=2):
        name = state()
        phone = state()

    await at_phone(storage)
    async with release(storage, Same).conversation(key=1) as ctx:
        assert (ctx.state, ctx.data) == ("phone", {"age": "7"})
        ctx.update_data(b=1)


async def test_a_record_without_a_revision_has_the_first_revision(storage: Storage) -> None:
    address = storage.address("bot", 1)
    seal = storage.seal(address)
    change = Change(
        write=storage.ids(), head=seal.head(OpenedHead(Place("form", "phone"))), set=seal.fields({"age": "7"})
    )
    await storage.perform(Apply(address, change))
    async with release(storage, Second).conversation(key=1) as ctx:
        assert ctx.data == {"age": 7}


async def test_a_started_flow_has_its_present_revision(storage: Storage) -> None:
    calls: list[Any] = []

    class Fresh(Flow, name="form", revision=5):
        name = state()
        default_state = name

        @staticmethod
        def migrate(old_revision: int, state: str | None, data: dict[str, Any]) -> Any:
            calls.append(old_revision)
            return state, data

    async def begin(ctx: Context) -> None:
        ctx.start_flow(Fresh)

    fsm = release(storage, Fresh)
    await fsm.handle(None, begin, key=1)
    await fsm.handle(None, lambda ctx: ctx.update_data(a=1), key=1)
    assert calls == []
