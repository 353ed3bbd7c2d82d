"""What a message does that arrives while a turn runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import StorageUnavailable
from stepwell.storage import Apply, Operation
from stepwell.turns import Admission, Message, Turn, Turns
from tests.backends import Backend
from tests.turns.people import ANN, People, state_of, working
from tests.until import forever, until


class Slow:
    """Turns whose handler waits until the test lets it go on."""

    def __init__(self, on_busy: str, **options: Any) -> None:
        self.turns = Turns("bot", storage=MemoryStorage(), collect=0.0, on_busy=on_busy, **options)  # type: ignore[arg-type]
        self.seen: list[list[str]] = []
        self.steered: list[str] = []
        self.go_on = asyncio.Event()
        self.most = self.running = 0

        @self.turns.handler
        async def answer(turn: Turn) -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                self.seen.append([message.text for message in turn.messages])
                async with turn.stream() as out:
                    out.write(f"about {turn.messages[0].text}")
                    if len(self.seen) == 1:
                        await self.go_on.wait()
                    more: list[Message] = await turn.steered()
                    self.steered += [message.text for message in more]
            finally:
                self.running -= 1

    async def begin(self, people: People) -> None:
        await self.turns.admit(people.message("one"))
        await until(lambda: self.seen)


async def test_queue_makes_one_turn_of_each_message_and_keeps_an_album_together() -> None:
    slow, people = Slow("queue"), People()
    async with working(slow.turns, people):
        await slow.begin(people)
        await slow.turns.admit(people.message("two"))
        for _ in range(2):
            await slow.turns.admit(people.message(media_group_id="a", caption="picture", photo=[{}]))
        await slow.turns.admit(people.message("three"))
        slow.go_on.set()
        await people.answered(4)
    assert slow.seen == [["one"], ["two"], ["picture", "picture"], ["three"]] and slow.most == 1


async def test_merge_makes_one_turn_of_all_that_wait() -> None:
    slow, people = Slow("merge"), People()
    async with working(slow.turns, people):
        await slow.begin(people)
        for number in range(100):
            assert (await slow.turns.admit(people.message(str(number)))).waiting == number + 1
        slow.go_on.set()
        await people.answered(2)
        await state_of(slow.turns, "idle")
    assert slow.seen == [["one"], [str(number) for number in range(100)]] and slow.most == 1


async def test_merge_waits_for_the_window_that_was_opened_during_the_turn() -> None:
    slow, people = Slow("merge"), People()
    slow.turns.rules = type(slow.turns.rules)("merge", 0.4, 5.0, 100, 10**6)
    async with working(slow.turns, people):
        await slow.turns.admit(people.message("one"))
        await until(lambda: slow.seen)
        await slow.turns.admit(people.message("two"))
        slow.go_on.set()
        await people.answered()
        await state_of(slow.turns, "collecting")
        await slow.turns.admit(people.message("three"))
        await people.answered(2)
    assert slow.seen == [["one"], ["two", "three"]]


async def test_steer_gives_messages_to_the_running_turn_and_the_rest_to_the_next() -> None:
    slow, people = Slow("steer"), People()
    async with working(slow.turns, people):
        await slow.begin(people)
        await slow.turns.admit(people.message("two"))
        slow.go_on.set()
        await people.answered()
        await state_of(slow.turns, "idle")
        assert slow.steered == ["two"] and slow.seen == [["one"]]
        assert [entry["content"] for entry in await slow.turns.history(ANN).read()] == ["one\ntwo", "about one"]


@pytest.mark.parametrize("policy", ["interrupt", "rollback"])
async def test_interrupt_keeps_the_partial_answer_and_rollback_forgets_the_turn(policy: str) -> None:
    slow, people = Slow(policy), People()
    async with working(slow.turns, people):
        await slow.begin(people)
        await slow.turns.admit(people.message("two"))
        await people.answered(2 if policy == "interrupt" else 1)
        await state_of(slow.turns, "idle")
        history = [entry["content"] for entry in await slow.turns.history(ANN).read()]
    assert slow.seen == [["one"], ["two"]] and slow.most == 1
    kept = ["about one [stopped]"] if policy == "interrupt" else []
    assert people.texts == [*kept, "about two"]
    assert history == [*(["one", *kept] if kept else []), "two", "about two"]


async def test_reject_refuses_visibly_and_only_while_a_turn_runs() -> None:
    slow, people = Slow("reject"), People()
    async with working(slow.turns, people):
        await slow.begin(people)
        refused = await slow.turns.admit(people.message("two"))
        assert refused.outcome == "busy" and refused and "busy" in refused.calls[0]["text"]
        slow.go_on.set()
        await state_of(slow.turns, "idle")
        assert (await slow.turns.admit(people.message("three"))).outcome == "taken"
        await people.answered(2)
    assert slow.seen == [["one"], ["three"]]


async def test_every_policy_can_say_that_a_message_waits() -> None:
    def told(admission: Admission) -> str | None:
        return f"{admission.outcome} ({admission.waiting})"

    for policy in ("queue", "merge", "steer", "reject"):
        slow, people = Slow(policy, on_waiting=told), People()
        async with working(slow.turns, people):
            await slow.begin(people)
            calls = (await slow.turns.admit(people.message("two"))).calls
            slow.go_on.set()
        expected = "busy (0)" if policy == "reject" else "taken (1)"
        assert calls == [{"method": "sendMessage", "chat_id": 42, "text": expected}]


async def test_steered_gives_nothing_with_other_policies() -> None:
    slow, people = Slow("merge"), People()
    async with working(slow.turns, people):
        await slow.begin(people)
        await slow.turns.admit(people.message("two"))
        slow.go_on.set()
        await people.answered(2)
    assert slow.steered == [] and slow.seen == [["one"], ["two"]]


async def test_a_long_handler_and_a_late_message_never_run_twice_at_once() -> None:
    turns, people = Turns("bot", storage=MemoryStorage(), collect=0.0, lease=0.3), People()
    other = Turns("bot", storage=turns.storage, collect=0.0, lease=0.3)
    running = most = 0

    async def answer(turn: Turn) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        # Several leases.
        await asyncio.sleep(1.0)
        running -= 1
        turn.answer(turn.text)

    turns.handler(answer)
    other.handler(answer)
    async with working(turns, people), working(other, people):
        await turns.admit(people.message("one"))
        await asyncio.sleep(0.8)
        await other.admit(people.message("two"))
        await people.answered(2)
    assert most == 1 and people.texts == ["one", "two"]


async def test_a_stop_ends_only_the_turn_that_runs() -> None:
    slow, people = Slow("merge"), People()
    async with working(slow.turns, people):
        assert not await slow.turns.stop(ANN), "none runs"
        await slow.begin(people)
        turn = (await slow.turns.status(ANN)).turn
        assert not await slow.turns.stop(ANN, turn="another")
        await slow.turns.admit(people.message("two"))
        assert await slow.turns.stop(ANN, turn=turn)
        assert await people.answered(2) == ["about one [stopped]", "about two"]
        assert not await slow.turns.stop(ANN, turn=turn), "it has ended"
        await state_of(slow.turns, "idle")


@pytest.mark.every_backend
async def test_a_stop_that_is_delivered_again_stops_no_later_turn(backend: Backend) -> None:
    turns, people = Turns("bot", storage=backend.storage(), collect=0.0), People()
    gates: dict[str, asyncio.Event] = {text: asyncio.Event() for text in ("one", "two", "three")}

    @turns.handler
    async def answer(turn: Turn) -> None:
        async with turn.stream() as out:
            out.write(f"about {turn.text}")
            await gates[turn.text].wait()

    async def runs(text: str) -> None:
        await until(lambda: turns.status(ANN), lambda now: now.turn is not None and now.messages[0].text == text)

    stop, idle_stop = people.message("/stop"), people.message("/stop")
    async with working(turns, people):
        await turns.admit(people.message("one"))
        await runs("one")
        await turns.admit(stop)
        assert await people.answered(1) == ["about one [stopped]"]
        await state_of(turns, "idle")
        # It stops nothing, and is known all the same.
        await turns.admit(idle_stop)
        await turns.admit(people.message("two"))
        await runs("two")
        for again in (stop, idle_stop):
            assert not await turns.admit(again)
        assert not (await turns.status(ANN)).stopping
        gates["two"].set()
        assert await people.answered(2) == ["about one [stopped]", "about two"]
        await turns.admit(people.message("three"))
        await runs("three")
        await turns.admit(people.message("/stop"))
        assert (await people.answered(3))[2] == "about three [stopped]"


async def test_a_stop_whose_write_failed_stops_nothing_before_it_is_delivered_again() -> None:
    class Away(MemoryStorage):
        away = False

        async def perform(self, operation: Operation) -> Any:
            if self.away and isinstance(operation, Apply) and operation.guard is not None and not operation.guard.token:
                raise StorageUnavailable("away")
            return await super().perform(operation)

    slow, people = Slow("merge"), People()
    storage = Away()
    slow.turns.move_to(storage)
    async with working(slow.turns, people):
        await slow.begin(people)
        stop = people.message("/stop")
        storage.away = True
        with pytest.raises(StorageUnavailable):
            await slow.turns.admit(stop)
        storage.away = False
        slow.go_on.set()
        assert await people.answered() == ["about one"]


async def test_the_command_stop_and_the_button_of_a_draft_stop_and_a_turn_without_text_says_so() -> None:
    from stepwell.turns.record import draft_id_of

    turns, people = Turns("bot", storage=MemoryStorage(), collect=0.0), People()
    ended: list[bool] = []

    @turns.handler
    async def answer(turn: Turn) -> None:
        try:
            await forever()
        finally:
            ended.append(turn.stopped.is_set())

    async with working(turns, people):
        await turns.admit(people.message("one"))
        await state_of(turns, "running")
        assert not await turns.admit(people.message("/stop")), "handlers of a router get it too"
        assert await people.answered() == ["Stopped."]
        await state_of(turns, "idle")
        await turns.admit(people.message("two"))
        await state_of(turns, "running")
        draft = draft_id_of((await turns.status(ANN)).turn or "")
        for number, wrong in ((5000, draft + 1), (5001, draft)):
            kind = {"chat": {"id": 42, "type": "private"}, "draft_id": wrong}
            await turns.admit({"update_id": number, "stopped_message_generation": kind})
        await people.answered(2)
    assert ended == [True, True]
