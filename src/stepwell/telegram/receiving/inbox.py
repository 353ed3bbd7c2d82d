"""The inbox of polling: updates that were fetched and are not finished, kept in the storage.

Telegram forgets an update once a later offset was requested. The inbox keeps it until it is handled and answered, so
that a killed process loses nothing, and a slow handler does not delay the confirmation of other updates.

One record for each bot has one part for each unfinished update. All writes are merges, so no lease is needed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from stepwell.codec.json import to_json
from stepwell.errors import StorageError, StoredDataError, TooLarge
from stepwell.record import INBOX, Change, Stored
from stepwell.storage import Storage
from stepwell.storage.operations import Apply, Get
from stepwell.storage.transport.outage import OutageLog

__all__ = ["ATTEMPTS", "KIND", "MOST_ATTEMPTS", "Inbox"]

logger: logging.Logger = logging.getLogger(__name__)

#: The kind of a part in its checksum, as copy_records() checks it.
KIND = "p"
#: The field with the checksums of the batch that was fetched last.
_LAST = "last"
#: The field with the attempts of updates whose process has died.
ATTEMPTS = "attempts"
#: An update whose attempts have all ended with its process is set aside after so many.
MOST_ATTEMPTS = 5
#: Seconds for which a removal waits for the next batch, to share its write. Alone, it would be a commit of its own, and
#: all conversations would wait for it.
TOGETHER = 0.01
#: Seconds before a failed removal is retried.
RETRY = 1.0


class Inbox:
    """The fetched and unfinished updates of one bot."""

    def __init__(self, storage: Storage, bot: str, outage: OutageLog | None = None) -> None:
        self._storage = storage
        self._bot = bot
        self._outage = outage or OutageLog(
            logger, "the inbox waits for the storage: %s", "the inbox works again, after %.0f s"
        )
        self._address = storage.address(INBOX, bot)
        self._seal = storage.seal(self._address)
        #: The most bytes that all its updates may take.
        self.limit: int = self._seal.limit
        #: Ids and checksums of the last batch of the previous process. Telegram sends that batch again if the process
        #: crashed before its next request.
        self._before: dict[str, str] = {}
        #: How often updates of a killed process were attempted, by id; and whether it is stored.
        self._attempts: dict[str, int] = {}
        self._attempts_stored = True
        #: Ids of finished updates whose parts are not removed yet.
        self._finished: set[str] = set()
        #: Ids of the batch that ``keep`` has not written yet. They are removed after that, or the write would restore
        #: them.
        self._unwritten: set[str] = set()
        # One write at a time: updates that finish meanwhile are removed together by the next one.
        self._writing = asyncio.Lock()
        #: For the next removal.
        self._timer: asyncio.TimerHandle | None = None
        self._removal: asyncio.Task[None] | None = None
        self._closed = False

    async def load(self) -> list[dict[str, Any]]:
        """Return the unfinished updates, the oldest first. Call it once, before ``keep``."""
        stored: Stored | None = await self._storage.perform(Get(self._address, parts=True))
        if stored is None:
            return []
        try:
            data = self._seal.data(stored.fields)
            self._before, attempts = data.get(_LAST, {}), data.get(ATTEMPTS, {})
        except StoredDataError:
            logger.exception("the inbox's list of fetched updates is damaged; some updates may be handled again")
            attempts = {}
        self._attempts = {name: attempts[name] for name in stored.parts or {} if name in attempts}
        found: list[tuple[int, dict[str, Any]]] = []
        for name, text in (stored.parts or {}).items():
            try:
                found.append((int(name), json.loads(self._seal.body(KIND, name, text))))
            except (StoredDataError, ValueError, RecursionError):
                logger.exception("the update %s in the inbox is damaged and is skipped", name)
                self._finished.add(name)
        return [update for _, update in sorted(found, key=lambda each: each[0])]

    def attempts(self, update_id: int) -> int:
        """Return how often an update of a killed process was attempted; 0 if that is not known."""
        return self._attempts.get(str(update_id), 0)

    async def count(self, attempts: Mapping[int, int]) -> None:
        """Store how often updates were attempted, with the attempt that begins now. Raises ``StorageError``."""
        if not attempts:
            return
        self._attempts |= {str(update_id): number for update_id, number in attempts.items()}
        async with self._writing:
            self._attempts_stored = False
            # A full inbox counts again when it has room.
            with suppress(TooLarge):
                await self._write({}, {}, self._finished - self._unwritten)

    def survive(self, update_id: int) -> None:
        """Forget the attempts of an update: its handler has ended, and its process has not."""
        if self._attempts.pop(str(update_id), None) is not None:
            self._attempts_stored = False
            self._remove_after(TOGETHER)

    def select(self, updates: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the updates of a fetched batch that were not fetched before the start."""
        if not self._before:
            return list(updates)
        return [each for each in updates if self._before.get(str(each["update_id"])) != self._sealed(each)[:8]]

    async def keep(self, updates: Sequence[dict[str, Any]]) -> None:
        """Write a fetched batch. Confirm it to Telegram only after this has returned.

        Updates may finish before or while it is written. It may be repeated after an error.
        """
        texts = {str(each["update_id"]): self._sealed(each) for each in updates}
        checks = {name: text[:8] for name, text in texts.items()}
        new = {name: text for name, text in texts.items() if self._before.get(name) != checks[name]}
        self._unwritten = set(new)
        async with self._writing:
            await self._write(new, {_LAST: checks}, self._finished)
        self._before, self._unwritten = {}, set()
        self._remove_after(TOGETHER)

    def finish(self, update_id: int) -> None:
        """Remove an update soon, together with others that finish at about the same time."""
        self._finished.add(str(update_id))
        self.survive(update_id)
        if self._timer is None:
            self._remove_after(TOGETHER)

    def size_of(self, update: dict[str, Any]) -> int:
        """Return about how many bytes an update takes."""
        return len(to_json(update))

    async def close(self) -> None:
        """Remove the finished updates now, with one attempt. Raises ``StorageError``."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._unwritten = set()
        if self._removal is not None:
            await asyncio.wait([self._removal])
        if self._attempts:
            # This process ends by itself.
            self._attempts.clear()
            self._attempts_stored = False
        if self._finished or not self._attempts_stored:
            await self._flush()

    def _remove_after(self, seconds: float) -> None:
        if self._timer is None and self._removal is None and not self._closed and self._is_waiting():
            self._timer = asyncio.get_running_loop().call_later(seconds, self._start_removal)

    def _is_waiting(self) -> bool:
        """Return whether there is something to write."""
        return bool(self._finished - self._unwritten) or not self._attempts_stored

    def _start_removal(self) -> None:
        self._timer = None
        # The write of a batch may have removed all of them.
        if self._is_waiting():
            self._removal = asyncio.create_task(self._remove(), name="stepwell-inbox")

    async def _remove(self) -> None:
        pause = TOGETHER
        try:
            await self._flush()
        except StorageError as error:
            self._outage.failed(error)
            pause = RETRY
        finally:
            self._removal = None
        self._remove_after(pause)

    async def _flush(self) -> None:
        async with self._writing:
            if self._is_waiting():
                await self._write({}, {}, self._finished - self._unwritten)

    async def _write(self, new: dict[str, str], fields: dict[str, Any], finished: set[str]) -> None:
        self._finished = self._finished - finished
        if stored_attempts := not self._attempts_stored:
            fields = {**fields, ATTEMPTS: self._attempts}
            self._attempts_stored = True
        # An update that finished before its batch was written needs no part.
        parts: dict[str, str | None] = {**new, **dict.fromkeys(finished)}
        change = Change(self._storage.ids(), set=self._seal.fields(fields), parts=parts, limit=self._seal.limit)
        try:
            await self._storage.perform(Apply(self._address, change))
        except BaseException:
            self._finished |= finished
            self._attempts_stored = not stored_attempts and self._attempts_stored
            raise

    def _sealed(self, update: dict[str, Any]) -> str:
        return self._seal.seal_body(KIND, str(update["update_id"]), to_json(update))
