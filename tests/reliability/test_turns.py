"""Turns under kill -9, pauses and redeploys: no message is lost, none is in two turns, and tools run at most once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import uuid
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stepwell import Storage, open_storage
from stepwell.turns import Turn, Turns
from tests.backends import Backend
from tests.reliability.dose import LARGE, dose, seeded
from tests.reliability.turn_roles import LEASE, POINTS, answers_in, lines, pressed, update
from tests.reliability.workers import Workers
from tests.servers import postgres
from tests.servers.proxy import Proxy
from tests.servers.redis import the_server
from tests.until import until

MESSAGES = dose("TURN_MESSAGES", 150, 5000)
KILLS = dose("TURN_KILLS", 5, 250)
STOPS = dose("TURN_STOPS", 24, 2400)
#: How many chats write at once.
CHATS = 12
CUTS = dose("TURN_CUTS", 30, 1000)


@pytest.fixture
def place(shared_backend: Backend) -> str:
    """Return a store for processes that are killed."""
    if not shared_backend.durable:
        pytest.skip("this backend does not survive a kill")
    return shared_backend.place()


@pytest.fixture
async def turns(shared_backend: Backend, place: str) -> Turns:
    storage: Storage = shared_backend.storage(place, sweep_every=None)
    await storage.open()
    return Turns("bot", storage=storage, collect=0.05, lease=LEASE)


class Files:
    """What the payment service and Telegram have got."""

    def __init__(self, folder: Path) -> None:
        self.payments, self.sent = folder / "payments", folder / "sent"

    @property
    def options(self) -> dict[str, str]:
        return {"payments": str(self.payments), "sent": str(self.sent)}

    def cards(self) -> list[dict[str, Any]]:
        return [call for (call,) in lines(self.sent) if "reply_markup" in call]

    def answers(self) -> dict[str, tuple[list[int], str]]:
        """Return the messages and the result of each turn that was answered."""
        return answers_in(call.get("text", "") for (call,) in lines(self.sent))

    def answered(self) -> Counter[int]:
        return Counter(number for ids, _ in self.answers().values() for number in ids)


@pytest.mark.parametrize("point", POINTS)
async def test_a_turn_goes_on_after_a_kill_at_every_point(
    point: str, place: str, turns: Turns, workers: Workers, tmp_path: Path
) -> None:
    if not LARGE and turns.storage.location.startswith("redis") and POINTS.index(point) % 2:
        pytest.skip("every second point on this backend, all of them with the large dose")
    files = Files(tmp_path)
    first = workers.start("run_turns", place, kill_at=point, **files.options)
    await first.wait_for("ready")
    await turns.admit(update(1, "ask and pay"))
    if POINTS.index(point) > POINTS.index("asking"):
        card = (await until(files.cards))[0]
        await turns.admit(pressed(2, card, 0))
    await first.wait_ended()
    second = workers.start("run_turns", place, **files.options)
    await second.wait_for("ready")
    if POINTS.index(point) <= POINTS.index("asking"):
        card = (await until(files.cards))[-1]
        await turns.admit(pressed(2, card, 0))
    assert dict(await until(files.answered)) == {1: 1}
    await until(lambda: turns.status((42, 0)), lambda status: status.state == "idle" and not status.unsent)
    ((_, result),) = files.answers().values()
    paid = len(lines(files.payments))
    unknown = point in ("behind the intent", "in the tool", "before the result")
    assert result == ("unknown" if unknown else "receipt for ask and pay")
    assert paid == (0 if point == "behind the intent" else 1)
    assert await turns.history((42, 0)).read() == ["1"]


async def test_a_message_that_was_admitted_by_a_killed_process_is_answered_once(
    place: str, turns: Turns, workers: Workers, tmp_path: Path
) -> None:
    files = Files(tmp_path)
    poller = workers.start("send_messages", place, texts=["one", "two"], first=1, kill_behind=1)
    await poller.wait_ended()
    # Telegram sends both again.
    again = workers.start("send_messages", place, texts=["one", "two", "three"], first=1)
    await again.wait_for("done")
    workers.start("run_turns", place, **files.options)
    assert dict(await until(files.answered, lambda found: len(found) == 3)) == {1: 1, 2: 1, 3: 1}


async def test_a_turn_of_a_killed_process_goes_on_on_the_same_machine_long_before_its_lease_ends(
    place: str, turns: Turns, workers: Workers, tmp_path: Path
) -> None:
    files, options = Files(tmp_path), {"lease": 300.0}
    first = workers.start("run_turns", place, kill_at="in the tool", options=options, **files.options)
    await first.wait_for("ready")
    waiting = workers.start("run_turns", place, options=options, **files.options)
    await waiting.wait_for("ready")
    for number in range(1, 5):
        await turns.admit(update(number, "pay", chat=number))
    assert dict(await until(files.answered, lambda found: len(found) == 4)) == {1: 1, 2: 1, 3: 1, 4: 1}
    assert len(lines(files.payments)) <= 4, "none was paid twice"


async def test_a_worker_that_was_paused_past_its_lease_neither_writes_nor_sends(
    place: str, turns: Turns, workers: Workers, tmp_path: Path
) -> None:
    files = Files(tmp_path)
    first = workers.start("run_turns", place, kill_at="nowhere", **files.options)
    await first.wait_for("ready")
    await turns.admit(update(1, "ask"))
    card = (await until(files.cards))[0]
    await until(lambda: turns.status((42, 0)), lambda status: status.state == "asking")
    first.signal(signal.SIGSTOP)
    await turns.admit(pressed(2, card, 0))
    workers.start("run_turns", place, **files.options)
    await until(files.answered)
    first.signal(signal.SIGCONT)
    await turns.admit(update(3, "pay"))
    await until(files.answered, lambda found: 3 in found)
    await asyncio.sleep(2 * LEASE)
    assert dict(files.answered()) == {1: 1, 3: 1}
    assert len(lines(files.sent)) == 3, "one question and two answers"


async def test_a_redeploy_counts_no_attempt_and_the_next_worker_goes_on_at_once(
    place: str, turns: Turns, workers: Workers, tmp_path: Path
) -> None:
    files = Files(tmp_path)
    options = {"lease": 60.0, "attempts": 2}
    await turns.admit(update(1, "ask"))
    for _ in range(3):
        worker = workers.start("run_turns", place, options=options, **files.options)
        await worker.wait_for("ready")
        await until(lambda: turns.status((42, 0)), lambda status: status.state == "asking")
        worker.signal(signal.SIGTERM)
        await worker.wait_for("stopped")
    last = workers.start("run_turns", place, options=options, **files.options)
    await last.wait_for("ready")
    await turns.admit(pressed(2, files.cards()[0], 0))
    assert dict(await until(files.answered)) == {1: 1}
    assert len(files.cards()) == 1, "the question was asked once"


async def test_a_stop_reaches_its_turn_on_another_worker_or_does_nothing(
    shared_backend: Backend, place: str, turns: Turns, workers: Workers, tmp_path: Path
) -> None:
    """A stop names a turn. Either that is stopped, or it has ended and nothing later is."""
    random, files = seeded(), Files(tmp_path)
    worker = workers.start("stream_words", place, sent=str(files.sent))
    await worker.wait_for("ready")
    stopped: set[str] = set()

    async def chat(number: int) -> None:
        for place in range(STOPS // CHATS):
            await turns.admit(update(number + CHATS * place, "go", chat=number))
            if place % 2:
                # It may have ended already.
                with contextlib.suppress(TimeoutError):
                    await until(lambda: turns.status((number, 0)), lambda status: status.turn is not None, patience=2)
            await asyncio.sleep(random.uniform(0, 0.6))
            status = await turns.status((number, 0))
            if status.turn is not None and await turns.stop((number, 0), turn=status.turn):
                stopped.add(status.turn)

    await asyncio.gather(*map(chat, range(1, CHATS + 1)))

    def ends() -> dict[str, str]:
        texts = [call["text"].partition(" ")[::2] for (call,) in lines(files.sent) if call["text"] != "Stopped."]
        return dict(texts)

    await until(ends, lambda found: stopped <= set(found))
    marked = {turn for turn, text in ends().items() if text.endswith("[stopped]")}
    assert marked <= stopped, "no other turn was stopped"
    print(f"{STOPS} messages on {shared_backend.name}: {len(marked)} turns stopped, {len(stopped) - len(marked)} ended")
    assert len(marked) >= STOPS // 20


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_cut_connections_lose_and_double_no_message(kind: str) -> None:
    """Connections are cut before a write, behind it, and before its answer."""
    port = postgres.shared().port if kind == "postgres" else the_server().port
    name = f"turns{uuid.uuid4().hex[:16]}"
    answered: Counter[int] = Counter()

    async def send(call: dict[str, Any]) -> None:
        answered.update(int(number) for number in call["text"].split())

    async with Proxy(port, seed=7) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0?prefix={name}"
        if kind == "postgres":
            url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?schema={name}&sslmode=disable"
        async with open_storage(url, timeout=1.0, sweep_every=None) as storage:
            # People who type faster than anybody are not refused here.
            turns = Turns("bot", storage=storage, collect=0.0, lease=20.0, waiting=10**6, waiting_bytes=10**9)

            @turns.handler
            async def answer(turn: Turn) -> None:
                ids = " ".join(str(message.update.update_id) for message in turn.messages)
                turn.history.append(ids)
                turn.answer(ids)

            numbers = iter(range(1, 1_000_000))
            admitted: list[int] = []

            async def write(chat: int) -> None:
                while proxy.cuts < CUTS:
                    message = update(next(numbers), "go", chat=chat)
                    admitted.append(message["update_id"])
                    for attempt in count(1):
                        # Telegram delivers it again, until it is confirmed.
                        with contextlib.suppress(OSError):
                            await turns.admit(message)
                            break
                        await asyncio.sleep(0.01 * attempt)

            async with turns.worker(send=send, drain=0.0):
                proxy.cut_rate = 0.1
                await asyncio.gather(*map(write, range(1, 6)))
                proxy.cut_rate = 0.0
                await until(lambda: set(answered) == set(admitted))
                kept = [number for chat in range(1, 6) for number in await turns.history((chat, 0)).read()]
    assert sorted(int(number) for ids in kept for number in ids.split()) == admitted, "each is in one turn"
    print(f"{len(admitted)} messages, {proxy.cuts} cuts on {kind}")


async def test_people_who_type_while_workers_are_killed_are_answered_once_each(
    shared_backend: Backend, place: str, turns: Turns, workers: Workers, tmp_path: Path
) -> None:
    random, files = seeded(), Files(tmp_path)
    chats = range(1, 9)

    def start() -> Any:
        return workers.start("run_turns", place, **files.options)

    running = [start(), start()]
    sent: dict[int, str] = {}
    done = asyncio.Event()

    async def type_messages() -> None:
        for number in range(1, MESSAGES + 1):
            sent[number] = random.choice(["hello", "pay"])
            chat = random.choice(chats)
            message = update(number, sent[number], chat=chat)
            for _ in range(random.choice([1, 1, 2])):
                await turns.admit(message)
            await asyncio.sleep(random.uniform(0, 0.02))
        done.set()

    async def kill() -> None:
        for _ in range(KILLS):
            await asyncio.sleep(random.uniform(0.2, 0.8))
            victim = random.randrange(len(running))
            if random.random() < 0.5:
                await running[victim].kill()
            else:
                running[victim].signal(signal.SIGTERM)
                await running[victim].wait_ended()
            running[victim] = start()

    await asyncio.gather(type_messages(), kill())
    answered = await until(files.answered, lambda found: len(found) == MESSAGES)
    assert set(answered.values()) == {1}, "none is in two turns"

    async def all_idle() -> bool:
        return all([status.state == "idle" async for status in turns.conversations()])

    await until(all_idle)
    paying = Counter(text for _, text in lines(files.payments))
    turns_that_paid = [result for _, result in files.answers().values() if result]
    unknown = turns_that_paid.count("unknown")
    assert sum(paying.values()) <= len(turns_that_paid), "no payment was made twice"
    assert sum(paying.values()) >= len(turns_that_paid) - unknown
    print(f"{MESSAGES} messages, {KILLS} kills on {shared_backend.name}: {unknown} payments unknown")
