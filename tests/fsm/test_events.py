"""Subscribers: which events a machine emits, and that subscribers cannot affect it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import AlreadyHeld, EncodeError, InvalidKey, InvalidOption, StorageClosed
from stepwell.fsm import (
    FSM,
    Committed,
    ConversationExpired,
    DuplicateReceived,
    DuplicateUpdate,
    Flow,
    FSMEvent,
    HandlerEnded,
    HandlerFailed,
    HandlerStarted,
    MachineReady,
    StateEntered,
    TimerFired,
    Update,
    UpdateHandled,
    UpdateReceived,
    state,
    subscribe,
)
from stepwell.slot import Slot
from stepwell.testing import Clock
from tests.backends import Backend
from tests.fsm.conftest import message

KEY = (42, 42)


class Short(Flow, name="short", ttl=100):
    a = state(to=["b"])
    b = state(timeout=6, on_timeout="c")
    c = state()
    default_state = a


class Machine(FSM):
    """Return a machine whose events are collected."""

    def __init__(self, clock: Clock, **options: object) -> None:
        super().__init__("bot", storage=MemoryStorage(clock=clock, sweep_every=None), flows=[Short], **options)  # type: ignore[arg-type]
        self.seen: list[FSMEvent] = []
        self.unsubscribe = self.subscribe(self.seen.append)


@pytest.fixture
def fsm(clock: Clock) -> Machine:
    return Machine(clock)


@pytest.fixture
def everywhere() -> Iterator[list[FSMEvent]]:
    seen: list[FSMEvent] = []
    end = subscribe(seen.append)
    yield seen
    end()


async def step(fsm: FSM, to: str, update_id: int | None = None) -> None:
    async with fsm.conversation(message(update_id=update_id)) as ctx:
        if ctx.flow is None:
            ctx.start_flow(Short)
        ctx.set_state(to)


async def test_an_update_is_received_enters_states_and_is_committed(fsm: Machine) -> None:
    await step(fsm, "b", update_id=1)
    received, ready, started, ended, first, second, committed, handled = fsm.seen
    assert isinstance(started, HandlerStarted)
    assert started.waited >= 0
    assert isinstance(ended, HandlerEnded)
    assert ended.error is None
    assert isinstance(handled, UpdateHandled)
    assert handled.duration >= committed.duration
    assert isinstance(ready, MachineReady)
    assert ready.fsm is fsm
    assert isinstance(received, UpdateReceived)
    assert (received.bot, received.key, received.update_id) == ("bot", KEY, 1)
    assert isinstance(first, StateEntered)
    assert isinstance(second, StateEntered)
    assert (first.from_flow, first.from_state, first.flow, first.state) == (None, None, "short", "a")
    assert (second.from_state, second.state) == ("a", "b")
    assert isinstance(committed, Committed)
    assert committed.duration >= 0
    assert committed.address == fsm.storage.address("bot", KEY)


async def test_a_state_is_reported_once_if_the_handler_saves(fsm: Machine) -> None:
    async with fsm.conversation(message()) as ctx:
        ctx.start_flow(Short)
        await ctx.save()
        ctx.set_state("b")
    assert [event.state for event in fsm.seen if isinstance(event, StateEntered)] == ["a", "b"]
    assert sum(isinstance(event, Committed) for event in fsm.seen) == 2


async def test_an_update_without_a_change_commits_nothing(fsm: Machine) -> None:
    async with fsm.conversation(message()):
        pass
    assert [type(event) for event in fsm.seen] == [
        UpdateReceived, MachineReady, HandlerStarted, HandlerEnded, UpdateHandled
    ]  # fmt: skip


async def test_a_duplicate_is_reported(fsm: Machine) -> None:
    await step(fsm, "b", update_id=7)
    fsm.seen.clear()
    with pytest.raises(DuplicateUpdate):
        await step(fsm, "b", update_id=7)
    assert [type(event) for event in fsm.seen] == [UpdateReceived, DuplicateReceived, UpdateHandled]


async def test_a_failing_handler_is_reported_with_its_error(fsm: Machine) -> None:
    with pytest.raises(ZeroDivisionError):
        async with fsm.conversation(message()) as ctx:
            ctx.start_flow(Short)
            raise ZeroDivisionError
    ended, failed, handled = fsm.seen[-3:]
    assert isinstance(ended, HandlerEnded)
    assert isinstance(ended.error, ZeroDivisionError)
    assert isinstance(handled, UpdateHandled)
    assert isinstance(failed, HandlerFailed)
    assert isinstance(failed.error, ZeroDivisionError)
    assert not any(isinstance(event, Committed | StateEntered) for event in fsm.seen)


async def test_a_failing_commit_is_reported_once(fsm: Machine) -> None:
    with pytest.raises(EncodeError):
        async with fsm.conversation(message()) as ctx:
            ctx.update_data(value=object())
    assert sum(isinstance(event, HandlerFailed) for event in fsm.seen) == 1


@pytest.mark.every_backend
async def test_an_update_that_fails_before_its_claim_is_reported_and_counted(backend: Backend) -> None:
    storage = backend.storage()
    fsm = FSM("bot", storage=storage, flows=[Short])
    moved = {"update_id": 7, "message": {"message_id": 1, "chat": {"id": -5}, "migrate_to_chat_id": -1005}}
    async with fsm.conversation(message(chat=-5)) as ctx:
        ctx.start_flow(Short)
    seen: list[FSMEvent] = []
    fsm.subscribe(seen.append)
    async with Slot(storage, "bot", (-5, 42)):
        with pytest.raises(AlreadyHeld) as busy:
            await fsm.handle(moved, lambda ctx: None)
    await storage.close()
    fsm.ready = False
    with pytest.raises(StorageClosed) as closed:
        await fsm.handle(message(), lambda ctx: None)
    assert [type(event) for event in seen] == [UpdateReceived, HandlerFailed, UpdateHandled] * 2
    assert [event.error for event in seen if isinstance(event, HandlerFailed)] == [busy.value, closed.value]
    assert fsm.failed == 2


def _failing(update: Update) -> Any:
    raise LookupError("no tenant")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": lambda update: object()}, InvalidKey),
        ({"key": _failing}, LookupError),
        ({"update_id": _failing}, LookupError),
    ],
    ids=["unsupported", "key", "update_id"],
)
async def test_an_update_without_a_key_because_of_an_error_is_reported_and_counted(
    options: dict[str, Any], error: type[Exception]
) -> None:
    fsm = FSM("bot", storage=MemoryStorage(), flows=[Short], **options)
    seen: list[FSMEvent] = []
    for _ in range(2):
        with pytest.raises(error) as invalid:
            await fsm.handle(message(), lambda ctx: None)
        fsm.subscribe(seen.append)
    assert [type(event) for event in seen] == [UpdateReceived, HandlerFailed, UpdateHandled]
    assert [event.error for event in seen if isinstance(event, HandlerFailed)] == [invalid.value]
    assert {event.address for event in seen} == {
        fsm.storage.address("bot", (42, 42)) if "update_id" in options else None
    }
    assert (fsm.received, fsm.failed) == (2, 2)


async def test_a_timer_is_reported_with_the_state_that_timed_out(fsm: Machine, clock: Clock) -> None:
    await step(fsm, "b")
    clock.advance(7)
    assert await fsm.tick() == 1
    fired = fsm.seen[-1]
    assert isinstance(fired, TimerFired)
    assert (fired.flow, fired.state, fired.error, fired.key) == ("short", "b", None, KEY)
    assert any(isinstance(event, StateEntered) and event.state == "c" for event in fsm.seen)


async def test_a_timer_has_begun_before_its_write_even_if_the_process_pauses_before_it_is_reported(
    fsm: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def monotonic() -> float:
        now = time.monotonic()
        time.sleep(0.02)
        return now

    await step(fsm, "b")
    clock.advance(7)
    monkeypatch.setattr("stepwell.fsm.timers.timeouts.monotonic", monotonic)
    await fsm.tick()
    written, fired = (
        next(each for each in reversed(fsm.seen) if type(each) is kind) for kind in (Committed, TimerFired)
    )
    assert isinstance(fired, TimerFired)
    assert fired.at - fired.duration <= written.at


async def test_an_expired_conversation_is_reported_with_the_error_of_on_expired(clock: Clock) -> None:
    def fail(expired: object) -> None:
        raise ZeroDivisionError

    fsm = Machine(clock, on_expired=fail)
    await step(fsm, "c")
    clock.advance(101)
    await fsm.tick()
    expired = fsm.seen[-1]
    assert isinstance(expired, ConversationExpired)
    assert (expired.flow, expired.state, expired.key) == ("short", "c", KEY)
    assert isinstance(expired.error, ZeroDivisionError)


async def test_a_swept_conversation_is_reported_without_on_expired(fsm: Machine, clock: Clock) -> None:
    async with fsm:
        await step(fsm, "c")
        clock.advance(101)
        await fsm.storage._sweeper.sweep(fsm.storage)
    assert isinstance(fsm.seen[-1], ConversationExpired)


async def test_the_function_that_subscribe_returns_unsubscribes(fsm: Machine) -> None:
    fsm.unsubscribe()
    fsm.unsubscribe()
    await step(fsm, "b")
    assert fsm.seen == []


async def test_one_subscriber_gets_the_events_of_all_machines(clock: Clock, everywhere: list[FSMEvent]) -> None:
    for bot in ("one", "two"):
        await step(FSM(bot, storage=MemoryStorage(), flows=[Short]), "b")
    assert {event.bot for event in everywhere} == {"one", "two"}


async def test_a_failing_subscriber_is_logged_and_changes_nothing(
    fsm: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: FSMEvent) -> None:
        raise ZeroDivisionError

    fsm.subscribe(fail)
    with caplog.at_level(logging.ERROR):
        await step(fsm, "b")
    record = await fsm.storage.get_state("bot", KEY)
    assert record is not None
    assert record.state == "b"
    assert "a subscriber failed on Committed" in caplog.text


@pytest.mark.parametrize("callback", [None, "name"])
def test_a_subscriber_is_a_function(fsm: Machine, callback: object) -> None:
    with pytest.raises(InvalidOption, match="function"):
        fsm.subscribe(callback)  # type: ignore[arg-type]


def test_an_async_subscriber_is_refused(fsm: Machine) -> None:
    async def callback(event: FSMEvent) -> None: ...

    with pytest.raises(InvalidOption, match="async def"):
        fsm.subscribe(callback)
