"""Order and limits, in a loop whose clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stepwell.errors import InvalidOption
from stepwell.telegram import SendLimits
from stepwell.telegram.sending.limits import ChatId, Window, chat_of, messages_in
from stepwell.telegram.sending.queue import HeldTooLong, QueueClosed, SendQueue


class JumpingLoop(asyncio.SelectorEventLoop):
    """Never waits: where it would sleep, its clock moves on."""

    def __init__(self) -> None:
        super().__init__(_Selector(self))
        self.now = 1000.0
        self.timers = 0

    def time(self) -> float:
        return self.now

    def call_at(self, *args: Any, **options: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(*args, **options)


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "the loop would wait forever"
        self._loop.now += timeout
        return super().select(0)


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(main)


def now() -> float:
    return asyncio.get_running_loop().time() - 1000


class Bot:
    """Sends messages through a queue, and keeps when each left."""

    def __init__(self, limits: SendLimits | None = SendLimits(), *, patience: float = 1e9) -> None:  # noqa: B008
        self.queue = SendQueue(limits, patience=patience)
        self.sent: list[tuple[ChatId, int, float]] = []
        self.sizes: list[int] = []
        self.numbers: dict[ChatId, int] = {}

    async def send(
        self,
        chat: ChatId,
        messages: int = 1,
        *,
        takes: float = 0.05,
        again: Callable[[int], float | None] | None = None,
    ) -> None:
        number = self.numbers[chat] = self.numbers.get(chat, -1) + 1
        turn = self.queue.enter(chat, messages)
        try:
            await turn.wait()
            while True:
                self.sent.append((chat, number, now()))
                self.sizes.append(messages)
                await asyncio.sleep(0.05)
                pause = again(number) if again is not None else None
                if pause is None:
                    break
                self.queue.hold(chat, pause)
                await turn.again(pause)
            self.queue.accepted()
        finally:
            turn.leave()

    def messages(self, chats: list[ChatId]) -> list[tuple[float, int]]:
        return [(at, size) for (to, _, at), size in zip(self.sent, self.sizes, strict=True) if to in chats]

    def times(self, chat: ChatId | None = None) -> list[float]:
        return [at for to, _, at in self.sent if chat in (None, to)]


def most_within(times: list[float], seconds: float) -> int:
    """The most in any span that is shorter than this."""
    ordered = sorted(times)
    return max((sum(start <= at < start + seconds - 1e-6 for at in ordered) for start in ordered), default=0)


def test_a_chat_gets_a_burst_and_then_one_message_a_second() -> None:
    async def main() -> None:
        bot = Bot()
        await asyncio.gather(*(bot.send(42) for _ in range(6)))
        assert [number for _, number, _ in bot.sent] == [0, 1, 2, 3, 4, 5]
        assert bot.times() == pytest.approx([0, 0.05, 0.1, 1, 2, 3])

    run(main())


@pytest.mark.parametrize("group", [-5, "@channel"])
def test_a_group_gets_at_most_twenty_messages_in_any_minute(group: ChatId) -> None:
    async def main() -> None:
        bot = Bot()
        await asyncio.gather(*(bot.send(group) for _ in range(70)))
        assert most_within(bot.times(), 60) == 20
        assert bot.times()[-1] < 250
        assert [number for _, number, _ in bot.sent] == list(range(70))

    run(main())


def test_all_chats_get_at_most_thirty_messages_in_any_second_at_the_full_rate() -> None:
    async def main() -> None:
        bot = Bot()
        await asyncio.gather(*(bot.send(chat) for chat in range(1, 3001)))
        assert most_within(bot.times(), 1) == 30
        assert bot.times()[-1] == pytest.approx(99, abs=0.1)
        assert [chat for chat, _, _ in bot.sent] == list(range(1, 3001))

    run(main())


def test_an_album_counts_as_its_messages() -> None:
    async def main() -> None:
        bot = Bot()
        await asyncio.gather(*(bot.send(-5, 10) for _ in range(3)))
        # The second one waits until the ten messages of the first are paid for at one a second.
        assert bot.times()[:2] == pytest.approx([0, 8])
        assert bot.times()[2] == pytest.approx(60)
        await bot.send(7, 100)

    run(main())


def test_calls_that_are_no_messages_only_keep_their_order() -> None:
    async def main() -> None:
        bot = Bot(SendLimits(per_second=1, per_chat=0.1, burst=1))
        await asyncio.gather(bot.send(42), bot.send(42, 0), bot.send(42, 0), bot.send(42), bot.send(42, 0))
        assert bot.times() == pytest.approx([0, 0.05, 0.1, 10, 10.05])

    run(main())


def test_a_call_that_is_tried_again_is_not_overtaken_and_holds_up_only_its_chat() -> None:
    async def main() -> None:
        bot = Bot()
        tries = iter([5.0, 3.0, None])
        await asyncio.gather(
            bot.send(42, again=lambda number: next(tries)), bot.send(42), bot.send(7), bot.send(-5), bot.send(42, 0)
        )
        assert bot.times(42) == pytest.approx([0, 5.05, 8.1, 8.15, 8.2])
        assert [number for chat, number, _ in bot.sent if chat == 42] == [0, 0, 0, 1, 2]
        assert bot.times(7) == bot.times(-5) == [0]

    run(main())


def test_a_429_without_a_chat_holds_up_all_chats() -> None:
    async def main() -> None:
        bot = Bot()
        bot.queue.hold(None, 5)
        await asyncio.gather(bot.send(42), bot.send(-5), bot.send(7, 0))
        assert bot.times() == pytest.approx([5, 5, 5])

    run(main())


def test_a_whole_bot_that_is_limited_stops_after_a_few_refusals() -> None:
    async def main() -> None:
        bot = Bot()

        def limited(number: int) -> float | None:
            return 10 - now() if now() < 10 else None

        await asyncio.gather(*(bot.send(chat, again=limited) for chat in range(1, 101)))
        early = [at for at in bot.times() if at < 9]
        assert len(early) == 30
        assert len(bot.sent) == 130
        assert most_within(bot.times(), 1) == 30

    run(main())


def test_groups_that_are_limited_do_not_hold_up_the_whole_bot() -> None:
    async def main() -> None:
        bot = Bot()
        once = {group: iter([30.0, None]) for group in range(-5, 0)}
        groups = [
            asyncio.create_task(bot.send(group, again=lambda _, group=group: next(once[group]))) for group in once
        ]
        await asyncio.sleep(1)
        await bot.send(42)
        assert bot.times(42) == [1]
        await asyncio.gather(*groups)

    run(main())


def test_a_hold_beyond_the_patience_raises_at_once() -> None:
    async def main() -> None:
        bot = Bot(patience=60)
        bot.queue.hold(None, 61)
        results = await asyncio.gather(bot.send(42), bot.send(42), bot.send(7), return_exceptions=True)
        assert [type(result) for result in results] == [HeldTooLong] * 3
        assert now() == 0
        await asyncio.sleep(1)
        await bot.send(42)
        assert now() == pytest.approx(61.05)

    run(main())


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2, 3), (3,)])
def test_a_cancelled_call_gives_up_its_place(which: tuple[int, ...]) -> None:
    async def main() -> None:
        bot = Bot(SendLimits(burst=1, per_second=1))
        await bot.send(7)
        tasks = [asyncio.create_task(bot.send(42)) for _ in range(4)]
        await asyncio.sleep(0.2)
        for number in which:
            tasks[number].cancel()
        await asyncio.wait(tasks)
        left = [number for number in range(4) if number not in which]
        assert [number for chat, number, _ in bot.sent if chat == 42] == left
        assert bot.times(42) == pytest.approx([1 + at for at in range(len(left))])
        await asyncio.sleep(2)
        await bot.send(42)

    run(main())


def test_a_call_that_is_cancelled_while_it_is_started_lets_the_next_one_go_on() -> None:
    async def main() -> None:
        bot = Bot(SendLimits(burst=1))
        first = asyncio.create_task(bot.send(42))
        await asyncio.sleep(0.01)
        second, third = asyncio.create_task(bot.send(42)), asyncio.create_task(bot.send(42))
        await first
        # In the turn of the loop in which the timer starts it.
        asyncio.get_running_loop().call_at(1001, second.cancel)
        await third
        assert second.cancelled()

    run(main())


def test_closing_ends_all_waiting_calls() -> None:
    async def main() -> None:
        bot = Bot(SendLimits(per_second=2))
        tasks = [asyncio.create_task(bot.send(chat)) for chat in (1, 1, 1, 1, 2, 3, 4)]
        bot.queue.hold(4, 60)
        await asyncio.sleep(0.01)
        bot.queue.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results.count(None) == 2
        assert sum(isinstance(result, QueueClosed) for result in results) == 5
        assert len(bot.queue) == 0

    run(main())


def test_a_hundred_thousand_chats_take_little_memory_and_few_timers() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        bot, most = Bot(), 0
        chats = iter(range(1, 100_001))

        async def worker() -> None:
            nonlocal most
            for chat in chats:
                turn = bot.queue.enter(chat, 1)
                await turn.wait()
                turn.leave()
                most = max(most, len(bot.queue))

        await asyncio.gather(*(worker() for _ in range(50)))
        assert now() == pytest.approx(100_000 / 30, rel=0.01)
        assert most <= 1100
        # One timer for each second's messages.
        assert loop.timers < 5000
        await asyncio.sleep(10)
        bot.queue.enter(-1, 1).leave()

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_overtaken_or_too_fast_whatever_happens(seed: int) -> None:
    """Random calls of random chats, of which some are refused, held or cancelled."""
    chance = random.Random(seed)
    limits = SendLimits(
        per_second=chance.choice([None, 1, 3, 30]),
        per_chat=chance.choice([None, 0.5, 5]),
        burst=chance.randint(1, 4),
        per_group=chance.choice([None, 2, 20]),
    )
    chats: list[ChatId] = [1, 2, 3, -4, -5, "@six"]

    async def main() -> None:
        bot = Bot(limits)

        def again(number: int) -> float | None:
            return chance.choice([0.01, 1, 7]) if chance.random() < 0.2 else None

        async def send() -> str:
            await asyncio.sleep(chance.random() * 20)
            chat, messages = chance.choice(chats), chance.choice([0, 1, 1, 1, 2])
            try:
                async with asyncio.timeout(chance.choice([0.03, 5, None, None])):
                    await bot.send(chat, messages, again=again)
            except TimeoutError:
                return "cancelled"
            return "sent"

        tasks = [asyncio.create_task(send()) for _ in range(300)]
        for _ in range(3):
            await asyncio.sleep(chance.random() * 10)
            bot.queue.hold(chance.choice([None, *chats]), chance.random() * 5)
        results = await asyncio.gather(*tasks)
        assert set(results) == {"sent", "cancelled"}
        for chat in chats:
            numbers = [number for to, number, _ in bot.sent if to == chat]
            assert numbers == sorted(numbers)
        every = [at for at, messages in bot.messages(chats) for _ in range(messages)]
        if limits.per_second is not None and limits.per_second > 1:
            assert most_within(every, 1) <= limits.per_second
        groups = [[at for at, messages in bot.messages([chat]) for _ in range(messages)] for chat in chats[3:]]
        if limits.per_group is not None:
            assert all(most_within(times, 60) <= limits.per_group for times in groups)
        await asyncio.sleep(1000)
        for chat in range(100, 100 + 2000):
            bot.queue.enter(chat, 0).leave()
        assert len(bot.queue) <= len(chats)

    run(main())


def test_unused_limits_are_dropped_with_their_chat() -> None:
    async def main() -> None:
        bot = Bot(None)
        await asyncio.gather(*(bot.send(chat) for chat in range(1, 11)))
        assert len(bot.queue) == 0

    run(main())


# Which calls count


@pytest.mark.parametrize(
    ("method", "params", "messages"),
    [
        ("sendMessage", {}, 1),
        ("sendmessage", {}, 1),
        ("copyMessage", {}, 1),
        ("forwardMessages", {"message_ids": [1, 2, 3]}, 3),
        ("sendMediaGroup", {"media": [{}, {}]}, 2),
        ("sendMediaGroup", {"media": "[]"}, 1),
        ("sendChatAction", {}, 0),
        ("editMessageText", {}, 0),
        ("deleteMessages", {"message_ids": [1, 2, 3]}, 0),
        ("getUpdates", {}, 0),
        ("answerCallbackQuery", {}, 0),
    ],
)
def test_messages_of_a_call(method: str, params: dict[str, Any], messages: int) -> None:
    assert messages_in(method, params) == messages


@pytest.mark.parametrize(
    ("method", "chat_id", "chat"),
    [
        ("sendMessage", 42, 42),
        ("sendMessage", "42", 42),
        ("sendMessage", "-100", -100),
        ("sendMessage", "@News", "@news"),
        ("editMessageText", 42, 42),
        ("getChat", 42, None),
        ("sendMessage", None, None),
        ("sendMessage", True, None),
        ("sendMessage", [42], None),
    ],
)
def test_chat_of_a_call(method: str, chat_id: Any, chat: ChatId | None) -> None:
    assert chat_of(method, {"chat_id": chat_id}) == chat
    assert chat_of(method, {}) is None


@pytest.mark.parametrize(
    "options",
    [
        {"per_second": 0},
        {"per_second": 1.5},
        {"per_second": True},
        {"per_chat": 0},
        {"per_chat": float("inf")},
        {"per_chat": "1"},
        {"per_group": -1},
        {"burst": None},
        {"burst": 0},
    ],
)
def test_invalid_limits_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        SendLimits(**options)


def test_a_window_is_exact() -> None:
    window = Window(2, 1.0)
    assert window.ready_at(1) < 0
    window.take(10.0, 1)
    window.take(10.4, 1)
    assert window.ready_at(1) == 11.0
    assert window.ready_at(2) == 11.4
    assert window.ready_at(50) == 11.4
    assert window.empty_at == 11.4
