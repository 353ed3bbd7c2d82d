"""Timers: durable, fired once, on one worker, and never for a state that was left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import State, Storage
from stepwell.errors import StorageUnavailable, Unsupported
from stepwell.fsm import FSM, Context, Flow, Router, command, keys, state
from stepwell.fsm.timers.owners import Timers
from stepwell.fsm.update import Update
from stepwell.testing import Clock, FaultyStorage
from tests.backends import Backend
from tests.constants import Constants
from tests.fsm.conftest import message
from tests.until import until

KEY = (42, 42)
ANSWERED: list[str] = []


async def remind(ctx: Context) -> None:
    ctx.update_data(reminded=ctx.data.get("reminded", 0) + 1)
    ctx.answer("Still there?")


async def fail(ctx: Context) -> None:
    ctx.update_data(half=True)
    raise ZeroDivisionError


class Slow(Flow, name="slow"):
    ask = state(to=["ask", "wait", "last", "handled", "broken", "chain", "twice"], timeout=60, on_timeout="late")
    wait = state(to=["ask"])
    late = state(to=["ask"])
    last = state(timeout=60)
    handled = state(to=["ask"], timeout=60, on_timeout=remind)
    broken = state(to=["ask"], timeout=60, on_timeout=fail)
    chain = state(timeout=60, on_timeout="ask")
    twice = state(timeout=60, on_timeout="handled")
    default_state = ask


@pytest.fixture
def storage(backend: Backend, clock: Clock) -> Storage:
    return backend.storage(clock=clock)


@pytest.fixture
def fsm(storage: Storage) -> FSM:
    return FSM("bot", storage=storage, flows=[Slow], run_timers=False)


async def enter(fsm: FSM, to: str | None = None, *, user: int = 42) -> None:
    async with fsm.conversation(message(user=user, chat=user)) as ctx:
        if ctx.flow is None:
            ctx.start_flow(Slow)
        if to is not None:
            ctx.set_state(to)


async def test_a_timeout_moves_to_the_next_state(fsm: FSM, clock: Clock) -> None:
    await enter(fsm)
    clock.advance(59)
    assert await fsm.tick() == 0
    clock.advance(2)
    assert await fsm.tick() == 1
    assert await fsm.storage.get_state("bot", KEY) == State("slow", "late", {})
    assert await fsm.tick() == 0


async def test_without_on_timeout_the_conversation_ends(fsm: FSM, clock: Clock) -> None:
    await enter(fsm, "last")
    clock.advance(61)
    assert await fsm.tick() == 1
    assert await fsm.storage.get_state("bot", KEY) is None


async def test_a_timeout_may_call_a_handler_and_its_answers_are_sent(storage: Storage, clock: Clock) -> None:
    sent: list[Any] = []

    async def send(call: dict[str, Any]) -> None:
        sent.append(call)

    fsm = FSM("bot", storage=storage, flows=[Slow], run_timers=False, send=send)
    await enter(fsm, "handled")
    clock.advance(61)
    for _ in range(3):
        await fsm.tick()
    assert await storage.get_state("bot", KEY) == State("slow", "handled", {"reminded": 1})
    assert sent == [{"method": "sendMessage", "chat_id": 42, "text": "Still there?"}]


def _by_language(update: Update) -> tuple[str, int] | None:
    return None if update.user is None else ("en", update.user.id)


@pytest.mark.parametrize("key", [keys.ChatUser(), keys.Chat(), keys.User(), keys.ChatTopicUser(), _by_language])
@pytest.mark.parametrize(
    ("extra", "where"),
    [
        ({"message_thread_id": 7, "is_topic_message": True}, {"message_thread_id": 7}),
        # A reply in a group without topics has a thread too, but answers do not go to that thread.
        ({"message_thread_id": 7}, {}),
        ({"business_connection_id": "b7"}, {"business_connection_id": "b7"}),
    ],
)
async def test_a_timer_answers_in_the_last_chat_of_the_conversation(
    storage: Storage, clock: Clock, key: Any, extra: dict[str, Any], where: dict[str, Any]
) -> None:
    sent: list[Any] = []

    async def send(call: Any) -> None:
        sent.append(call)

    router = Router(FSM("bot", storage=storage, flows=[Slow], key=key, send=send, run_timers=False))

    @router.on(command("go"))
    async def go(ctx: Context) -> None:
        ctx.start_flow(Slow)
        ctx.set_state("twice")
        ctx.answer("Well?")

    update = message("/go", user=42, chat=-100)
    update["message"] |= extra
    (answer,) = await router.handle(update)
    clock.advance(61)
    assert await router.fsm.tick() == 1
    # The next state has a timer too, and was entered without an update.
    clock.advance(61)
    assert await router.fsm.tick() == 1
    assert answer == {"method": "sendMessage", "chat_id": -100, "text": "Well?", **where}
    assert sent == [{**answer, "text": "Still there?"}]


async def test_the_chat_of_a_timers_answer_follows_a_move_and_survives_a_deploy(storage: Storage, clock: Clock) -> None:
    sent: list[Any] = []

    async def send(call: Any) -> None:
        sent.append(call)

    class Later(Flow, name="slow", revision=2):
        handled = state(timeout=60, on_timeout=remind)
        default_state = handled

        def migrate(revision: int, state: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
            return state, data

    update = message("hi", user=42, chat=-100)
    update["message"] |= {"message_thread_id": 7, "is_topic_message": True}
    fsm = FSM("bot", storage=storage, flows=[Slow], run_timers=False)
    async with fsm.conversation(update) as ctx:
        ctx.start_flow(Slow)
        ctx.set_state("handled")
    assert await fsm.move_chat(-100, -1007) == 1
    later = FSM("bot", storage=storage, flows=[Later], send=send, run_timers=False)
    clock.advance(61)
    assert await later.tick() == 1
    assert sent == [{"method": "sendMessage", "chat_id": -1007, "message_thread_id": 7, "text": "Still there?"}]


async def test_a_timeout_counts_from_entering_the_state(fsm: FSM, clock: Clock) -> None:
    await enter(fsm)
    clock.advance(50)
    async with fsm.conversation(message()) as ctx:
        ctx.update_data(a=1)
    clock.advance(11)
    assert await fsm.tick() == 1


async def test_a_self_transition_enters_the_state_again(fsm: FSM, clock: Clock) -> None:
    await enter(fsm)
    for _ in range(3):
        clock.advance(50)
        assert await fsm.tick() == 0
        async with fsm.conversation(message()) as ctx:
            ctx.transition("ask")
    clock.advance(61)
    assert await fsm.tick() == 1


async def test_a_state_that_was_left_does_not_time_out(fsm: FSM, clock: Clock) -> None:
    await enter(fsm, user=1)
    await enter(fsm, user=2)
    await enter(fsm, user=3)
    clock.advance(50)
    await enter(fsm, "wait", user=1)
    async with fsm.conversation(message(user=2, chat=2)) as ctx:
        ctx.clear_flow()
    await fsm.storage.set_state("bot", (3, 3), State("slow", "ask"))
    clock.advance(60)
    assert await fsm.tick() == 0
    assert await fsm.storage.get_state("bot", (1, 1)) == State("slow", "wait", {})


async def test_an_update_after_the_deadline_finds_the_timeout_applied(storage: Storage, clock: Clock) -> None:
    sent: list[Any] = []

    async def send(call: dict[str, Any]) -> None:
        sent.append(call["text"])

    fsm = FSM("bot", storage=storage, flows=[Slow], run_timers=False, send=send)
    await enter(fsm)
    await enter(fsm, "handled", user=2)
    clock.advance(61)
    async with fsm.conversation(message(update_id=1)) as ctx:
        assert ctx.state == "late"
    async with fsm.conversation(message(user=2, chat=2, update_id=2)) as ctx:
        assert ctx.data == {"reminded": 1}
    assert sent == ["Still there?"]
    assert await fsm.tick() == 0
    assert await storage.get_state("bot", KEY) == State("slow", "late", {})


async def test_a_timeout_may_lead_to_a_state_with_a_timeout(fsm: FSM, clock: Clock) -> None:
    await enter(fsm, "chain")
    for expected in ("ask", "late"):
        clock.advance(61)
        assert await fsm.tick() == 1
        assert (await fsm.storage.get_state("bot", KEY)) == State("slow", expected, {})


async def test_a_timer_that_fails_is_retried_later_and_does_not_stop_others(
    fsm: FSM, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await enter(fsm, "broken", user=1)
    await enter(fsm, user=2)
    clock.advance(61)
    ticker = Timers(fsm)
    assert await ticker.tick() == 1
    assert "will be retried" in caplog.text
    assert await fsm.storage.get_state("bot", (1, 1)) == State("slow", "broken", {})
    caplog.clear()
    assert await ticker.tick() == 0
    assert caplog.text == "", "it pauses"
    # Another process tries it at once.
    assert await Timers(fsm).tick() == 0
    assert caplog.text.count("will be retried") == 1


async def test_a_timeout_that_fails_does_not_block_the_conversation(
    fsm: FSM, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await enter(fsm, "broken")
    clock.advance(61)
    async with fsm.conversation(message()) as ctx:
        assert (ctx.state, ctx.data) == ("broken", {})
        ctx.transition("ask")
    assert "failed" in caplog.text
    assert await fsm.storage.get_state("bot", KEY) == State("slow", "ask", {})


async def test_a_timer_that_cannot_be_fired_does_not_starve_others(
    storage: Storage, clock: Clock, constants: Constants
) -> None:
    class Gone(Flow, name="gone"):
        here = state(timeout=1, on_timeout="here")
        default_state = here

    both = FSM("bot", storage=storage, flows=[Slow, Gone], run_timers=False)
    for user in range(1, 8):
        async with both.conversation(message(user=user, chat=user)) as ctx:
            ctx.start_flow(Gone)
    await enter(both, user=100)
    clock.advance(61)
    constants(timers_a_page=3)
    fsm = FSM("bot", storage=storage, flows=[Slow], run_timers=False)
    async with both.conversation(message(user=7, chat=7)) as ctx:
        assert ctx.state == "here"
        assert await asyncio.create_task(fsm.tick()) == 1
    assert await storage.get_state("bot", (100, 100)) == State("slow", "late", {})


async def test_a_state_that_lost_its_timeout_in_a_deploy_is_kept(storage: Storage, clock: Clock) -> None:
    await enter(FSM("bot", storage=storage, flows=[Slow], run_timers=False))

    class Later(Flow, name="slow"):
        ask = state()
        other = state(timeout=1)

    fsm = FSM("bot", storage=storage, flows=[Later], run_timers=False)
    clock.advance(61)
    assert await fsm.tick() == 1
    assert await fsm.tick() == 0
    assert await storage.get_state("bot", KEY) == State("slow", "ask", {})


async def test_timers_fire_in_the_background_within_a_second_and_survive_a_restart(backend: Backend) -> None:
    class Quick(Flow, name="quick"):
        ask = state(timeout=0.4, on_timeout="late")
        late = state()
        default_state = ask

    storage = backend.storage()
    async with storage:
        async with FSM("bot", storage=storage, flows=[Quick], run_timers=False) as first:
            async with first.conversation(key=1) as ctx:
                ctx.start_flow(Quick)
            await asyncio.sleep(0.6)
            assert await storage.get_state("bot", 1) == State("quick", "ask", {})
        async with FSM("bot", storage=storage, flows=[Quick]):
            await until(lambda: storage.get_state("bot", 1), lambda it: it == State("quick", "late", {}))
        assert [task for task in asyncio.all_tasks() if "stepwell-dispatcher" in task.get_name()] == []


async def test_many_workers_fire_each_timer_once(storage: Storage, clock: Clock) -> None:
    workers = [FSM("bot", storage=storage, flows=[Slow], run_timers=False) for _ in range(3)]
    for user in range(1, 61):
        await enter(workers[0], "handled", user=user)
    clock.advance(61)
    assert sum(await asyncio.gather(*(worker.tick() for worker in workers))) == 60
    reminded = [entry.state.data async for entry in storage.scan("bot")]
    assert reminded == [{"reminded": 1}] * 60


async def test_timers_survive_an_unavailable_storage(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    class Away(FaultyStorage):
        away = True

        async def due(self, *args: Any, **options: Any) -> Any:
            if self.away:
                raise StorageUnavailable("away")
            return await super().due(*args, **options)

    async with Away(clock=clock) as storage:
        async with FSM("bot", storage=storage, flows=[Slow]) as fsm:
            await enter(fsm)
            clock.advance(61)
            await asyncio.sleep(0.05)
            storage.away = False
            await until(lambda: storage.get_state("bot", KEY), lambda it: it == State("slow", "late", {}))
    assert "timers and queues cannot be read" in caplog.text


async def test_a_storage_without_deadlines_raises_unsupported(caplog: pytest.LogCaptureFixture) -> None:
    class NoTimers(FaultyStorage):
        async def due(self, *args: Any, **options: Any) -> Any:
            raise Unsupported("NoTimers", "find deadlines")

    async with NoTimers() as storage, FSM("bot", storage=storage, flows=[Slow]):
        await asyncio.sleep(0.05)
    assert caplog.text.count("stopped polling for timers and queues") == 1


async def test_without_send_an_answer_of_a_timer_logs_a_warning(
    fsm: FSM, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await enter(fsm, "handled")
    clock.advance(61)
    await fsm.tick()
    assert "pass send=" in caplog.text


async def test_a_routers_send_is_used_for_timers_too(fsm: FSM, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    async def send(call: dict[str, Any]) -> None:
        sent.append(call["text"])
        raise OSError("no network")

    router = Router(fsm, send=send)
    router.on(command("x"))(lambda ctx: None)
    await enter(fsm, "handled")
    clock.advance(61)
    assert await fsm.tick() == 1
    assert sent == ["Still there?"]
    assert "could not be sent" in caplog.text


async def test_a_conversation_without_timeouts_costs_no_query() -> None:
    class Plain(Flow, name="plain"):
        a = state()

    async with FaultyStorage() as storage, FSM("bot", storage=storage, flows=[Plain]):
        assert [task for task in asyncio.all_tasks() if "stepwell-dispatcher" in task.get_name()] == []
