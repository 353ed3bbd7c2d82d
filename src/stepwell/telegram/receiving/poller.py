"""The poller: fetches updates from Telegram, handles them, and sends the answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import count, takewhile
from time import monotonic
from typing import Any, NamedTuple

from stepwell._backoff import backoff
from stepwell.errors import (
    BotApiError,
    BotUnavailable,
    StepwellError,
    StorageError,
    TooLarge,
    UsageError,
)
from stepwell.fsm import FSM, Router, Update, keys
from stepwell.record import Address
from stepwell.telegram.calls.client import BotClient
from stepwell.telegram.calls.reading import is_update, number_in
from stepwell.telegram.receiving.aside import set_aside, text_of
from stepwell.telegram.receiving.inbox import MOST_ATTEMPTS, Inbox
from stepwell.telegram.receiving.outcome import TEMPORARY, Unfinished, chat_of, line_of, log_of_outages
from stepwell.telegram.receiving.press import Press
from stepwell.telegram.sending.sender import Sender

__all__ = ["PAUSES", "Poller"]

logger: logging.Logger = logging.getLogger("stepwell.telegram")

#: Seconds that one getUpdates request waits for an update.
POLL = 30
#: The most updates that one request returns.
BATCH = 100
#: Seconds that timers wait at a start for the answers to updates of the previous process.
CATCH_UP = 5.0
#: Seconds before a retry after a temporary failure: the first pause, and the longest.
PAUSES = (0.1, 30.0)
#: The same for an update that cannot be read, and how often it is fetched before it is set aside.
UNREAD = (0.1, 1.0)
READS = 3
#: Seconds after which the next update is handled beside a slow one that may have ended its process: at most, and in
#: the last attempt.
ALONE, ALONE_AT_LAST = 10.0, 60.0
#: Seconds between two warnings about dropped updates of one chat.
WARN_EVERY = 60.0
#: With these keys, updates of one key come from one chat.
_KEYS_WITH_CHAT = (keys.ChatUser, keys.Chat, keys.ChatTopic, keys.ChatTopicUser)


class _Queued(NamedTuple):
    """An update that waits for earlier ones."""

    unfinished: Unfinished
    #: ``None`` unless keys span chats.
    key: Any
    #: Set when the earlier update of the same key is finished; ``None`` if there is none.
    earlier: asyncio.Future[None] | None
    finished: asyncio.Future[None] | None
    #: Its size in the inbox, in bytes, if it waits for another one of its chat.
    size: int


class _Queue:
    """The unfinished updates of one chat. The first one is being handled."""

    __slots__ = ("dropped", "size", "updates", "warned_at")

    def __init__(self, first: _Queued) -> None:
        self.updates: deque[_Queued] = deque((first,))
        #: The size of the waiting updates.
        self.size: int = 0
        #: The number of dropped updates since the last warning, and its time on the clock of the loop.
        self.dropped: int = 0
        self.warned_at: float = -WARN_EVERY


class Poller:
    """Fetches the updates of one bot and handles them."""

    def __init__(
        self, router: Router, client: BotClient, sender: Sender, allowed_updates: Sequence[str] | None, in_flight: int
    ) -> None:
        assert router.fsm is not None
        self.sender: Sender = sender
        self._router = router
        self._fsm: FSM = router.fsm
        self._client = client
        self._allowed = None if allowed_updates is None else list(allowed_updates)
        self._in_flight = in_flight
        #: How many unfinished updates of one chat count for ``in_flight``.
        self._share = max(in_flight // 100, 1)
        self._outage = log_of_outages()
        self._inbox = Inbox(router.fsm.storage, router.fsm.bot, self._outage)
        #: The most bytes of waiting updates. The other half of the inbox is for updates that are being handled.
        self._most_waiting = self._inbox.limit // 2
        self._waiting = 0
        self._queues: dict[Any, _Queue] = {}
        self._key_spans_chats = type(router.fsm.key) not in _KEYS_WITH_CHAT
        #: The last update of each key that is not finished.
        self._last_of_key: dict[Any, asyncio.Future[None]] = {}
        #: The task of each chat with a queue.
        self._tasks: dict[Any, asyncio.Task[None]] = {}
        #: The tasks that answer the presses of dropped updates.
        self._answering: set[asyncio.Task[None]] = set()
        self._unfinished = 0
        #: Telegram sends updates from this id, and forgets earlier ones.
        self._offset = 0
        #: Updates of a killed process whose attempt is counted before their handler.
        self._suspects: set[int] = set()
        #: Whether two processes have died, so that these updates are handled one at a time.
        self._one_at_a_time = False
        self._alone = asyncio.Lock()
        self._entered: int | None = None
        #: The tasks of updates that wait for their conversation.
        self._unclaimed: set[asyncio.Task[Any]] = set()
        #: Which timers are held besides those of updates that are being handled.
        self._held: Callable[[Address], bool] | None = None
        #: The records of updates that are being handled and answered, and how many updates each has.
        self._handling: Counter[Address] = Counter()
        #: When Telegram has answered a request for updates last, on the monotonic clock.
        self.polled_at: float | None = None
        self._stopping = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    @property
    def stopping(self) -> bool:
        """Whether it fetches nothing more."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Stop fetching and let running handlers finish. A second call cancels them."""
        if self._stopping.is_set():
            self._cancel()
        self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        # Another process may hold their conversations for long. The updates stay in the inbox.
        for task in self._unclaimed:
            task.cancel()

    async def run(self) -> None:
        """Fetch and handle updates until ``stop``."""
        self._stopped = stopped = asyncio.create_task(self._stopping.wait())
        try:
            loaded = await self._load()
            for update in loaded:
                self._start(update)
            poll = 0
            while await _first(self._room.wait(), stopped):
                fetched: asyncio.Task[list[dict[str, Any]]] = asyncio.create_task(self._fetch(poll))
                if not await _first(fetched, stopped):
                    break
                updates = fetched.result()
                new, kept = self._inbox.select(updates), not updates
                if updates and not poll:
                    # The previous process may have ended before it kept them. Those that do not fit are dropped below.
                    with contextlib.suppress(StorageError, TooLarge):
                        await self._inbox.keep(updates)
                        kept = True
                for update in new:
                    self._start(update, new=True)
                if not poll:
                    self._hold_timers_of([*loaded, *updates])
                    poll = POLL
                if not kept:
                    await self._keep(updates)
                if updates:
                    self._offset = updates[-1]["update_id"] + 1
        finally:
            self._stop()
            stopped.cancel()
            await self._end()

    async def _load(self) -> list[dict[str, Any]]:
        """Return the updates of the previous process, without those that have ended theirs too often."""
        loaded: list[dict[str, Any]] = []
        first: dict[Any, int] = {}
        for update in await self._inbox.load():
            number = update["update_id"]
            attempts = self._inbox.attempts(number)
            # One at a time if the process before the previous one has died too.
            self._one_at_a_time = self._one_at_a_time or attempts > 0
            if attempts >= MOST_ATTEMPTS:
                try:
                    await set_aside(self._fsm, update, why="its process has ended each time", attempts=attempts)
                    self._inbox.finish(number)
                except StorageError as error:
                    # It stays in the inbox for the next start.
                    self._outage.failed(error)
                continue
            loaded.append(update)
            first.setdefault(chat_of(Update.of(update)), number)
            self._suspects.add(number)
        if not self._one_at_a_time:
            # The previous process has probably attempted them. All others waited for one of these.
            try:
                await self._inbox.count(dict.fromkeys(first.values(), 2))
                self._suspects.difference_update(first.values())
            except StorageError as error:
                self._outage.failed(error)
        return loaded

    async def _enter(self, update_id: int) -> None:
        """Count the attempt, alone if two processes have died.

        If the process ends now, no other update that two processes have left is to blame. Updates that have finished
        are removed with the same write.
        """
        attempts = self._inbox.attempts(update_id) + 1
        if self._one_at_a_time:
            await self._alone.acquire()
            self._entered = update_id
            seconds = ALONE if attempts < MOST_ATTEMPTS - 1 else ALONE_AT_LAST
            # A slow handler does not hold up the others for ever.
            asyncio.get_running_loop().call_later(seconds, self._leave, update_id)
        await self._inbox.count({update_id: attempts})
        self._suspects.discard(update_id)

    def _leave(self, update_id: int) -> None:
        if self._entered == update_id:
            self._entered = None
            self._alone.release()

    async def _end(self) -> None:
        """Wait for the running handlers, and remove the finished updates from the inbox."""
        own = asyncio.current_task()
        if own is not None and own.cancelling() > 1:
            self._cancel()
        try:
            while running := self._running():
                await asyncio.wait(running)
            await self._inbox.close()
        except StorageError as error:
            logger.warning("some updates may be handled again after the next start: %s", error)
        except asyncio.CancelledError:
            self._cancel()
            raise

    def _running(self) -> list[asyncio.Task[None]]:
        # A task that was cancelled before it began is still in the dict.
        return [task for task in (*self._tasks.values(), *self._answering) if not task.done()]

    def _cancel(self) -> None:
        for task in self._running():
            task.cancel()

    @contextlib.contextmanager
    def holding_timers(self) -> Iterator[None]:
        """Hold the timers of keys with updates of the previous process until these updates are answered.

        A killed process may have handled an update without answering it, and the answer of a timer would overtake
        that answer.
        """
        # The updates are not known yet.
        self._hold(lambda address: True)
        release = asyncio.get_running_loop().call_later(CATCH_UP, self._hold, None)
        try:
            yield
        finally:
            release.cancel()
            self._hold(None)

    def _hold(self, held: Callable[[Address], bool] | None) -> None:
        """Hold timers, and what is attached to the router: the rest of an album may be under way."""
        assert self._router.fsm is not None
        self._held = held
        self._router.fsm.hold_timers(self._is_held)
        for other in self._router.attached:
            other.hold(held)

    def _is_held(self, address: Address) -> bool:
        # An update may be handled and not answered, and tried again for that: the answer of a timer would overtake it.
        return address in self._handling or (self._held is not None and self._held(address))

    def _address_of(self, update: Update) -> Address | None:
        """Return where the conversation of an update is; ``None`` if it has none."""
        key = self._key_of(update)
        if key is not None:
            with contextlib.suppress(StepwellError):
                return self._fsm.storage.address(self._fsm.bot, key)
        return None

    def _hold_timers_of(self, updates: list[dict[str, Any]]) -> None:
        """Hold only the timers of these updates' keys, until the task of their chat has ended."""
        held: dict[Address, asyncio.Task[None]] = {}
        for update in map(Update.of, updates):
            task = self._tasks.get(chat_of(update))
            if task is not None:
                addresses = [self._address_of(update), *(other.address_of(update) for other in self._router.attached)]
                held |= {address: task for address in addresses if address is not None}
        self._hold(lambda address: address in held and not held[address].done())

    async def _fetch(self, poll: int) -> list[dict[str, Any]]:
        """Fetch a batch; wait ``poll`` seconds for the first update."""
        failures = 0
        #: How often each update was fetched that cannot be read.
        unread: Counter[str] = Counter()
        while True:
            params: dict[str, Any] = {"offset": self._offset, "limit": BATCH, "timeout": poll}
            if self._allowed is not None:
                params["allowed_updates"] = self._allowed
            failures += 1
            pauses = PAUSES
            try:
                found = await self._client.call("getUpdates", **params)
                self.polled_at = monotonic()
            except BotUnavailable as error:
                logger.warning("Telegram is unavailable, retrying: %s", error)
            except BotApiError as error:
                raise _polling_error(error) from None
            else:
                if found == [] or (isinstance(found, list) and is_update(found[0])):
                    return list(takewhile(is_update, found))
                if not isinstance(found, list):
                    logger.warning("the reply to getUpdates has no updates that can be read, retrying")
                else:
                    updates = await self._skip(found, unread)
                    if updates:
                        return updates
                    # Later updates are in the same answers.
                    pauses = UNREAD
            await asyncio.sleep(backoff(failures, *pauses))

    async def _skip(self, found: list[Any], unread: Counter[str]) -> list[dict[str, Any]]:
        """Return the updates after the first ones, which cannot be read.

        Those are set aside if they could not be read several times: the first time, the network may be the reason.
        """
        first = list(takewhile(lambda each: not is_update(each), found))
        texts = list(map(text_of, first))
        unread.update(set(texts))
        if min(map(unread.__getitem__, texts)) < READS:
            logger.warning("an update cannot be read, fetching it again")
            return []
        for each, text in zip(first, texts, strict=True):
            if unread[text] == READS:
                try:
                    await set_aside(self._fsm, each, why="it cannot be read")
                except StorageError as error:
                    self._outage.failed(error)
                    unread[text] -= 1
                    return []
                # It is not kept twice if it has no id and is fetched again.
                unread[text] += 1
            if self._offset or number_in(each) is not None:
                # Ids are in order, so the next id belongs to this update or to none.
                self._offset = max(self._offset, number_in(each) or 0) + 1
        return list(takewhile(is_update, found[len(first) :]))

    async def _keep(self, updates: list[dict[str, Any]]) -> None:
        """Keep a batch in the inbox. At a stop, give up: Telegram sends a batch again that was not confirmed."""
        for failures in count(1):
            try:
                await self._inbox.keep(updates)
                self._outage.worked()
                return
            except (StorageError, TooLarge) as error:
                self._outage.failed(error)
            if await self._stopped_within(backoff(failures, *PAUSES)):
                return

    def _start(self, update: dict[str, Any], *, new: bool = False) -> None:
        """Handle an update now, or after the earlier ones of its chat. A new one is dropped if they take too much."""
        seen = Update.of(update)
        chat, key, finished, size = line_of(self._router, seen), None, None, 0
        queue = self._queues.get(chat)
        if queue is not None:
            size = self._inbox.size_of(update)
            # At most what is left for the others, so that any number of such chats leave some.
            if new and queue.size + size > self._most_waiting - self._waiting:
                self._drop(chat, queue, seen)
                return
            queue.size += size
            self._waiting += size
        if self._key_spans_chats and (key := self._key_of(seen)) is not None:
            finished = asyncio.get_running_loop().create_future()
        queued = _Queued(Unfinished(seen, self._client), key, self._last_of_key.get(key), finished, size)
        if queued.unfinished.press is not None and (queue is not None or queued.earlier is not None):
            queued.unfinished.press.waits()
        if finished is not None:
            self._last_of_key[key] = finished
        if queue is None or len(queue.updates) < self._share:
            self._unfinished += 1
            if self._unfinished >= self._in_flight:
                self._room.clear()
        if queue is not None:
            queue.updates.append(queued)
            return
        self._queues[chat] = _Queue(queued)
        self._tasks[chat] = asyncio.create_task(self._work(chat), name=f"stepwell-chat-{chat}")

    def _drop(self, chat: Any, queue: _Queue, update: Update) -> None:
        """Drop a new update of a chat whose waiting updates take too much of the inbox."""
        # It is confirmed to Telegram with its batch, and not kept.
        self._inbox.finish(update.raw["update_id"])
        press = Press.of(update, self._client)
        if press is not None:
            press.answer()
            answering = asyncio.create_task(press.sent(), name="stepwell-dropped-press")
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)
        queue.dropped += 1
        now = asyncio.get_running_loop().time()
        if now - queue.warned_at >= WARN_EVERY:
            queue.warned_at = now
            self._warn_of_dropped(chat, queue)

    def _warn_of_dropped(self, chat: Any, queue: _Queue) -> None:
        logger.warning(
            "%d new updates of chat %s were dropped, because its waiting updates take too much of the inbox; make its "
            "handlers faster, or move long work to a durable run",
            queue.dropped, chat,
        )  # fmt: skip
        queue.dropped = 0

    async def _work(self, chat: Any) -> None:
        """Handle the updates of one chat in order."""
        queue = self._queues[chat]
        updates = queue.updates
        try:
            while updates:
                unfinished, key, earlier, finished, _ = updates[0]
                if earlier is not None:
                    await self._wait_for(earlier)
                # After stop(), waiting updates stay in the inbox.
                if self._stopping.is_set() or not await self._process(unfinished):
                    break
                updates.popleft()
                if updates:
                    queue.size -= updates[0].size
                    self._waiting -= updates[0].size
                self._inbox.finish(unfinished.update.raw["update_id"])
                if finished is not None:
                    finished.set_result(None)
                    if self._last_of_key[key] is finished:
                        del self._last_of_key[key]
                if len(updates) < self._share:
                    self._unfinished -= 1
                    if self._unfinished == self._in_flight - 1:
                        self._room.set()
        finally:
            if queue.dropped:
                self._warn_of_dropped(chat, queue)
            self._waiting -= queue.size
            del self._queues[chat], self._tasks[chat]

    def _key_of(self, update: Update) -> Any:
        """Return the key of an update; ``None`` if it has none or it cannot be read, which its handling will report."""
        assert self._router.fsm is not None
        try:
            key = self._router.fsm.key.extract(update)
            hash(key)
        except Exception:  # noqa: BLE001 - a key strategy is the author's code
            return None
        return key

    async def _wait_for(self, earlier: asyncio.Future[None]) -> None:
        """Wait until the earlier update of the same key is answered, or ``stop``.

        A record remembers the answers to its newest update only, so a kill must not find two unanswered ones.
        """
        while not earlier.done() and not self._stopping.is_set():
            await asyncio.wait((earlier, self._stopped), return_when=asyncio.FIRST_COMPLETED)

    async def _process(self, unfinished: Unfinished) -> bool:
        """Handle an update and send its answers; return whether that is finished."""
        task = asyncio.current_task()
        assert task is not None
        number = unfinished.update.raw["update_id"]
        address = self._address_of(unfinished.update)
        if address is not None:
            self._handling[address] += 1
        try:
            return await self._handle(unfinished, task, number)
        finally:
            if address is not None:
                self._handling[address] -= 1
                if not self._handling[address]:
                    del self._handling[address]

    async def _handle(self, unfinished: Unfinished, task: asyncio.Task[Any], number: int) -> bool:
        failures = 0

        async def on_claim() -> None:
            if number in self._suspects:
                await self._enter(number)
            self._unclaimed.discard(task)

        while True:
            if unfinished.calls is None:
                self._unclaimed.add(task)
            try:
                await unfinished.process(self._router, self.sender, on_claim)
                return True
            except TEMPORARY as error:
                if isinstance(error, StorageError):
                    self._outage.failed(error)
                else:
                    logger.warning("retrying update %s: %s", unfinished.update.update_id, error)
            finally:
                self._unclaimed.discard(task)
                self._inbox.survive(number)
                self._leave(number)
            failures += 1
            if await self._stopped_within(backoff(failures, *PAUSES)):
                return False

    async def _stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()


async def _first(awaited: Coroutine[Any, Any, Any] | asyncio.Task[Any], stopped: asyncio.Task[Any]) -> bool:
    """Wait for a task unless the poller is stopped first; return whether it has ended. Raises its error."""
    task = asyncio.ensure_future(awaited)
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            return False
        task.result()
        return True
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


def _polling_error(error: BotApiError) -> Exception:
    if error.code == 409 and "webhook" in error.description.lower():
        return UsageError(
            "this bot has a webhook, so Telegram refuses polling; run the bot with --webhook, or remove the webhook "
            "with stepwell webhook --delete"
        )
    if error.code == 409:
        return UsageError("another process polls with this bot token; stop it, and start this one again")
    return error
