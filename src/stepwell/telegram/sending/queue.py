"""The calls that wait for their turn: first in, first out for each chat, under the limits of Telegram.

One call of a chat is under way at a time, so that a call that is retried is not overtaken. All waiting is done
by one timer: nothing polls.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import deque
from itertools import count

from stepwell.telegram.sending.limits import ChatId, SendLimits, Window, is_group

__all__ = ["HeldTooLong", "QueueClosed", "SendQueue", "SendTurn"]

#: The number of chats above which idle ones are dropped.
SWEEP_FROM = 1000
#: Number of private chats refused in a row after which Telegram is assumed to limit the whole bot.
WHOLE_BOT = 3
#: Seconds until a call is tried again that leaves only when no other waits.
BUSY = 0.2
#: The messages of a group's minute that such calls leave to others.
SPARE = 3
#: Timers may fire this early, in seconds.
_EARLY = time.get_clock_info("monotonic").resolution


class HeldTooLong(Exception):
    """Telegram accepts nothing here for longer than the caller is willing to wait."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds: float = seconds


class QueueClosed(Exception):
    """The queue was closed while a call waited."""


class SendQueue:
    """The waiting calls of one bot. It belongs to the loop it was created in.

    ``patience``: the longest time in seconds for which a call waits until Telegram accepts calls again.
    """

    def __init__(self, limits: SendLimits | None, *, patience: float = math.inf) -> None:
        self._limits = limits or SendLimits(per_second=None, per_chat=None, per_group=None)
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._window = None if self._limits.per_second is None else Window(self._limits.per_second, 1.0)
        self._chats: dict[ChatId, _Chat] = {}
        #: Chats whose first call waits only for the limit of the whole bot.
        self._ready: deque[_Chat] = deque()
        #: Chats to check again: time, order, chat.
        self._later: list[tuple[float, int, _Chat]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        #: Until when Telegram accepts nothing from the whole bot.
        self._held = -math.inf
        #: Private chats that were refused since a message was accepted.
        self._refused: set[ChatId] = set()
        self._sweep_at = SWEEP_FROM

    def __len__(self) -> int:
        """Return the number of chats in memory."""
        return len(self._chats)

    def enter(self, chat: ChatId, messages: int) -> SendTurn:
        """Put a call at the end of its chat's queue. Always call ``leave()`` on the result."""
        now = self._loop.time()
        found = self._chats.get(chat)
        if found is None:
            if len(self._chats) >= self._sweep_at:
                self._sweep(now)
            found = self._chats[chat] = _Chat(chat, self._limits)
        turn = SendTurn(self, found, messages)
        found.turns.append(turn)
        if len(found.turns) == 1:
            self._advance(found, now)
            if self._ready or self._later:
                self._run(now)
        return turn

    def enter_now(self, chat: ChatId, messages: int) -> SendTurn | float:
        """Return the place of a call that leaves now, or the seconds after which this may be tried again.

        Such a call takes the room of no other: it waits for those in the queue of its chat, and leaves some messages of
        a group's minute to others.
        """
        now = self._loop.time()
        found = self._chats.get(chat)
        if (found is not None and found.turns) or (messages and self._ready):
            return BUSY
        at = self._held
        if found is not None:
            at = max(at, found.held, found.ready_at(messages + SPARE) if messages else -math.inf)
        if messages and self._window is not None:
            at = max(at, self._window.ready_at(messages))
        return at - now if at > now + _EARLY else self.enter(chat, messages)

    def hold(self, chat: ChatId | None, seconds: float) -> None:
        """Send nothing to a chat for this long, as a 429 demands; without a chat, nothing at all."""
        until = self._loop.time() + seconds
        if chat is None:
            self._held = max(self._held, until)
            return
        found = self._chats.get(chat)
        if found is not None:
            found.held = max(found.held, until)
        if not is_group(chat):
            self._refused.add(chat)
            if len(self._refused) >= WHOLE_BOT:
                # Telegram does not say which limit was exceeded. Single chats are within theirs.
                self._held = max(self._held, until)

    def accepted(self) -> None:
        """Note that a message was accepted: Telegram does not limit the whole bot."""
        if self._refused:
            self._refused.clear()

    def close(self) -> None:
        """Make all waiting calls raise ``QueueClosed``."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        chats = list(self._chats.values())
        self._chats.clear()
        self._ready.clear()
        self._later.clear()
        for chat in chats:
            for turn in chat.turns:
                turn.fail(QueueClosed())
            chat.turns.clear()

    # For turns

    def again(self, turn: SendTurn, delay: float) -> None:
        """Let the first call of a chat wait for its turn again, at least this long."""
        now = self._loop.time()
        chat = turn.chat
        if chat.turns and chat.turns[0] is turn:
            chat.busy = False
            chat.held = max(chat.held, now + delay)
            self._advance(chat, now)
            self._run(now)
        else:
            turn.fail(QueueClosed())

    def leave(self, turn: SendTurn) -> None:
        """Remove a call, and start the next one of its chat."""
        chat = turn.chat
        if not chat.turns:
            return
        if chat.turns[0] is not turn:
            if turn in chat.turns:
                chat.turns.remove(turn)
            return
        chat.turns.popleft()
        chat.busy = False
        now = self._loop.time()
        if chat.turns:
            self._advance(chat, now)
            self._run(now)
        elif chat.is_idle(now):
            self._chats.pop(chat.id, None)

    # Internal

    def _advance(self, chat: _Chat, now: float) -> None:
        """Start the first call of a chat, or note what it waits for."""
        if chat.busy or chat.is_ready:
            return
        turn = chat.turns[0]
        held = max(chat.held, self._held)
        if held - now > self._patience:
            turn.fail(HeldTooLong(held - now))
            return
        at = max(held, chat.ready_at(turn.messages)) if turn.messages else held
        if at > now + _EARLY:
            self._wake(chat, at)
        elif turn.messages and self._window is not None:
            chat.is_ready = True
            self._ready.append(chat)
        else:
            self._start(turn, now)

    def _start(self, turn: SendTurn, now: float) -> None:
        turn.chat.busy = True
        if turn.messages:
            turn.chat.take(now, turn.messages)
            if self._window is not None:
                self._window.take(now, turn.messages)
        turn.start()

    def _wake(self, chat: _Chat, at: float) -> None:
        if chat.wake <= at:
            # It is checked before that time anyway.
            return
        chat.wake = at
        heapq.heappush(self._later, (at, next(self._order), chat))

    def _run(self, now: float) -> None:
        """Start all calls whose time has come, and set the timer for the next one."""
        later, ready = self._later, self._ready
        while later and later[0][0] <= now + _EARLY:
            at, _, chat = heapq.heappop(later)
            if chat.wake == at:
                chat.wake = math.inf
                if chat.turns:
                    self._advance(chat, now)
        at = math.inf
        while ready:
            chat = ready[0]
            if chat.turns:
                turn = chat.turns[0]
                at = self._window.ready_at(turn.messages) if self._window is not None and turn.messages else -math.inf
                if at > now + _EARLY:
                    break
            ready.popleft()
            chat.is_ready = False
            if not chat.turns:
                continue
            # A hold may have begun, or another call may have become the first one, since the chat was ready.
            if max(chat.held, self._held, chat.ready_at(turn.messages)) > now + _EARLY:
                self._advance(chat, now)
            else:
                self._start(turn, now)
            at = math.inf
        self._set_timer(min(at, later[0][0] if later else math.inf))

    def _set_timer(self, at: float) -> None:
        timer = self._timer
        if timer is not None:
            if timer.when() <= at:
                return
            timer.cancel()
            self._timer = None
        if at < math.inf:
            self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._run(self._loop.time())

    def _sweep(self, now: float) -> None:
        """Drop chats without calls whose limits are unused. Amortised, this is O(1) for each new chat."""
        for chat in [chat for chat in self._chats.values() if not chat.turns and chat.is_idle(now)]:
            del self._chats[chat.id]
        self._sweep_at = max(SWEEP_FROM, 2 * len(self._chats))


class _Chat:
    """The queue and the limits of one chat."""

    __slots__ = ("_burst", "_free_at", "_interval", "_window", "busy", "held", "id", "is_ready", "turns", "wake")

    def __init__(self, chat: ChatId, limits: SendLimits) -> None:
        self.id: ChatId = chat
        #: The first one is under way if ``busy``.
        self.turns: deque[SendTurn] = deque()
        self.busy: bool = False
        #: Whether it is in ``SendQueue._ready``.
        self.is_ready: bool = False
        #: The time of its valid entry in ``SendQueue._later``.
        self.wake: float = math.inf
        #: Until when Telegram accepts nothing.
        self.held: float = -math.inf
        self._interval = 0.0 if limits.per_chat is None else 1 / limits.per_chat
        self._burst = limits.burst
        #: The token bucket: the time at which it is full again.
        self._free_at = -math.inf
        self._window = Window(limits.per_group, 60.0) if limits.per_group is not None and is_group(chat) else None

    def ready_at(self, messages: int) -> float:
        at = self._free_at - (self._burst - 1) * self._interval
        return at if self._window is None else max(at, self._window.ready_at(messages))

    def take(self, now: float, messages: int) -> None:
        self._free_at = max(self._free_at, now) + messages * self._interval
        if self._window is not None:
            self._window.take(now, messages)

    def is_idle(self, now: float) -> bool:
        used = self._free_at if self._window is None else max(self._free_at, self._window.empty_at)
        return used <= now and self.held <= now and not self.is_ready


class SendTurn:
    """The place of one call in the queue."""

    __slots__ = ("_queue", "_started", "chat", "messages")

    def __init__(self, queue: SendQueue, chat: _Chat, messages: int) -> None:
        self._queue = queue
        self.chat: _Chat = chat
        #: How many messages the call sends.
        self.messages: int = messages
        #: ``None`` until a task waits; ``True`` or the exception if it started or failed before that.
        self._started: asyncio.Future[None] | BaseException | bool | None = None

    @property
    def started(self) -> bool:
        """Whether the call may leave."""
        return self._started is True

    async def wait(self) -> None:
        """Wait until the call may leave. Raises ``HeldTooLong`` or ``QueueClosed``."""
        started = self._started
        if isinstance(started, BaseException):
            raise started
        if started is None:
            self._started = asyncio.get_running_loop().create_future()
            await self._started

    async def again(self, delay: float) -> None:
        """Wait to send the same call again, not before the delay."""
        self._started = None
        self._queue.again(self, delay)
        await self.wait()

    def leave(self) -> None:
        """Give up the place, even while waiting. May be called twice."""
        self._queue.leave(self)

    # For the queue

    def start(self) -> None:
        if not isinstance(self._started, asyncio.Future):
            self._started = True
        elif not self._started.done():
            self._started.set_result(None)

    def fail(self, error: Exception) -> None:
        if not isinstance(self._started, asyncio.Future):
            self._started = error
        elif not self._started.done():
            self._started.set_exception(error)
