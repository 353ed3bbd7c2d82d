"""Answers without an update, of timers and jobs, are kept with the commit until they are sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import MemoryStorage, Storage
from stepwell.errors import BotApiError, BotUnavailable, StepwellError
from stepwell.fsm import FSM, Context, Flow, Router, command, state
from stepwell.storage.operations import Get
from stepwell.telegram import InputFile
from stepwell.testing import Clock
from tests.backends import Backend
from tests.constants import Constants
from tests.until import until

KEY = (42, 42)


async def remind(ctx: Context) -> None:
    ctx.answer("Are you there?")
    ctx.answer("Bye.")
    ctx.clear_flow()


async def ask_again(ctx: Context) -> None:
    ctx.answer("Your name, please.")


class Form(Flow, name="form"):
    name = state(to=["email"], timeout=10, on_timeout=remind)
    email = state(to=[], timeout=10, on_timeout=ask_again)
    default_state = name


class Killed(BaseException):
    """Ends a task without any cleanup of the outbox."""


class Telegram:
    """Takes calls, or fails."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.errors: list[BaseException] = []

    async def send(self, call: dict[str, Any]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append(call["text"])


def update(number: int, text: str) -> dict[str, Any]:
    person = {"id": 42, "first_name": "A", "is_bot": False}
    message = {"message_id": number, "date": 0, "chat": {**person, "type": "private"}, "from": person, "text": text}
    return {"update_id": number, "message": message}


def make_fsm(storage: Storage, telegram: Telegram) -> FSM:
    return FSM("my_bot", storage=storage, flows=[Form], send=telegram.send)


async def begin(fsm: FSM, to: str | None = None) -> None:
    async with fsm.conversation(key=KEY) as ctx:
        ctx.start_flow(Form)
        if to is not None:
            ctx.transition(to)


async def visible(fsm: FSM) -> list[Any]:
    return [entry.key async for entry in fsm.find()]


@pytest.mark.every_backend
async def test_a_worker_that_dies_after_the_commit_leaves_its_answers_to_another(
    backend: Backend, clock: Clock
) -> None:
    storage, telegram = backend.storage(clock=clock), Telegram()
    fsm = make_fsm(storage, telegram)
    await begin(fsm)
    clock.advance(11)
    # The process ends while it sends the first call.
    telegram.errors = [Killed()]
    with pytest.raises(Killed):
        await fsm.tick()
    assert await visible(fsm) == []
    other = make_fsm(storage, telegram)
    assert await other.tick() == 0
    clock.advance(61)
    assert await other.tick() == 1
    assert telegram.sent == ["Are you there?", "Bye."]
    assert await storage.get_state("my_bot", KEY) is None
    clock.advance(1000)
    assert await other.tick() == 0


async def test_workers_that_die_again_and_again_do_not_make_an_answer_wait_longer(
    backend: Backend, clock: Clock
) -> None:
    storage, telegram = backend.storage(clock=clock), Telegram()
    fsm = make_fsm(storage, telegram)
    await begin(fsm)
    clock.advance(11)
    for _ in range(6):
        telegram.errors = [Killed()]
        with pytest.raises(Killed):
            await make_fsm(storage, telegram).tick()
        clock.advance(61)
    assert await make_fsm(storage, telegram).tick() == 1
    assert telegram.sent == ["Are you there?", "Bye."]


async def test_pauses_grow_while_the_bot_api_is_away(backend: Backend, clock: Clock) -> None:
    storage, telegram = backend.storage(clock=clock), Telegram()
    fsm = make_fsm(storage, telegram)
    await begin(fsm)
    clock.advance(11)
    telegram.errors = [BotUnavailable("sendMessage", 502, "Bad Gateway") for _ in range(3)]
    for pause in (60, 60, 120):
        assert await fsm.tick() == 1
        clock.advance(pause - 1)
        assert await fsm.tick() == 0
        clock.advance(2)
    assert await fsm.tick() == 1
    assert telegram.sent == ["Are you there?", "Bye."]


async def test_answers_wait_while_the_bot_api_is_away_and_stay_in_order(backend: Backend, clock: Clock) -> None:
    storage, telegram = backend.storage(clock=clock), Telegram()
    fsm = make_fsm(storage, telegram)
    await begin(fsm)
    clock.advance(11)
    telegram.errors = [BotUnavailable("sendMessage", 502, "Bad Gateway")]
    assert await fsm.tick() == 1
    assert telegram.sent == []
    clock.advance(61)
    assert await fsm.tick() == 1
    assert telegram.sent == ["Are you there?", "Bye."]
    assert await storage.get_state("my_bot", KEY) is None


async def test_only_calls_that_are_left_are_sent_again(clock: Clock, backend: Backend) -> None:
    storage, telegram = backend.storage(clock=clock), Telegram()
    fsm = make_fsm(storage, telegram)
    await begin(fsm)
    clock.advance(11)

    outage_ends = clock() + 30

    async def send(call: dict[str, Any]) -> None:
        if call["text"] == "Bye." and clock() < outage_ends:
            raise ConnectionError("cut")
        await telegram.send(call)

    fsm.send = send
    assert await fsm.tick() == 1
    assert telegram.sent == ["Are you there?"]
    clock.advance(61)
    assert await fsm.tick() == 1
    assert telegram.sent == ["Are you there?", "Bye."]


async def test_a_refused_call_is_final(clock: Clock, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    storage, telegram = backend.storage(clock=clock), Telegram()
    fsm = make_fsm(storage, telegram)
    await begin(fsm)
    clock.advance(11)
    telegram.errors = [BotApiError("sendMessage", 400, "Bad Request: message is too long")]
    await fsm.tick()
    assert telegram.sent == ["Bye."]
    assert "message is too long" in caplog.text
    clock.advance(1000)
    assert await fsm.tick() == 0


async def test_the_conversation_goes_on_while_its_answer_waits(clock: Clock, backend: Backend) -> None:
    storage, telegram = backend.storage(clock=clock), Telegram()
    fsm = make_fsm(storage, telegram)
    await begin(fsm, "email")
    clock.advance(11)
    telegram.errors = [ConnectionError("cut")]
    await fsm.tick()
    assert await visible(fsm) == [KEY]
    record = await storage.get_state("my_bot", KEY)
    assert record is not None
    assert record.state == "email"
    stored = await storage.perform(Get(storage.address("my_bot", KEY)))
    assert stored.expires_at is None
    async with fsm.conversation(key=KEY) as ctx:
        ctx.update_data(seen=1)
    clock.advance(61)
    await fsm.tick()
    assert telegram.sent == ["Your name, please."]
    stored = await storage.perform(Get(storage.address("my_bot", KEY)))
    assert (stored.expires_at, stored.deadline) == (None, None)


@pytest.mark.parametrize("outage", [0, 1, 2])
async def test_a_conversation_with_a_ttl_expires_at_its_time_after_a_timer_has_answered(
    clock: Clock, backend: Backend, outage: int
) -> None:
    storage, telegram = backend.storage(clock=clock), Telegram()
    fsm = FSM("my_bot", storage=storage, flows=[Form], send=telegram.send, ttl=100)
    await begin(fsm, "email")
    clock.advance(11)
    telegram.errors = [ConnectionError("cut")] * outage
    await fsm.tick()
    for _ in range(outage):
        clock.advance(61)
        await fsm.tick()
    assert telegram.sent == ["Your name, please."]
    if outage < 2:
        record = await storage.get_state("my_bot", KEY)
        assert record is not None
        assert record.state == "email"
        clock.advance(100 - 61 * outage)
    assert await storage.get_state("my_bot", KEY) is None
    await storage.sweep()
    stored = await storage.perform(Get(storage.address("my_bot", KEY)))
    assert stored is None


async def test_a_timeout_that_the_next_update_applies_is_answered_first(clock: Clock, backend: Backend) -> None:
    storage, telegram = backend.storage(clock=clock), Telegram()
    router = Router(make_fsm(storage, telegram), send=telegram.send)

    @router.on(command("hello"))
    async def hello(ctx: Context) -> None:
        ctx.answer("Hello!")

    assert router.fsm is not None
    await begin(router.fsm)
    clock.advance(11)
    await router.handle(update(1, "/hello"))
    assert telegram.sent == ["Are you there?", "Bye.", "Hello!"]
    assert await storage.get_state("my_bot", KEY) is None


async def test_a_job_may_answer(clock: Clock, backend: Backend) -> None:
    storage, telegram = backend.storage(clock=clock), Telegram()
    fsm = make_fsm(storage, telegram)
    telegram.errors = [ConnectionError("cut")]
    async with fsm.conversation(key=KEY) as ctx:
        ctx.answer("Your parcel has arrived.")
    assert await visible(fsm) == []
    clock.advance(61)
    assert await fsm.tick() == 1
    assert telegram.sent == ["Your parcel has arrived."]
    async with fsm.conversation(key=KEY) as ctx:
        ctx.answer("And another one.")
    assert telegram.sent[1:] == ["And another one."]
    assert await storage.get_state("my_bot", KEY) is None


async def test_a_job_without_a_sender_cannot_answer(backend: Backend) -> None:
    fsm = FSM("my_bot", storage=backend.storage(), flows=[Form])
    with pytest.raises(StepwellError):
        async with fsm.conversation(key=KEY) as ctx:
            ctx.answer("never sent")


async def test_calls_that_cannot_be_stored_are_still_sent(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    sent = []

    async def send(call: dict[str, Any]) -> None:
        sent.append(call)

    fsm = FSM("my_bot", storage=MemoryStorage(clock=clock), flows=[Form], send=send)
    async with fsm.conversation(key=KEY) as ctx:
        ctx.call("sendPhoto", chat_id=42, photo=object())
    assert len(sent) == 1
    assert "sent but not stored" in caplog.text


async def test_calls_that_are_too_large_for_the_record_are_still_sent(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    telegram = Telegram()
    fsm = make_fsm(MemoryStorage(clock=clock), telegram)
    async with fsm.conversation(key=KEY) as ctx:
        ctx.start_flow(Form)
        ctx.call("sendDocument", chat_id=42, document=b"x" * 300_000, text="large")
    assert telegram.sent == ["large"]
    assert "sent but not stored" in caplog.text
    assert await visible(fsm) == [KEY]


async def test_a_file_is_the_same_in_the_second_attempt(clock: Clock, backend: Backend) -> None:
    sent: list[Any] = []

    async def send(call: dict[str, Any]) -> None:
        sent.append(call["photo"])
        if len(sent) == 1:
            raise ConnectionError("cut")

    storage = backend.storage(clock=clock)
    fsm = FSM("my_bot", storage=storage, flows=[Form], send=send)
    photo = InputFile(content=b"\x00\xff", filename="cat.jpg")
    async with fsm.conversation(key=KEY) as ctx:
        ctx.call("sendPhoto", chat_id=42, photo=photo)
    clock.advance(61)
    assert await fsm.tick() == 1
    assert sent == [photo, photo]


async def test_only_the_call_that_fails_is_dropped_after_the_last_attempt(
    clock: Clock, backend: Backend, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    constants(outbox_most_attempts=2)
    storage, telegram = backend.storage(clock=clock), Telegram()
    fsm = make_fsm(storage, telegram)
    await begin(fsm)
    telegram.errors = [ValueError("a defect of send") for _ in range(3)]
    clock.advance(11)
    await fsm.tick()
    for _ in range(2):
        clock.advance(4000)
        await fsm.tick()
    assert telegram.sent == ["Bye."]
    assert "sendMessage could not be sent and is dropped" in caplog.text
    assert await storage.get_state("my_bot", KEY) is None


async def test_answers_of_several_jobs_stay_in_order(clock: Clock, backend: Backend) -> None:
    storage, telegram = backend.storage(clock=clock), Telegram()
    fsm = make_fsm(storage, telegram)
    telegram.errors = [ConnectionError("cut")]
    for number in range(3):
        async with fsm.conversation(key=KEY) as ctx:
            ctx.answer(f"parcel {number}")
    assert telegram.sent == []
    clock.advance(61)
    assert await fsm.tick() == 1
    assert telegram.sent == ["parcel 0", "parcel 1", "parcel 2"]
    assert await storage.get_state("my_bot", KEY) is None


async def test_a_job_that_answers_while_another_sends_is_sent_after_it(backend: Backend) -> None:
    sent: list[str] = []
    begun, proceed = asyncio.Event(), asyncio.Event()

    async def send(call: dict[str, Any]) -> None:
        begun.set()
        await proceed.wait()
        sent.append(call["text"])

    fsm = FSM("my_bot", storage=backend.storage(), flows=[Form], send=send)

    async def job(words: str) -> None:
        async with fsm.conversation(key=KEY) as ctx:
            ctx.answer(words)

    first = asyncio.create_task(job("first"))
    await begun.wait()
    await job("second")
    assert sent == []
    proceed.set()
    await first
    assert sent == ["first", "second"]


class SlowTelegram(Telegram):
    """Takes calls when it may proceed."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.proceed = asyncio.Event(), asyncio.Event()

    async def send(self, call: dict[str, Any]) -> None:
        self.begun.set()
        await self.proceed.wait()
        await super().send(call)


@pytest.mark.parametrize("by", ["timer", "job"])
async def test_a_stop_waits_for_answers_that_are_being_sent(clock: Clock, backend: Backend, by: str) -> None:
    storage, telegram = backend.storage(clock=clock), SlowTelegram()
    fsm = make_fsm(storage, telegram)
    await fsm.__aenter__()
    job = asyncio.create_task(answer(fsm) if by == "job" else begin(fsm))
    if by == "timer":
        await job
        clock.advance(11)
    await telegram.begun.wait()
    job.cancel()
    stopping = asyncio.create_task(fsm.__aexit__(None, None, None))
    await asyncio.wait((stopping,), timeout=0.05)
    assert not stopping.done()
    telegram.proceed.set()
    await stopping
    assert telegram.sent == ["Are you there?", "Bye."]
    async with make_fsm(storage, telegram) as other:
        clock.advance(1000)
        await other.tick()
    assert telegram.sent == ["Are you there?", "Bye."]


async def answer(fsm: FSM) -> None:
    async with fsm.conversation(key=KEY) as ctx:
        ctx.answer("Are you there?")
        ctx.answer("Bye.")


@pytest.mark.every_backend
async def test_answers_that_are_not_sent_before_a_stop_are_sent_after_the_next_start(
    clock: Clock, backend: Backend, constants: Constants
) -> None:
    constants(outbox_stop_timeout=0.01)
    storage, slow, telegram = backend.storage(clock=clock), SlowTelegram(), Telegram()
    await storage.open()
    async with make_fsm(storage, slow) as fsm:
        await begin(fsm)
        clock.advance(11)
        await slow.begun.wait()
    assert slow.sent == []
    async with make_fsm(storage, telegram) as other:
        await until(lambda: len(telegram.sent) >= 2)
        await other.tick()
    assert telegram.sent == ["Are you there?", "Bye."]


@pytest.mark.every_backend
async def test_a_cancelled_stop_still_closes_the_storage_and_ends_its_listener_and_deliveries(
    backend: Backend, constants: Constants
) -> None:
    constants(outbox_stop_timeout=0.1)
    sending = asyncio.Event()

    async def send(call: dict[str, Any]) -> None:
        sending.set()
        await asyncio.Event().wait()

    storage = backend.storage()
    fsm = FSM("bot", storage=storage, flows=[], send=send)
    await fsm.__aenter__()
    job = asyncio.create_task(fsm.handle(None, lambda ctx: ctx.answer("late"), key=(42, 42)))
    await sending.wait()
    (delivery,) = fsm.deliveries
    stopping = asyncio.create_task(fsm.__aexit__(None, None, None))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not storage.is_open
    assert storage.expired_listeners == []
    assert delivery.done()
    with pytest.raises(asyncio.CancelledError):
        await job
