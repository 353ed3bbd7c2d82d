"""Records of users and chats are found, deleted and moved; conversations expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stepwell import MemoryStorage, State, Storage
from stepwell.errors import InvalidOption, RecordReplaced, StorageError, StorageUnavailable
from stepwell.fsm import FSM, Context, DuplicateUpdate, Flow, keys, state
from stepwell.record import Address
from stepwell.storage import Claim, Claimed
from stepwell.testing import Clock, FaultyStorage
from tests.backends import Backend
from tests.fsm.conftest import Form, Open, message

OLD, NEW = -100, -1_000_000_000_100


@pytest.fixture
def storage(backend: Backend, clock: Clock) -> Storage:
    return backend.storage(clock=clock)


@pytest.fixture
def fsm(storage: Storage) -> FSM:
    return FSM("bot", storage=storage, flows=[Form, Open], run_timers=False)


async def begin(fsm: FSM, user: int, chat: int, flow: Any = Form, **more: Any) -> None:
    async with fsm.conversation(message(user=user, chat=chat, **more)) as ctx:
        ctx.start_flow(flow)
        ctx.update_data(user=user, chat=chat)


async def found(entries: Any) -> set[Any]:
    return {entry.key async for entry in entries}


async def test_records_are_found_by_user_chat_flow_and_state(fsm: FSM) -> None:
    await begin(fsm, 1, OLD)
    await begin(fsm, 1, 1, Open)
    await begin(fsm, 2, OLD)
    assert await found(fsm.find(user=1)) == {(OLD, 1), (1, 1)}
    assert await found(fsm.find(chat=OLD)) == {(OLD, 1), (OLD, 2)}
    assert await found(fsm.find(user=1, chat=OLD)) == {(OLD, 1)}
    assert await found(fsm.find(user=1, flow=Open)) == {(1, 1)}
    assert await found(fsm.find(flow="form")) == {(OLD, 1), (OLD, 2)}
    assert await found(fsm.find(state="name")) == {(OLD, 1), (OLD, 2)}
    assert await found(fsm.find(state=Form.name)) == {(OLD, 1), (OLD, 2)}
    assert await found(fsm.find(state=None)) == {(1, 1)}
    assert await found(fsm.find(user=3)) == set()
    assert len(await found(fsm.find())) == 3


async def test_a_record_written_through_the_storage_is_found_after_the_machine_has_written_it(fsm: FSM) -> None:
    await fsm.storage.set_state("bot", (1, 1), State("form", "name"))
    assert await found(fsm.find(user=1)) == set()
    assert await fsm.forget(user=1) == 0
    async with fsm.conversation(key=(1, 1)) as ctx:
        ctx.update_data(seen=True)
    assert await found(fsm.find(user=1)) == {(1, 1)}


async def test_a_handler_may_forget_its_own_user_if_it_changes_nothing_afterwards(fsm: FSM) -> None:
    async def forget(ctx: Context) -> int:
        return await fsm.forget(user=1)

    async def forget_and_clear(ctx: Context) -> None:
        await fsm.forget(user=1)
        ctx.clear_flow()

    for handler in (forget, forget_and_clear):
        await begin(fsm, 1, 1, update_id=1)
        await begin(fsm, 1, OLD, update_id=2)
        update = message(user=1, chat=1, update_id=3)
        if handler is forget:
            assert await fsm.handle(update, handler) == 2
        else:
            with pytest.raises(RecordReplaced):
                await fsm.handle(update, handler)
        assert await fsm.forget(user=1) == 0


async def test_forget_deletes_the_traces_of_cleared_conversations_too(fsm: FSM) -> None:
    await begin(fsm, 1, OLD, update_id=1)
    await begin(fsm, 1, 1, update_id=2)
    await begin(fsm, 2, OLD, update_id=3)
    async with fsm.conversation(message(user=1, chat=1, update_id=4)) as ctx:
        ctx.clear_flow()
    assert await fsm.forget(user=1) == 2
    assert await found(fsm.find()) == {(OLD, 2)}
    for key in ((OLD, 1), (1, 1)):
        claimed = await fsm.storage.perform(Claim(fsm.storage.address("bot", key), "T", 1))
        assert isinstance(claimed, Claimed)
        assert (claimed.record, claimed.memo, claimed.base) == (None, None, "")
    assert await fsm.forget(user=1) == 0
    assert await fsm.forget(chat=OLD) == 1
    with pytest.raises(InvalidOption, match="user="):
        await fsm.forget()


@pytest.mark.parametrize(
    "damage",
    [lambda tags: b"!" + tags, lambda tags: tags.replace(b"user:1", b"user:3"), lambda tags: b"7"],
    ids=["unreadable", "another user", "a number"],
)
async def test_forget_works_although_the_tags_of_a_record_are_damaged(
    shared_backend: Backend, damage: Callable[[bytes], bytes]
) -> None:
    url = shared_backend.place()
    storage = shared_backend.storage(url)
    fsm = FSM("bot", storage=storage, flows=[Form, Open], run_timers=False)
    await begin(fsm, 1, 1)
    await begin(fsm, 1, OLD)
    await shared_backend.corrupt(url, storage.address("bot", (1, 1)), "tags", "", damage)
    async with asyncio.timeout(10):
        assert await fsm.forget(user=1) == 2
    assert await storage.traces("bot", "user:1") == []
    assert await storage.get_data("bot", (1, 1)) is None


async def test_forget_raises_if_a_storage_keeps_listing_a_deleted_record() -> None:
    class Stuck(MemoryStorage):
        async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
            return [Address(namespace, "(1,1)")]

    fsm = FSM("bot", storage=Stuck(), flows=[Form], run_timers=False)
    async with asyncio.timeout(10):
        with pytest.raises(StorageError, match=r"bot/\(1,1\)"):
            await fsm.forget(user=1)
    await fsm.storage.close()


def upgrade(way: str, update_id: int = 50) -> dict[str, Any]:
    chat, field, other = (OLD, "migrate_to_chat_id", NEW) if way == "to" else (NEW, "migrate_from_chat_id", OLD)
    update = message(user=1_087_968_824, chat=chat, update_id=update_id, **{field: other})
    del update["message"]["text"]
    return update


@pytest.mark.parametrize("ways", [["to"], ["from"], ["to", "from"], ["from", "to"]], ids="+".join)
async def test_a_group_that_becomes_a_supergroup_keeps_its_state(fsm: FSM, ways: list[str]) -> None:
    await begin(fsm, 1, OLD, update_id=1)
    await begin(fsm, 2, OLD, update_id=2)
    await begin(fsm, 1, 1, update_id=3)
    for number, way in enumerate(ways):
        async with fsm.conversation(upgrade(way, 50 + number)):
            pass
    assert await found(fsm.find()) == {(NEW, 1), (NEW, 2), (1, 1)}
    assert await found(fsm.find(chat=NEW)) == {(NEW, 1), (NEW, 2)}
    assert await found(fsm.find(user=2)) == {(NEW, 2)}
    assert await fsm.storage.get_state("bot", (NEW, 1)) == State("form", "name", {"user": 1, "chat": OLD})
    with pytest.raises(DuplicateUpdate):
        async with fsm.conversation(message(user=1, chat=NEW, update_id=1)):
            pass
    assert await fsm.storage.traces("bot", f"chat:{OLD}") != [], "the old keys leave tombstones for a day"


async def test_a_timer_moves_with_its_chat(storage: Storage, clock: Clock) -> None:
    class Timed(Flow, name="timed"):
        ask = state(timeout=60, on_timeout="late")
        late = state()
        default_state = ask

    fsm = FSM("bot", storage=storage, flows=[Timed], run_timers=False)
    async with fsm.conversation(message(user=1, chat=OLD)) as ctx:
        ctx.start_flow(Timed)
    clock.advance(40)
    assert await fsm.move_chat(OLD, NEW) == 1
    clock.advance(15)
    assert await fsm.tick() == 0
    clock.advance(10)
    assert await fsm.tick() == 1
    assert await storage.get_state("bot", (NEW, 1)) == State("timed", "late", {})


async def test_a_conversation_that_is_active_in_the_new_chat_is_kept(fsm: FSM) -> None:
    await begin(fsm, 1, OLD)
    await begin(fsm, 1, NEW, Open)
    await begin(fsm, 2, OLD)
    await fsm.storage.update_data("bot", (NEW, 2), {"chat": "newer", "extra": 1})
    assert await fsm.move_chat(OLD, NEW) == 2
    assert await fsm.storage.get_state("bot", (NEW, 1)) == State("open", None, {"user": 1, "chat": NEW})
    assert await fsm.storage.get_state("bot", (NEW, 2)) == State(
        "form", "name", {"user": 2, "chat": "newer", "extra": 1}
    )
    assert await found(fsm.find(chat=OLD)) == set()


async def test_an_interrupted_move_loses_nothing_and_can_be_repeated(clock: Clock) -> None:
    finished = False
    for fault in range(4, 60):
        async with FaultyStorage(clock=clock, patience=0) as storage:
            fsm = FSM("bot", storage=storage, flows=[Form, Open])
            for user in (1, 2):
                await begin(fsm, user, OLD)
            storage.after = [len(storage.batches) + fault - 3]
            try:
                await fsm.move_chat(OLD, NEW)
                finished = fault > 12
            except (StorageUnavailable, ConnectionError):
                pass
            storage.after = ()
            clock.advance(60)
            await fsm.move_chat(OLD, NEW)
            for user in (1, 2):
                assert await storage.get_state("bot", (NEW, user)) == State("form", "name", {"user": user, "chat": OLD})
            assert await found(fsm.find()) == {(NEW, 1), (NEW, 2)}
        if finished:
            break
    assert finished


async def test_a_custom_strategy_can_define_how_its_keys_move(storage: Storage) -> None:
    class Language:
        def extract(self, update: Any) -> Any:
            return f"{update.chat.id}/{update.user.language_code}"

        def tags(self, update: Any) -> list[str]:
            return [f"chat:{update.chat.id}"]

        def moved(self, key: str, old: int, new: int) -> str:
            return key.replace(f"{old}/", f"{new}/")

    fsm = FSM("bot", storage=storage, flows=[Form], key=Language)
    await begin(fsm, 1, OLD)
    assert await fsm.move_chat(OLD, NEW) == 1
    assert await found(fsm.find()) == {f"{NEW}/de"}


async def test_the_keys_of_every_strategy_move(storage: Storage) -> None:
    for number, (key, expected) in enumerate(
        {
            keys.Chat(): (NEW,),
            keys.ChatTopic(): (NEW, 0),
            keys.ChatTopicUser(): (NEW, 0, 1),
            keys.ChatUser(): (NEW, 1),
            keys.Business(keys.ChatUser()): (0, (NEW, 1)),
        }.items()
    ):
        fsm = FSM(f"bot{number}", storage=storage, flows=[Form], key=key)
        await begin(fsm, 1, OLD)
        assert await fsm.move_chat(OLD, NEW) == 1, key
        assert await found(fsm.find()) == {expected}
    fsm = FSM("users", storage=storage, flows=[Form], key=keys.User())
    await begin(fsm, 1, OLD)
    assert await fsm.move_chat(OLD, NEW) == 0


# Retention


class Short(Flow, name="short", ttl=10):
    a = state()
    b = state()
    default_state = a


async def test_a_conversation_expires_after_the_ttl_of_its_flow_or_bot(storage: Storage, clock: Clock) -> None:
    fsm = FSM("bot", storage=storage, flows=[Form, Short], ttl=100)
    await begin(fsm, 1, 1, Short)
    await begin(fsm, 2, 2)
    clock.advance(11)
    assert await found(fsm.find()) == {(2, 2)}
    async with fsm.conversation(message(user=1, chat=1)) as ctx:
        assert (ctx.flow, ctx.data) == (None, {})
    clock.advance(100)
    assert await found(fsm.find()) == set()


async def test_a_ttl_slides_with_every_write_or_stays_fixed(storage: Storage, clock: Clock) -> None:
    for sliding in (True, False):
        fsm = FSM(f"bot {sliding}", storage=storage, flows=[Short], sliding=sliding)
        await begin(fsm, 1, 1, Short)
        for _ in range(3):
            clock.advance(6)
            async with fsm.conversation(message(user=1, chat=1)) as ctx:
                if ctx.flow is not None:
                    ctx.set_state("b" if ctx.state == "a" else "a")
        assert (await found(fsm.find()) == {(1, 1)}) is sliding


async def test_an_expired_conversation_is_passed_to_on_expired(backend: Backend, clock: Clock) -> None:
    events: list[Any] = []
    called = asyncio.Event()

    async def on_expired(event: Any) -> None:
        events.append(event)
        called.set()

    storage = backend.storage(clock=clock, sweep_every=0.05)
    async with FSM("bot", storage=storage, flows=[Short], on_expired=on_expired) as fsm:
        await begin(fsm, 1, 1, Short)
        await storage.init("other", ttl=5)
        await storage.set_state("other", 1, State("short", "a"))
        clock.advance(11)
        async with asyncio.timeout(10):
            await called.wait()
        await asyncio.sleep(0.2)
    assert [tuple(event) for event in events] == [((1, 1), "short", "a")]


def test_wrong_retention_options_raise_at_once() -> None:
    for wrong in ({"ttl": 0}, {"on_expired": 7}, {"send": 7}):
        with pytest.raises(InvalidOption):
            FSM("bot", storage="memory://", flows=[Form], **wrong)
