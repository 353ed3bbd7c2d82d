"""Updates are handled once, in order and completely or not at all."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import MemoryStorage, State
from stepwell.errors import AlreadyHeld, ContextClosed, InsideLoop, InvalidOption, RecordReplaced, UsageError, WrongLoop
from stepwell.fsm import FSM, Busy, Context, DuplicateUpdate, LeaseLost, NoKeyError, Router, Update, keys, text
from stepwell.record import DAY, Limits
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Get, Release
from stepwell.testing import Clock, FaultyStorage
from tests.backends import Backend
from tests.fsm.conftest import POLL, Form, Make, message
from tests.insides import cells_of

KEY = (42, 42)


def kinds(storage: FaultyStorage) -> list[type]:
    return [type(operation) for batch in storage.batches for operation in batch]


async def register(ctx: Any) -> str:
    ctx.start_flow(Form)
    return "started"


async def version(fsm: FSM, key: Any = KEY) -> Any:
    record = await fsm.storage.perform(Get(fsm.storage.address("bot", key)))
    return None if record is None else record.version


async def test_one_update_costs_two_round_trips_and_one_write() -> None:
    async with FaultyStorage() as storage:
        fsm = FSM("bot", storage=storage, flows=[Form])
        async with fsm.conversation(message(update_id=1)) as ctx:
            ctx.start_flow(Form)
        assert kinds(storage) == [Claim, Apply]


async def test_an_update_that_changed_nothing_costs_no_write() -> None:
    async with FaultyStorage() as storage:
        fsm = FSM("bot", storage=storage, flows=[Form])
        async with fsm.conversation(message(update_id=1)):
            pass
        assert kinds(storage) == [Claim, Release]


async def test_handle_returns_the_result_of_the_handler(fsm: FSM) -> None:
    assert await fsm.handle(message(update_id=1), register) == "started"
    assert await fsm.handle(message(update_id=2), lambda ctx: ctx.state) == "name"
    assert await fsm.storage.get_state("bot", KEY) == State("form", "name", {})


async def test_an_update_that_is_delivered_again_is_not_handled_again(fsm: FSM) -> None:
    handled: list[int] = []

    async def count(ctx: Any) -> str:
        handled.append(1)
        ctx.update_data(n=len(handled))
        return "done"

    assert await fsm.handle(message(update_id=7), count) == "done"
    assert await fsm.handle(message(update_id=7), count) is None
    assert await fsm.handle(message(update_id=8), count) == "done"
    assert await fsm.handle(message(update_id=7), count) is None
    assert await fsm.storage.get_data("bot", KEY) == {"n": 2}
    with pytest.raises(DuplicateUpdate, match="7"):
        async with fsm.conversation(message(update_id=7)):
            pytest.fail("it was entered")


async def test_a_duplicate_may_be_entered_but_changes_are_refused(make_fsm: Make) -> None:
    fsm = make_fsm(on_duplicate="enter")
    await fsm.handle(message(update_id=7), register)
    before = await version(fsm)
    async with fsm.conversation(message(update_id=7)) as ctx:
        assert ctx.duplicate
        assert ctx.state == "name"
        for change in (
            lambda: ctx.transition("email"),
            lambda: ctx.start_flow(Form),
            lambda: ctx.set_state("email"),
            lambda: ctx.back(),
            lambda: ctx.update_data(a=1),
            lambda: ctx.set_data({}),
            lambda: ctx.clear_flow(),
        ):
            with pytest.raises(DuplicateUpdate):
                change()
        with pytest.raises(DuplicateUpdate):
            await ctx.save()
    with pytest.raises(DuplicateUpdate):
        async with fsm.conversation(message(update_id=7)) as ctx:
            ctx.data["a"] = 1
    assert await version(fsm) == before
    async with fsm.conversation(message(update_id=8)) as ctx:
        assert not ctx.duplicate


async def test_the_update_with_the_id_0_is_handled_once(make_fsm: Make) -> None:
    fsm = make_fsm(on_duplicate="enter")
    assert await fsm.handle(message(update_id=0), register) == "started"
    assert await fsm.handle(message(update_id=0), register) is None
    async with fsm.conversation(message(update_id=0)) as ctx:
        with pytest.raises(DuplicateUpdate, match="update 0 was already handled"):
            ctx.clear_flow()


async def test_an_update_that_changed_nothing_or_failed_runs_again(fsm: FSM) -> None:
    runs: list[str] = []

    async def look(ctx: Any) -> None:
        runs.append("look")

    async def fail(ctx: Any) -> None:
        runs.append("fail")
        ctx.update_data(a=1)
        raise ZeroDivisionError

    for _ in range(2):
        await fsm.handle(message(update_id=1), look)
        with pytest.raises(ZeroDivisionError):
            await fsm.handle(message(update_id=2), fail)
    assert runs == ["look", "fail", "look", "fail"]
    assert await fsm.storage.get_state("bot", KEY) is None


async def test_a_cancelled_handler_changes_nothing_and_runs_again(fsm: FSM) -> None:
    entered = asyncio.Event()

    async def hang(ctx: Any) -> None:
        ctx.update_data(a=1)
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(fsm.handle(message(update_id=1), hang))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await fsm.storage.get_state("bot", KEY) is None
    assert await fsm.handle(message(update_id=1), register) == "started"


async def test_updates_out_of_order_are_all_handled(fsm: FSM) -> None:
    async def note(ctx: Any) -> None:
        ctx.update_data({ctx.update.update_id: True})

    for number in (5, 3, 4, 1, 2):
        await fsm.handle(message(update_id=number), note)
    assert await fsm.storage.get_data("bot", KEY) == dict.fromkeys((5, 3, 4, 1, 2), True)


async def test_without_an_id_there_are_no_duplicates(fsm: FSM) -> None:
    for _ in range(2):
        assert await fsm.handle(message(), register) == "started"


async def test_ids_may_be_strings_and_never_equal_numbers(fsm: FSM) -> None:
    async def note(ctx: Any) -> str:
        ctx.update_data(n=ctx.data.get("n", 0) + 1)
        return "handled"

    ids = [5, "5", "Ev 1", '5" 5', "a b", "\\", "é", -5]
    for update_id in ids:
        assert await fsm.handle(None, note, key=KEY, update_id=update_id) == "handled", update_id
    for update_id in ids:
        assert await fsm.handle(None, note, key=KEY, update_id=update_id) is None, update_id
    assert await fsm.storage.get_data("bot", KEY) == {"n": len(ids)}


async def test_at_least_a_batch_of_updates_is_remembered_and_no_more_than_128(fsm: FSM) -> None:
    async def note(ctx: Any) -> None:
        ctx.update_data(last=ctx.update.update_id)

    for number in range(1, 141):
        await fsm.handle(message(update_id=number), note)
    for number in range(140, 12, -1):
        with pytest.raises(DuplicateUpdate):
            async with fsm.conversation(message(update_id=number)):
                pass
    async with fsm.conversation(message(update_id=12)) as ctx:
        assert not ctx.duplicate


async def test_long_ids_are_remembered_and_never_fill_the_memo(fsm: FSM) -> None:
    async def count(ctx: Any) -> int:
        ctx.update_data(count=ctx.data.get("count", 0) + 1)
        return int(ctx.data["count"])

    ids: list[int | str] = [f"{number}" + "\N{GREEK SMALL LETTER ALPHA}" * 1500 for number in range(130)]
    ids += [10**5000, -(10**5000), "x" * 63, "x" * 64, "x" * 65, 10**100]
    for number, update_id in enumerate(ids, 1):
        assert await fsm.handle(None, count, key=KEY, update_id=update_id) == number
    for update_id in ids[-100:]:
        assert await fsm.handle(None, count, key=KEY, update_id=update_id) is None
    assert await fsm.handle(None, count, key=KEY, update_id="y" * 3000) == len(ids) + 1


async def test_a_memo_that_is_larger_than_the_limit_forgets_its_oldest_updates(make_fsm: Make) -> None:
    fsm = FSM("small", storage=make_fsm().storage, flows=[Form])
    await fsm.prepare()
    async with Slot(fsm.storage, "small", KEY) as slot:
        await slot.commit(force=True, memo=[" " + "".join(f"'{number:060} " for number in range(100)), []])
    # The limit was lowered, and the stored memo is larger than that.
    await fsm.storage.init("small", limits=Limits(record=400))
    for number in range(60):
        assert await fsm.handle(None, register, key=KEY, update_id=f"{number:020}") == "started"
    for number in range(55, 60):
        assert await fsm.handle(None, register, key=KEY, update_id=f"{number:020}") is None
    assert await fsm.handle(None, register, key=KEY, update_id=f"{0:020}") == "started"


async def test_handled_updates_are_remembered_after_the_conversation_has_ended(backend: Backend, clock: Clock) -> None:
    storage = backend.storage(clock=clock)
    fsm = FSM("bot", storage=storage, flows=[Form])
    await fsm.handle(message("/register", update_id=1), register)
    await fsm.handle(message("/cancel", update_id=2), lambda ctx: ctx.clear_flow())
    assert await storage.get_state("bot", KEY) is None
    assert [entry.key async for entry in storage.scan("bot")] == []
    for number in (1, 2):
        assert await fsm.handle(message(update_id=number), register) is None
    assert await storage.get_state("bot", KEY) is None
    clock.advance(DAY + 1)
    assert await fsm.handle(message(update_id=1), register) == "started"


async def test_nothing_is_written_before_the_block_ends(fsm: FSM) -> None:
    await fsm.handle(message(update_id=1), register)
    with pytest.raises(ZeroDivisionError):
        async with fsm.conversation(message(update_id=2)) as ctx:
            ctx.transition("email")
            ctx.update_data(a=1)
            ctx.data["list"] = [1]
            assert await fsm.storage.get_state("bot", KEY) == State("form", "name", {})
            raise ZeroDivisionError
    assert await fsm.storage.get_state("bot", KEY) == State("form", "name", {})


async def test_save_writes_now_and_only_the_end_marks_the_update_handled(fsm: FSM) -> None:
    with pytest.raises(ZeroDivisionError):
        async with fsm.conversation(message(update_id=1)) as ctx:
            ctx.start_flow(Form)
            await ctx.save()
            assert await fsm.storage.get_state("bot", KEY) == State("form", "name", {})
            ctx.update_data(lost=1)
            raise ZeroDivisionError
    assert await fsm.storage.get_state("bot", KEY) == State("form", "name", {})
    async with fsm.conversation(message(update_id=1)) as ctx:
        ctx.update_data(a=1)
        await ctx.save()
    with pytest.raises(DuplicateUpdate):
        async with fsm.conversation(message(update_id=1)):
            pass
    assert await fsm.storage.get_state("bot", KEY) == State("form", "name", {"a": 1})


async def test_a_context_used_after_its_block_raises(fsm: FSM) -> None:
    async with fsm.conversation(message(update_id=1)) as ctx:
        pass
    for use in (
        lambda: ctx.state,
        lambda: ctx.data,
        lambda: ctx.transition("email"),
        lambda: ctx.update_data(a=1),
        lambda: ctx.clear_flow(),
        lambda: ctx.calls,
    ):
        with pytest.raises(ContextClosed, match="has ended"):
            use()
    with pytest.raises(ContextClosed):
        await ctx.save()


async def test_two_quick_messages_of_one_user_are_handled_one_after_the_other(fsm: FSM) -> None:
    order: list[int] = []

    async def slow(ctx: Any) -> None:
        order.append(ctx.update.update_id)
        count = ctx.data.get("count", 0)
        await asyncio.sleep(0.001)
        ctx.update_data(count=count + 1)

    await asyncio.gather(*(fsm.handle(message(update_id=number), slow) for number in range(1, 16)))
    assert order == list(range(1, 16))
    assert await fsm.storage.get_data("bot", KEY) == {"count": 15}


async def test_other_keys_do_not_wait(fsm: FSM) -> None:
    async with fsm.conversation(message(user=1)):
        async with fsm.conversation(message(user=2)) as other:
            other.start_flow(Form)


async def test_a_waiting_update_raises_busy_after_its_time_and_is_not_lost(make_fsm: Make) -> None:
    fsm = make_fsm(wait=0.05)
    entered = asyncio.Event()

    async def second() -> None:
        await entered.wait()
        await fsm.handle(message(update_id=2), register)

    waiting = asyncio.create_task(second())
    async with fsm.conversation(message(update_id=1)):
        entered.set()
        with pytest.raises(Busy):
            await waiting
    assert await fsm.handle(message(update_id=2), register) == "started"


async def test_a_task_that_enters_its_own_conversation_gets_an_error_at_once(fsm: FSM) -> None:
    async with fsm.conversation(message(update_id=1)):
        with pytest.raises(AlreadyHeld):
            async with fsm.conversation(message(update_id=2)):
                pytest.fail("it was entered")
        with pytest.raises(AlreadyHeld):
            await asyncio.wait_for(asyncio.create_task(fsm.handle(message(update_id=3), register)), 30)


async def test_a_handler_that_blocks_the_loop_past_its_lease_writes_nothing_if_another_one_has_it(
    make_fsm: Make,
) -> None:
    fsm = make_fsm(lease=0.3)
    address = fsm.storage.address("bot", KEY)
    with pytest.raises(LeaseLost):
        async with fsm.conversation(message(update_id=1)) as ctx:
            ctx.start_flow(Form)
            time.sleep(0.5)
            await fsm.storage.perform(Claim(address, "another", 30))
    assert await fsm.storage.get_state("bot", KEY) is None
    await fsm.storage.perform(Release(address, "another"))
    assert await fsm.handle(message(update_id=1), register) == "started"


async def test_a_handler_that_blocks_the_loop_past_its_lease_is_committed_if_nobody_wanted_the_key(
    make_fsm: Make,
) -> None:
    fsm = make_fsm(lease=0.3)
    async with fsm.conversation(message(update_id=1)) as ctx:
        ctx.start_flow(Form)
        time.sleep(0.5)
    assert await fsm.storage.get_state("bot", KEY) == State("form", "name", {})


async def test_a_long_handler_keeps_its_claim(make_fsm: Make) -> None:
    fsm = make_fsm(lease=1.2)
    async with fsm.conversation(message(update_id=1)) as ctx:
        ctx.start_flow(Form)
        await asyncio.sleep(1.5)
    assert await fsm.storage.get_state("bot", KEY) == State("form", "name", {})


async def test_writes_of_other_processes_survive_the_commit_and_a_clear_refuses_it(fsm: FSM) -> None:
    await fsm.handle(message(update_id=1), register)
    async with fsm.conversation(message(update_id=2)) as ctx:
        ctx.transition("email")
        await fsm.storage.update_data("bot", KEY, {"outside": 1})
    assert await fsm.storage.get_state("bot", KEY) == State("form", "email", {"outside": 1})
    with pytest.raises(RecordReplaced):
        async with fsm.conversation(message(update_id=3)) as ctx:
            ctx.transition("done")
            await fsm.storage.clear("bot", KEY)
    assert await fsm.storage.get_state("bot", KEY) is None


# No key


async def test_without_a_key_the_handler_runs_with_an_empty_state_and_nothing_is_stored() -> None:
    async with FaultyStorage() as storage:
        fsm = FSM("bot", storage=storage, flows=[Form])
        async with fsm.conversation(POLL) as ctx:
            assert (ctx.key, ctx.flow, ctx.state, ctx.data) == (None, None, None, {})
        assert await fsm.handle(POLL, lambda ctx: "ran") == "ran"
        assert storage.batches == []


async def test_without_a_key_a_change_applies_the_policy(make_fsm: Make, caplog: pytest.LogCaptureFixture) -> None:
    changes = [
        lambda c: c.start_flow(Form),
        lambda c: c.transition("email"),
        lambda c: c.set_state("email", flow=Form),
        lambda c: c.back(),
        lambda c: c.update_data(a=1),
        lambda c: c.set_data({"a": 1}),
    ]
    fsm = make_fsm()
    for change in changes:
        with pytest.raises(NoKeyError, match=r"ChatUser returned no key for this poll"):
            async with fsm.conversation(POLL) as ctx:
                change(ctx)
    with pytest.raises(NoKeyError):
        async with fsm.conversation(POLL) as ctx:
            ctx.data["a"] = 1
    async with fsm.conversation(POLL) as ctx:
        ctx.clear_flow()
        await ctx.save()
    for policy, warnings in (("log", len(changes)), ("ignore", 0)):
        caplog.clear()
        async with make_fsm(on_missing_key=policy).conversation(POLL) as ctx:
            for change in changes:
                assert not change(ctx)
        assert len(caplog.records) == warnings


# Other platforms and keys without an update


async def test_the_error_for_key_none_does_not_name_the_strategy(fsm: FSM) -> None:
    for update in (None, message()):
        async with fsm.conversation(update, key=None) as ctx:
            with pytest.raises(NoKeyError, match="key=None was passed, so nothing can be stored; use another key="):
                ctx.start_flow(Form)
        with pytest.raises(NoKeyError, match="key=None was passed") as caught:
            async with fsm.conversation(update, key=None) as ctx:
                ctx.data["a"] = 1
        assert caught.value.strategy is None


async def test_a_key_may_be_passed(fsm: FSM) -> None:
    async with fsm.conversation(key=("T1", "U1"), update_id="Ev123") as ctx:
        assert ctx.update.raw is None
        assert ctx.text is None
        ctx.start_flow(Form)
    with pytest.raises(DuplicateUpdate):
        async with fsm.conversation(key=("T1", "U1"), update_id="Ev123"):
            pass
    assert await fsm.storage.get_state("bot", ("T1", "U1")) == State("form", "name", {})
    with pytest.raises(InvalidOption, match="key="):
        fsm.conversation()


async def test_key_and_id_of_another_platform_are_read_by_functions(make_fsm: Make) -> None:
    fsm = make_fsm(
        key=lambda update: (update.raw["team"], update.raw["user"]), update_id=lambda update: update.raw["event_id"]
    )
    event = {"team": "T1", "user": "U1", "event_id": "Ev9", "text": "hello"}
    assert await fsm.handle(event, register) == "started"
    assert await fsm.handle(event, register) is None
    assert await fsm.storage.get_state("bot", ("T1", "U1")) == State("form", "name", {})


async def test_every_key_strategy_may_be_instance_class_or_function(make_fsm: Make) -> None:
    for number, key in enumerate((keys.User(), keys.User, lambda update: (update.user.id,))):
        fsm = make_fsm(key=key)
        async with fsm.conversation(message(user=7, chat=-100 - number)) as ctx:
            assert ctx.key == (7,)


async def test_conversations_of_users_and_chats_never_mix(fsm: FSM) -> None:
    for user, chat in ((1, -5), (2, -5), (1, -6), (1, 1)):
        async with fsm.conversation(message(user=user, chat=chat)) as ctx:
            assert ctx.data == {}
            ctx.update_data(who=[user, chat])
    assert sorted([entry.state.data["who"] async for entry in fsm.storage.scan("bot")]) == [
        [1, -6],
        [1, -5],
        [1, 1],
        [2, -5],
    ]


async def test_records_are_tagged_with_their_users_and_chats(fsm: FSM) -> None:
    await fsm.handle(message(user=7, chat=-100, update_id=1), register)
    await fsm.handle(message(user=8, chat=-100, update_id=2), register)
    assert [entry.key async for entry in fsm.storage.scan("bot", tag="user:7")] == [(-100, 7)]
    assert len([entry async for entry in fsm.storage.scan("bot", tag="chat:-100")]) == 2


async def test_the_context_has_text_and_arguments(fsm: FSM) -> None:
    async with fsm.conversation(message("/start@my_bot hello there")) as ctx:
        assert isinstance(ctx.update, Update)
        assert (ctx.text, ctx.args, ctx.key) == ("/start@my_bot hello there", "hello there", KEY)
    async with fsm.conversation(message("plain")) as ctx:
        assert (ctx.text, ctx.args) == ("plain", "")
        with pytest.raises(UsageError, match="Router"):
            ctx.answer("never sent")


# Opening and closing


async def test_a_machine_opens_and_closes_its_storage_as_often_as_it_is_entered() -> None:
    fsm = FSM("bot", storage="memory://", flows=[Form])
    for update_id in (1, 2):
        async with fsm:
            assert fsm.storage.is_open
            async with fsm.conversation(message(update_id=update_id)) as ctx:
                ctx.start_flow(Form)
        assert not fsm.storage.is_open


async def test_a_machine_does_not_close_a_storage_that_was_open_before() -> None:
    async with MemoryStorage() as storage:
        for _ in range(2):
            async with FSM("bot", storage=storage, flows=[Form]):
                pass
        assert storage.is_open


async def test_the_first_update_opens_the_storage(make_fsm: Make) -> None:
    fsm = make_fsm()
    assert await fsm.handle(message(update_id=1), register) == "started"


def test_handle_sync_works_without_an_event_loop() -> None:
    fsm = FSM("bot", storage="memory://", flows=[Form])
    assert fsm.handle_sync(message(update_id=1), register) == "started"
    assert fsm.handle_sync(message(update_id=1), register) is None
    assert fsm.handle_sync(message(update_id=2), lambda ctx: ctx.state) == "name"
    with pytest.raises(WrongLoop):
        asyncio.run(fsm.handle(message(update_id=3), register))


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/bot.db"])
def test_each_update_may_have_its_own_event_loop(url: str, tmp_path: Path) -> None:
    fsm = FSM("bot", storage=url.format(tmp_path), flows=[Form])

    def count(ctx: Any) -> int:
        ctx.update_data(n=ctx.data.get("n", 0) + 1)
        return int(ctx.data["n"])

    for turn in (1, 2, 3):
        assert asyncio.run(fsm.handle(message(update_id=turn), count)) == turn


def test_a_blocking_handler_does_not_delay_others_and_keeps_its_claim() -> None:
    fsm = FSM("bot", storage="memory://", flows=[Form], lease=1)
    together = threading.Barrier(4)

    def slow(ctx: Any) -> str:
        # All four handlers must run at the same time, each for longer than its lease.
        together.wait(60)
        time.sleep(1.2)
        ctx.update_data(by=threading.current_thread().name)
        return threading.current_thread().name

    with ThreadPoolExecutor(4, "request") as pool:
        futures = [pool.submit(fsm.handle_sync, message(user=n, chat=n, update_id=n), slow) for n in range(1, 5)]
        names = [future.result() for future in futures]
    assert len(set(names)) == 4
    assert all(name.startswith("request") for name in names)
    assert sorted(stepwell.sync(fsm.storage.get_data("bot", (n, n)))["by"] for n in range(1, 5)) == sorted(names)


def test_a_blocking_handler_may_use_thread_bound_objects() -> None:
    here: ContextVar[str] = ContextVar("here")
    here.set("a request")
    fsm = FSM("bot", storage="memory://", flows=[Form])

    def look(ctx: Any) -> tuple[str, Any]:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return here.get(), stepwell.sync(fsm.storage.get_data("other", 1))

    assert fsm.handle_sync(message(update_id=1), look) == ("a request", None)


def test_an_error_of_a_blocking_handler_is_raised_and_changes_nothing() -> None:
    fsm = FSM("bot", storage="memory://", flows=[Form])

    def fails(ctx: Any, error: BaseException) -> None:
        ctx.update_data(half=True)
        raise error

    with pytest.raises(ZeroDivisionError):
        fsm.handle_sync(message(update_id=1), partial(fails, error=ZeroDivisionError()))
    # The same as Ctrl-C.
    with pytest.raises(KeyboardInterrupt):
        fsm.handle_sync(message(update_id=1), partial(fails, error=KeyboardInterrupt()))
    assert fsm.handle_sync(message(update_id=1), lambda ctx: dict(ctx.data)) == {}


async def test_handle_sync_inside_a_loop_raises(fsm: FSM) -> None:
    with pytest.raises(InsideLoop):
        fsm.handle_sync(message(update_id=1), register)


async def test_memory_does_not_grow_with_the_number_of_users() -> None:
    async with MemoryStorage() as storage:
        fsm = FSM("bot", storage=storage, flows=[Form])
        for user in range(1, 5001):
            async with fsm.conversation(message(user=user, chat=user, update_id=user)) as ctx:
                assert ctx.state is None
        assert storage.waiters == {}
        assert cells_of(storage) == {}
        assert [task for task in asyncio.all_tasks() if "stepwell" in task.get_name()] == []


async def test_an_earlier_update_that_is_handled_again_without_an_answer_keeps_the_answers_to_the_newest(
    backend: Backend,
) -> None:
    """After a kill, an earlier update may be handled again, and change something this time, such as a migration."""
    router = Router(FSM("bot", storage=backend.storage(), flows=[]))

    @router.on(text("quiet"))
    async def quiet(ctx: Context) -> None:
        ctx.update_data(quiet=ctx.update.update_id)

    @router.on(text("name"))
    async def name(ctx: Context) -> None:
        ctx.update_data(named=True)
        ctx.answer("Hello")

    (answer,) = await router.handle(message("name", update_id=7))
    assert await router.handle(message("quiet", update_id=6)) == []
    assert await router.handle(message("name", update_id=7)) == [answer], "it was perhaps not sent"
    assert await router.handle(message("quiet", update_id=6)) == [], "it is remembered too"
    assert await router.handle(message("quiet", update_id=8)) == []
    assert await router.handle(message("name", update_id=7)) == [], "a later update was handled"
