"""The poller: fetches updates from Telegram, handles them, and sends the answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from itertools import count
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
from stepwell.fsm import Router, Update, keys
from stepwell.record import Address
from stepwell.telegram.client import BotClient
from stepwell.telegram.inbox import Inbox
from stepwell.telegram.outcome import TEMPORARY, handle, log_of_outages
from stepwell.telegram.sending import Sender

__all__ = ["Poller"]

logger: logging.Logger = logging.getLogger("stepwell.telegram")

#: Seconds that one getUpdates request waits for an update.
POLL = 30
#: The most updates that one request returns.
BATCH = 100
#: Seconds that timers wait at a start for the answers to updates of the previous process.
CATCH_UP = 5.0
#: Seconds before a retry after a temporary failure: the first pause, and the longest.
PAUSES = (0.1, 30.0)
#: With these keys, updates of one key come from one chat.
_KEYS_WITH_CHAT = (keys.ChatUser, keys.Chat, keys.ChatTopic, keys.ChatTopicUser)


class _Queued(NamedTuple):
    """An update that waits for earlier ones."""

    update: Update
    #: ``None`` unless keys span chats.
    key: Any
    #: Set when the earlier update of the same key is finished; ``None`` if there is none.
    earlier: asyncio.Future[None] | None
    finished: asyncio.Future[None] | None


class Poller:
    """Fetches the updates of one bot and handles them."""

    def __init__(
        self, router: Router, client: BotClient, sender: Sender, allowed_updates: Sequence[str] | None, in_flight: int
    ) -> None:
        assert router.fsm is not None
        self.sender: Sender = sender
        self._router = router
        self._client = client
        self._allowed = None if allowed_updates is None else list(allowed_updates)
        self._in_flight = in_flight
        #: How many waiting updates of one chat count. All of them are bounded by the largest size of the inbox.
        self._share = max(in_flight // 100, 1)
        self._outage = log_of_outages()
        self._inbox = Inbox(router.fsm.storage, router.fsm.bot, self._outage)
        #: Updates that wait for an earlier one of the same chat.
        self._queues: dict[Any, deque[_Queued]] = {}
        self._key_spans_chats = type(router.fsm.key) not in _KEYS_WITH_CHAT
        #: The last update of each key that is not finished.
        self._last_of_key: dict[Any, asyncio.Future[None]] = {}
        #: The task of each chat with a queue.
        self._tasks: dict[Any, asyncio.Task[None]] = {}
        self._unfinished = 0
        self._stopping = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def stop(self) -> None:
        """Stop fetching and let running handlers finish. A second call cancels them."""
        if self._stopping.is_set():
            self._cancel()
        self._stopping.set()

    async def run(self) -> None:
        """Fetch and handle updates until ``stop``."""
        self._stopped = stopped = asyncio.create_task(self._stopping.wait())
        try:
            loaded = await self._inbox.load()
            for update in loaded:
                self._start(update)
            offset, poll = 0, 0
            while await _first(self._room.wait(), stopped):
                fetched: asyncio.Task[list[dict[str, Any]]] = asyncio.create_task(self._fetch(offset, poll))
                if not await _first(fetched, stopped):
                    break
                updates = fetched.result()
                for update in self._inbox.select(updates):
                    self._start(update)
                if not poll:
                    self._hold_timers_of([*loaded, *updates])
                    poll = POLL
                if updates:
                    await self._keep(updates)
                    offset = updates[-1]["update_id"] + 1
        finally:
            self._stopping.set()
            stopped.cancel()
            await self._end()

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
        return [task for task in self._tasks.values() if not task.done()]

    def _cancel(self) -> None:
        for task in self._running():
            task.cancel()

    @contextlib.contextmanager
    def holding_timers(self) -> Iterator[None]:
        """Hold the timers of keys with updates of the previous process until these updates are answered.

        A killed process may have handled an update without answering it, and the answer of a timer would overtake
        that answer.
        """
        fsm = self._router.fsm
        assert fsm is not None
        # The updates are not known yet.
        fsm.hold_timers(lambda address: True)
        release = asyncio.get_running_loop().call_later(CATCH_UP, fsm.hold_timers, None)
        try:
            yield
        finally:
            release.cancel()
            fsm.hold_timers(None)

    def _hold_timers_of(self, updates: list[dict[str, Any]]) -> None:
        """Hold only the timers of these updates' keys, until the task of their chat has ended."""
        fsm = self._router.fsm
        assert fsm is not None
        held: dict[Address, asyncio.Task[None]] = {}
        for update in map(Update.of, updates):
            task, key = self._tasks.get(_chat_of(update)), self._key_of(update)
            if task is not None and key is not None:
                with contextlib.suppress(StepwellError):
                    held[fsm.storage.address(fsm.bot, key)] = task
        fsm.hold_timers(lambda address: address in held and not held[address].done())

    async def _fetch(self, offset: int, poll: int) -> list[dict[str, Any]]:
        """Fetch a batch; wait ``poll`` seconds for the first update."""
        params: dict[str, Any] = {"offset": offset, "limit": BATCH, "timeout": poll}
        if self._allowed is not None:
            params["allowed_updates"] = self._allowed
        failures = 0
        while True:
            failures += 1
            try:
                found = await self._client.call("getUpdates", **params)
            except BotUnavailable as error:
                logger.warning("Telegram is unavailable, retrying: %s", error)
                await asyncio.sleep(backoff(failures, *PAUSES))
            except BotApiError as error:
                raise _polling_error(error) from None
            else:
                updates = [each for each in found if _is_update(each)] if isinstance(found, list) else []
                if updates or found == []:
                    return updates
                logger.warning("the reply to getUpdates has no updates that can be read, retrying")
                await asyncio.sleep(backoff(failures, *PAUSES))

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

    def _start(self, update: dict[str, Any]) -> None:
        """Handle an update now, or after the earlier ones of its chat."""
        seen = Update.of(update)
        chat, key, finished = _chat_of(seen), None, None
        if self._key_spans_chats and (key := self._key_of(seen)) is not None:
            finished = asyncio.get_running_loop().create_future()
        queued = _Queued(seen, key, self._last_of_key.get(key), finished)
        if finished is not None:
            self._last_of_key[key] = finished
        queue = self._queues.get(chat)
        if queue is None or len(queue) < self._share:
            self._unfinished += 1
            if self._unfinished >= self._in_flight:
                self._room.clear()
        if queue is not None:
            queue.append(queued)
            return
        self._queues[chat] = deque((queued,))
        self._tasks[chat] = asyncio.create_task(self._work(chat), name=f"stepwell-chat-{chat}")

    async def _work(self, chat: Any) -> None:
        """Handle the updates of one chat in order."""
        queue = self._queues[chat]
        try:
            while queue:
                update, key, earlier, finished = queue[0]
                if earlier is not None:
                    await self._wait_for(earlier)
                # After stop(), waiting updates stay in the inbox.
                if self._stopping.is_set() or not await self._process(update):
                    break
                queue.popleft()
                self._inbox.finish(update.raw["update_id"])
                if finished is not None:
                    finished.set_result(None)
                    if self._last_of_key[key] is finished:
                        del self._last_of_key[key]
                if len(queue) < self._share:
                    self._unfinished -= 1
                    if self._unfinished == self._in_flight - 1:
                        self._room.set()
        finally:
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

    async def _process(self, update: Update) -> bool:
        """Handle an update and send its answers; return whether that is finished."""
        calls: deque[dict[str, Any]] | None = None
        failures = 0
        while True:
            try:
                if calls is None:
                    calls = deque(await handle(self._router, update))
                while calls and self._router.send is None:
                    await self.sender.send(calls[0])
                    calls.popleft()
                return True
            except TEMPORARY as error:
                if isinstance(error, StorageError):
                    self._outage.failed(error)
                else:
                    logger.warning("retrying update %s: %s", update.update_id, error)
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


def _is_update(found: object) -> bool:
    return isinstance(found, dict) and type(found.get("update_id")) is int


def _chat_of(update: Update) -> Any:
    """Return the queue of an update: its chat, else its user, else a queue of its own."""
    if update.chat is not None:
        return update.chat.id
    return ("user", update.user.id) if update.user is not None else ("update", update.update_id)


def _polling_error(error: BotApiError) -> Exception:
    if error.code == 409 and "webhook" in error.description.lower():
        return UsageError(
            "this bot has a webhook, so Telegram refuses polling; run the bot with --webhook, or remove the webhook: "
            "call deleteWebhook with a BotClient"
        )
    if error.code == 409:
        return UsageError("another process polls with this bot token; stop it, and start this one again")
    return error
