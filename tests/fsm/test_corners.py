"""Combinations of saves, inner flows, timers, deploys, moves and expiry."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any

import pytest

from stepwell import State, Storage
from stepwell.errors import InvalidOption, StorageUnavailable
from stepwell.fsm import FSM, Context, DuplicateUpdate, Flow, Router, command, keys, state
from stepwell.testing import Clock, FaultyStorage
from tests.backends import Backend
from tests.constants import Constants
from tests.fsm.conftest import Form, Make, Open, message
from tests.until import until

KEY = (42, 42)


class Timed(Flow, name="timed"):
    ask = state(to=["ask"], timeout=60, on_timeout="late")
    late = state()
    default_state = ask


@pytest.fixture
def storage(backend: Backend, clock: Clock) -> Storage:
    return backend.storage(clock=clock)


async def test_a_conversation_that_was_cleared_and_saved_leaves_no_record(fsm: FSM) -> None:
    await fsm.handle(message(update_id=1), lambda ctx: ctx.start_flow(Form))
    async with fsm.conversation(message(update_id=2)) as ctx:
        ctx.clear_flow()
        await ctx.save()
    assert await fsm.storage.get_state("bot", KEY) is None
    assert await fsm.handle(message(update_id=2), lambda ctx: "again") is None


async def test_changes_between_two_inner_flows_are_kept(fsm: FSM) -> None:
    async with fsm.conversation(key=1) as ctx:
        ctx.start_flow(Form)
        ctx.update_data(items=[1])
        ctx.push_flow(Open)
    async with fsm.conversation(key=1) as ctx:
        ctx.pop_flow()
        ctx.data["items"].append(2)
        ctx.push_flow(Open)
    async with fsm.conversation(key=1) as ctx:
        ctx.pop_flow()
        assert ctx.data == {"items": [1, 2]}


async def test_a_duplicate_inside_a_handler_does_not_affect_the_outer_update(fsm: FSM) -> None:
    router = Router(fsm)

    @router.on(command("begin"))
    async def begin(ctx: Context) -> None:
        ctx.start_flow(Form)
        ctx.answer(f"secret for {ctx.update.user.id}")  # type: ignore[union-attr]

    @router.on()
    async def look(ctx: Context) -> None:
        ctx.update_data(seen=True)
        async with fsm.conversation(message("/begin", update_id=1)):
            pytest.fail("it is a duplicate")

    await router.handle(message("/begin", update_id=1))
    with pytest.raises(DuplicateUpdate):
        await router.handle(message("hi", user=43, chat=43, update_id=2))
    with pytest.raises(DuplicateUpdate):
        await fsm.handle(message("hi", user=43, chat=43, update_id=2), look)


async def test_a_conversation_by_key_needs_no_update_if_a_function_reads_ids(make_fsm: Make) -> None:
    fsm = make_fsm(update_id=lambda update: update.raw["event_id"])
    async with fsm.conversation(key=("T1", "U1")) as ctx:
        ctx.start_flow(Form)


async def test_a_record_made_by_key_has_the_tags_of_its_user_and_chat(storage: Storage) -> None:
    for number, (strategy, key, tags) in enumerate(
        [
            (keys.ChatUser(), (-5, 42), {"chat:-5", "user:42"}),
            (keys.ChatUser(), (0, 42), {"user:42"}),
            (keys.User(), (42,), {"user:42"}),
            (keys.Chat(), (-5,), {"chat:-5"}),
            (keys.ChatTopic(), (-5, 7), {"chat:-5"}),
            (keys.ChatTopicUser(), (-5, 7, 42), {"chat:-5", "user:42"}),
            (keys.Business(keys.ChatUser()), ("b1", (-5, 42)), {"chat:-5", "user:42"}),
            (keys.ChatUser(), "by hand", set()),
            (lambda update: 1, 7, set()),
        ]
    ):
        fsm = FSM(f"bot{number}", storage=storage, flows=[Form], key=strategy)
        async with fsm.conversation(key=key) as ctx:
            ctx.start_flow(Form)
        (entry,) = [entry async for entry in fsm.find()]
        assert set(entry.tags) == tags


async def test_a_timer_answers_in_its_topic_and_for_its_business_account(storage: Storage, clock: Clock) -> None:
    sent: list[Any] = []

    async def send(call: dict[str, Any]) -> None:
        sent.append({name: value for name, value in call.items() if name not in ("method", "text")})

    class Reminding(Flow, name="reminding"):
        ask = state(timeout=60, on_timeout=lambda ctx: ctx.answer("still there?"))
        default_state = ask

    for number, (strategy, key) in enumerate(
        [(keys.ChatTopicUser(), (-5, 7, 42)), (keys.Business(keys.ChatUser()), ("b1", (42, 42))), (keys.User(), (42,))]
    ):
        fsm = FSM(f"bot{number}", storage=storage, flows=[Reminding], key=strategy, send=send, run_timers=False)
        async with fsm.conversation(key=key) as ctx:
            ctx.start_flow(Reminding)
        clock.advance(61)
        assert await fsm.tick() == 1
    assert sent == [
        {"chat_id": -5, "message_thread_id": 7},
        {"chat_id": 42, "business_connection_id": "b1"},
        {"chat_id": 42},
    ]


async def test_an_async_filter_is_refused(fsm: FSM) -> None:
    async def is_admin(ctx: Context) -> bool:
        return False

    class Admin:
        async def __call__(self, ctx: Context) -> bool:
            return False

    for wrong in (is_admin, Admin()):
        with pytest.raises(InvalidOption, match="async def"):
            Router(fsm).on(command("ban"), wrong)
    router = Router(fsm)
    router.on(lambda ctx: is_admin(ctx))(lambda ctx: pytest.fail("it was let through"))
    with pytest.raises(InvalidOption, match="awaitable"):
        await router.handle(message("/ban"))


async def test_entering_a_state_again_is_a_change_however_often(fsm: FSM) -> None:
    class Menu(Flow, name="menu"):
        top = state(to=["top"])
        default_state = top

    fsm = FSM("bot", storage=fsm.storage, flows=[Menu])
    await fsm.handle(message(update_id=1), lambda ctx: ctx.start_flow(Menu))
    runs = 0

    def again(ctx: Context) -> None:
        nonlocal runs
        runs += 1
        ctx.transition("top")

    for number in range(2, 30):
        for _ in range(2):
            await fsm.handle(message(update_id=number), again)
    assert runs == 28


async def test_timers_of_a_renamed_state_fire_after_the_deploy(storage: Storage, clock: Clock) -> None:
    class Next(Flow, name="timed", revision=2):
        question = state(timeout=60, on_timeout="late")
        late = state()
        default_state = question

        @staticmethod
        def migrate(old_revision: int, state: str | None, data: dict[str, Any]) -> Any:
            return "question" if state == "ask" else state, {**data, "migrated": True}

    async with FSM("bot", storage=storage, flows=[Timed]).conversation(key=1) as ctx:
        ctx.start_flow(Timed)
    clock.advance(61)
    assert await FSM("bot", storage=storage, flows=[Next]).tick() == 1
    assert await storage.get_state("bot", 1) == State("timed", "late", {"migrated": True})


async def test_a_slow_timer_and_a_failing_timer_do_not_delay_others(backend: Backend, constants: Constants) -> None:
    # The machine waits so long for the slow timer before it cancels it.
    constants(outbox_stop_timeout=0.5)
    released = asyncio.Event()

    async def on_timeout(ctx: Context) -> None:
        if ctx.key == 0:
            await released.wait()
        if ctx.key == 1:
            raise StorageUnavailable("this key's shard is away")
        ctx.set_state("late")

    class Slow(Flow, name="slow"):
        ask = state(timeout=0.05, on_timeout=on_timeout)
        late = state()
        default_state = ask

    storage = backend.storage()
    async with storage:
        async with FSM("bot", storage=storage, flows=[Slow]) as fsm:
            for key in range(5):
                async with fsm.conversation(key=key) as ctx:
                    ctx.start_flow(Slow)
            await until(lambda: fsm.find(state="late"), lambda late: len(late) >= 3)
        assert [task for task in asyncio.all_tasks() if "stepwell-timer" in task.get_name()] == []


async def test_a_migration_that_returns_a_wrong_field_changes_nothing(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    @dataclasses.dataclass
    class Data:
        n: int = 0

    class Next(Flow, name="timed", revision=2, data=Data):
        ask = state()

        @staticmethod
        def migrate(old_revision: int, state: str | None, data: dict[str, Any]) -> Any:
            return state, data

    async with FSM("bot", storage=storage, flows=[Timed]).conversation(key=1) as ctx:
        ctx.start_flow(Timed)
        ctx.update_data(n="seven")
    report = await FSM("bot", storage=storage, flows=[Next]).migrate()
    assert (report.done, [key for key, _ in report.failed]) == (0, [1])


async def test_back_goes_through_renamed_states_and_skips_removed_ones(storage: Storage) -> None:
    class First(Flow, name="f"):
        a = state()
        b = state()
        c = state()
        gone = state()
        default_state = a

    class Second(Flow, name="f", revision=2):
        a = state()
        bb = state()
        c = state()

        @staticmethod
        def migrate(old_revision: int, state: str | None, data: dict[str, Any]) -> Any:
            return "bb" if state == "b" else state, data

    async with FSM("bot", storage=storage, flows=[First]).conversation(key=1) as ctx:
        ctx.start_flow(First)
        for step in ("b", "gone", "c"):
            ctx.transition(step)
    async with FSM("bot", storage=storage, flows=[Second]).conversation(key=1) as ctx:
        ctx.back()
        assert ctx.state == "bb"
        ctx.back()
        assert ctx.state == "a"


async def test_a_deploy_after_a_rollback_migrates_records_that_moved_meanwhile(storage: Storage) -> None:
    class First(Flow, name="f"):
        name = state()
        email = state()
        default_state = name

    class Second(Flow, name="f", revision=2):
        name = state()
        mail = state()

        @staticmethod
        def migrate(old_revision: int, state: str | None, data: dict[str, Any]) -> Any:
            return "mail" if state == "email" else state, {**data, "times": data.get("times", 0) + 1}

    first, second = (FSM("bot", storage=storage, flows=[flow]) for flow in (First, Second))
    async with first.conversation(key=1) as ctx:
        ctx.start_flow(First)
    async with second.conversation(key=1) as ctx:
        assert ctx.data == {"times": 1}
    async with first.conversation(key=1) as ctx:
        ctx.transition("email")
    async with second.conversation(key=1) as ctx:
        assert (ctx.state, ctx.data) == ("mail", {"times": 1})


async def test_a_repeated_move_does_not_bring_back_a_finished_conversation(clock: Clock) -> None:
    async with FaultyStorage(clock=clock, patience=0) as storage:
        fsm = FSM("bot", storage=storage, flows=[Form])
        async with fsm.conversation(message(user=1, chat=-5)) as ctx:
            ctx.start_flow(Form)
        for fault in range(3, 12):
            storage.after = [len(storage.batches) + fault]
            with contextlib.suppress(ConnectionError):
                await fsm.move_chat(-5, -6)
            storage.after = ()
            clock.advance(60)
            if (
                await storage.get_state("bot", (-6, 1)) is not None
                and await storage.get_state("bot", (-5, 1)) is not None
            ):
                break
        else:
            pytest.fail("no fault came between the two halves")
        async with fsm.conversation(message(user=1, chat=-6)) as ctx:
            ctx.clear_flow()
        await fsm.move_chat(-5, -6)
        assert [entry.key async for entry in fsm.find()] == []


async def test_a_group_moves_although_its_message_has_no_key(storage: Storage) -> None:
    fsm = FSM("bot", storage=storage, flows=[Form])
    async with fsm.conversation(message(user=1, chat=-5)) as ctx:
        ctx.start_flow(Form)
    service = {
        "update_id": 9,
        "message": {"message_id": 1, "chat": {"id": -5, "type": "group"}, "migrate_to_chat_id": -6},
    }
    async with fsm.conversation(service) as ctx:
        assert ctx.key is None
    assert [entry.key async for entry in fsm.find()] == [(-6, 1)]


async def test_an_inner_flow_does_not_prolong_a_fixed_ttl(storage: Storage, clock: Clock) -> None:
    fsm = FSM("bot", storage=storage, flows=[Form, Open], ttl=100, sliding=False)
    async with fsm.conversation(key=1) as ctx:
        ctx.start_flow(Form)
    clock.advance(90)
    async with fsm.conversation(key=1) as ctx:
        ctx.push_flow(Open)
    clock.advance(11)
    assert await storage.get_state("bot", 1) is None


async def test_a_machine_closes_the_storage_that_it_opened_however_it_was_entered() -> None:
    fsm = FSM("bot", storage="memory://", flows=[Form])
    await fsm.handle(message(update_id=1), lambda ctx: None)
    async with fsm:
        async with fsm:
            pass
        assert fsm.storage.is_open
    assert not fsm.storage.is_open


@pytest.mark.parametrize("wrong", [1.5, (1, 2), b"x", True])
async def test_an_id_that_is_neither_int_nor_str_is_refused(fsm: FSM, wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="int or a str"):
        async with fsm.conversation(key=1, update_id=wrong) as ctx:
            ctx.start_flow(Form)


async def test_an_async_policy_for_unknown_states_is_awaited(make_fsm: Make) -> None:
    async def move(ctx: Context, flow: str | None, state: str | None) -> None:
        await asyncio.sleep(0)
        ctx.set_state("email", flow=Form)

    fsm = make_fsm(on_unknown_state=move)
    await fsm.storage.set_state("bot", 1, State("gone", "somewhere"))
    async with fsm.conversation(key=1) as ctx:
        assert ctx.state == "email"


def test_wrong_times_are_refused() -> None:
    for wrong in ({"ttl": float("inf")}, {"ttl": "5"}, {"wait": "1"}, {"wait": float("nan")}, {"lease": float("inf")}):
        with pytest.raises(InvalidOption):
            FSM("bot", storage="memory://", flows=[Form], **wrong)
