"""The claim of one update: the records of its user and chat, held while its handlers run, written when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextvars import Token
from time import monotonic
from typing import Any

from telegram import Update

from stepwell.adapters.ptb.conversation import ConversationHandler, conversations_in
from stepwell.adapters.ptb.data import fields
from stepwell.adapters.ptb.data.bot_data import BotDataOfUpdate
from stepwell.adapters.ptb.data.entries import CHAT, USER, KnownFields, tags_of
from stepwell.adapters.ptb.data.keyboards import cache_of, sent_keyboards
from stepwell.adapters.ptb.held_conversation import HeldConversation
from stepwell.adapters.ptb.objects import AnyApplication
from stepwell.adapters.ptb.pending import PendingHandlers
from stepwell.adapters.ptb.persistence import RecordsInUse, StepwellPersistence
from stepwell.adapters.ptb.states import ConversationKey
from stepwell.adapters.ptb.timeouts import GRACE, deadline_of
from stepwell.engine import KEEP, Changes, Keep, Slot
from stepwell.errors import EncodeError, VersionChanged
from stepwell.fsm.engine import HandledUpdates, token_of

__all__ = ["UpdateClaim"]


class UpdateClaim(RecordsInUse):
    """The records of an update.

    ``enter()`` claims them, in an order that all processes use. ``finish()`` writes the changes in one batch, with the
    id of the update in the first record; ``abandon()`` restores the data that was not written. ``close()`` follows
    both.
    """

    def __init__(
        self,
        persistence: StepwellPersistence[Any, Any, Any],
        application: AnyApplication,
        update: Update,
        pending: PendingHandlers,
        *,
        once: bool = True,
    ) -> None:
        super().__init__(persistence.storage, persistence.namespace, wait=persistence.wait, lease=persistence.lease)
        self._persistence = persistence
        self._pending = pending
        self._once = once
        self._entries = persistence.entries
        self._application = application
        self._update = update
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self.conversations: list[HeldConversation] = []
        #: The ids of the keyboards that its handlers have sent.
        self.sent: set[str] = set()
        self._outside: Token[set[str] | None] | None = None
        self._handled: HandledUpdates | None = None
        #: The keys of the records that were written.
        self._written: set[Any] = set()
        #: When the records were claimed, on the monotonic clock.
        self._entered = 0.0
        stored = persistence.store_data
        #: The entries in the memory of the application, for each kind that is stored.
        self._kinds: dict[str, Mapping[int, Any]] = {}
        if stored.user_data:
            self._kinds[USER] = application.user_data
        if stored.chat_data:
            self._kinds[CHAT] = application.chat_data
        #: The entries that were in memory while the records were held.
        self._seen: set[tuple[str, Any]] = set()
        self._bot_data = BotDataOfUpdate(self._entries, application) if stored.bot_data else None

    async def enter(self) -> bool:
        """Claim the records and load the states; return whether the update was handled before."""
        update, held = self._update, self._persistence.held
        found: list[HeldConversation] = []
        for handler in conversations_in(self._application):
            conversation_key = handler.key_of(update)
            if conversation_key is not None:
                found.append(HeldConversation.of(handler, conversation_key))
        for key in self._keys(found):
            holder = held.get(key)
            # A handler may process another update: the records that its own update holds are shared.
            if holder is None or holder.task is not self.task:
                await self.claim(key)
                held[key] = self
        self._entered = monotonic()
        first = next(iter(self.slots.values()), None)
        # Telegram's ids are positive. Others come from tests, which often use the same one.
        if first is not None and self._once and update.update_id > 0:
            self._handled = HandledUpdates(first)
            if self._handled.has(token_of(update.update_id)):
                await first.confirm()
                return True
        for each in found:
            await each.load(self.slot(each.record), self._pending, self.namespace)
            self.conversations.append(each)
        for kind, entries in self._kinds.items():
            self._seen.update([(kind, key) for key in self.slots if key in entries])
        if self._bot_data is not None:
            self._bot_data.begin(alone=self._alone)
        cache = cache_of(self._application)
        if cache is not None:
            self._outside = sent_keyboards.set(self.sent)
            await self._persistence.keyboards.restore(cache, update)
        return False

    def refresh(self, kind: str, key: Any, live: Any) -> None:
        """Add the changes of other processes to the data of a user or chat."""
        slot = self.slots[key]
        self._entries.sync(kind, key, live, slot.version, slot.texts)
        self._seen.add((kind, key))

    def touch(self, handler: ConversationHandler, key: ConversationKey, context: Any) -> None:
        """Note that a handler handles the update."""
        for each in self.conversations:
            if each.handler is handler and each.key == key:
                each.context = context

    def conversation(self, handler: ConversationHandler, key: ConversationKey) -> HeldConversation:
        """Return a conversation of this update."""
        return next(each for each in self.conversations if each.handler is handler and each.key == key)

    def slot(self, key: Any) -> Slot:
        """Return a record that this update holds, or the update whose handler processes this one."""
        return self.slots.get(key) or self._persistence.held[key].slots[key]

    def seconds_until(self, at: float, key: Any) -> float:
        """Return the seconds until a time on the backend's clock."""
        return at - self.slot(key).now - (monotonic() - self._entered)

    async def finish(self) -> None:
        """Write all changes, or none if a value cannot be stored.

        If a write fails in the storage, the others are awaited before the error is raised.
        """
        for each in self.conversations:
            if each.starts_pending:
                await self._pending.begin(self.namespace)
            now = self.slot(each.record).now + monotonic() - self._entered
            each.store(self.slot(each.record), self._pending.process, self._update, now)
        changes = {key: await self._changes(key, slot) for key, slot in self.slots.items()}
        changed = [key for key, slot in self.slots.items() if _is_changed(slot, changes[key])]
        bot_data = self._bot_data if self._bot_data is not None and self._bot_data.is_changed() else None
        cache, keyboards = cache_of(self._application), self._persistence.keyboards
        new = [] if cache is None else keyboards.check_new(cache, sent=self.sent, others=self._sent_by_others())
        # Everything is encoded and checked from here on.
        writes: list[Coroutine[Any, Any, object]] = []
        if bot_data is not None:
            writes.append(bot_data.write())
        if cache is not None:
            writes += keyboards.writes(cache, new)
        # The first record has the id of the update, and is written last.
        for number, key in reversed([*enumerate(self.slots)]):
            if key in changed or (number == 0 and (changed or writes) and self._handled is not None):
                writes.append(self._commit(key, changes[key], first=number == 0))
            else:
                self._remember(key, changes[key])
        if len(writes) == 1:
            await writes[0]
        elif writes:
            # Writes that are requested together are one batch.
            for result in await asyncio.gather(*writes, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    def abandon(self) -> None:
        """Restore the data and the states as they were before the update, except those that were written."""
        for key, slot in self.slots.items():
            if key in self._written:
                continue
            data = self.storage.seal(slot.address).data(slot.texts)
            for kind, entries in self._kinds.items():
                if key in entries:
                    fields.restore(kind, entries[key], data)
                    self._entries.remember(kind, key, KnownFields(slot.version, slot.texts))
        for each in self.conversations:
            if each.record not in self._written:
                each.restore()
        if self._bot_data is not None:
            self._bot_data.restore(alone=self._alone)

    async def close(self) -> None:
        """Release the records."""
        if self._outside is not None:
            sent_keyboards.reset(self._outside)
        for key in self.slots:
            del self._persistence.held[key]
        async with self.releasing():
            pass

    @property
    def _alone(self) -> bool:
        """Whether no other update of this process is being handled."""
        return all(claim is self for claim in self._persistence.held.values())

    def _sent_by_others(self) -> set[str]:
        return {uuid for claim in self._persistence.held.values() if claim is not self for uuid in claim.sent}

    def _keys(self, conversations: list[HeldConversation]) -> list[Any]:
        """Return the keys of the records to claim: users before groups, so that no two updates wait for each other."""
        update = self._update
        keys = {each.record for each in conversations}
        if USER in self._kinds and update.effective_user:
            keys.add(update.effective_user.id)
        if CHAT in self._kinds and update.effective_chat:
            keys.add(update.effective_chat.id)
            message = update.effective_message
            if message is not None and message.migrate_to_chat_id:
                # A handler may move the chat data with migrate_chat_data().
                keys.add(message.migrate_to_chat_id)
            elif message is not None and message.migrate_from_chat_id:
                keys.add(message.migrate_from_chat_id)
        return sorted(keys, key=_order) if len(keys) > 1 else [*keys]

    async def _changes(self, key: Any, slot: Slot) -> Changes:
        """Put the entries of a record into its slot, and encode what has changed."""
        found: list[tuple[str, Any]] = []
        # An entry that is not in memory any more was dropped; one that never was is left as it is.
        gone = [kind for kind, seen in self._seen if seen == key]
        for kind, entries in self._kinds.items():
            if key in entries:
                found.append((kind, entries[key]))
                self._entries.sync(kind, key, entries[key], slot.version, slot.texts)
                gone.append(kind)
        data = fields.without(gone, slot.data)
        for kind, live in found:
            data.update(fields.pack(kind, live))
        slot.data = data
        if not data:
            slot.delete()
        try:
            changes = await slot.changes()
        except EncodeError as error:
            explained = [fields.explain(kind, key, live, self.storage.limits) for kind, live in found]
            raise next(filter(None, explained), error) from None
        if changes.set:
            limit = self._entries.seal(key).limit
            fields.check_size(f"the record at {slot.address.text}", slot.texts, _texts_after(slot, changes), limit)
        return changes

    async def _commit(self, key: Any, changes: Changes, *, first: bool) -> None:
        slot, created = self.slots[key], not self.slots[key].found
        while True:
            memo: Any = KEEP
            if first and self._handled is not None:
                memo = self._handled.with_update(token_of(self._update.update_id), None)
            tags = KEEP if slot.tags else tags_of(key)
            at = deadline_of(slot)
            deadline: float | Keep | None = KEEP if at is None and slot.deadline is None else None
            if at is not None:
                deadline = max(self.seconds_until(at, key), 0.0) + GRACE
            try:
                await slot.commit(
                    memo=memo, tags=tags, deadline=deadline, force=True, changes=changes, only_version=slot.version
                )
            except VersionChanged:
                # A job or another task has written the entry without a claim.
                await slot.reload()
                for each in self.conversations:
                    if each.record == key:
                        each.store(slot, self._pending.process, self._update, slot.now)
                changes = await self._changes(key, slot)
            else:
                break
        self._remember(key, changes, behind=created)
        self._written.add(key)

    def _remember(self, key: Any, changes: Changes, *, behind: bool = False) -> None:
        """Remember what the entries are equal to now."""
        slot = self.slots[key]
        known = KnownFields(slot.version, _texts_after(slot, changes), behind)
        for kind, entries in self._kinds.items():
            if key in entries:
                self._entries.remember(kind, key, known)


def _is_changed(slot: Slot, changes: Changes) -> bool:
    return bool(changes.set or changes.unset or (slot.deleted and slot.found))


def _texts_after(slot: Slot, changes: Changes) -> dict[str, str]:
    """Return the fields of a record with changes."""
    texts = slot.texts
    if changes.unset:
        texts = {name: text for name, text in texts.items() if name not in changes.unset}
    return {**texts, **changes.set}


def _order(key: Any) -> tuple[int, int, str]:
    return (0, -key, "") if type(key) is int else (1, 0, str(key))
