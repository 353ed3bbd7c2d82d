"""The machine: the conversations of one bot, and all that can be asked of them."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from math import inf
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from stepwell import _portal
from stepwell.codec import decode_key, encode_namespace, ensure_registered
from stepwell.errors import InvalidOption, MigrationError, NoKeyError
from stepwell.fsm import admin, keys, typed
from stepwell.fsm.context import Context, Handler
from stepwell.fsm.conversation import Conversation
from stepwell.fsm.description import FlowDescription, Flows
from stepwell.fsm.expiry import schedule
from stepwell.fsm.hooks import run_hooks
from stepwell.fsm.memo import Memo
from stepwell.fsm.migration import Migrated, migrate_all, migrate_slot
from stepwell.fsm.policy import DuplicatePolicy, MissingKeyPolicy, TransitionPolicy, UnknownStatePolicy
from stepwell.fsm.timers import Timers
from stepwell.fsm.update import Update
from stepwell.record import KEEP, Address, Keep
from stepwell.slot.slot import Changes, Slot
from stepwell.storage import ANY, Entry, Storage
from stepwell.storage.urls import as_storage

__all__ = ["FSM", "Expired"]

logger = logging.getLogger(__name__)

#: Seconds that sending one call of a timer may take.
SEND_TIMEOUT = 30.0
_NOT_GIVEN: Any = object()
_NO_UPDATES = (str, bytes, bytearray, int, float, list, tuple, set, frozenset)


class FSM:
    """The conversations of one bot.

    ``async with fsm:`` opens its storage at start-up and closes what it opened; the first update opens it too.
    """

    def __init__(
        self,
        bot: str,
        *,
        storage: Storage | str,
        flows: Iterable[object],
        key: object = keys.ChatUser(),
        on_invalid_transition: Any = "raise",
        on_unknown_state: Any = "keep",
        on_missing_key: Literal["raise", "log", "ignore"] = "raise",
        on_duplicate: Literal["raise", "enter"] = "raise",
        wait: float = 60.0,
        lease: float = 30.0,
        ttl: float | None = None,
        sliding: bool = True,
        on_expired: Callable[[Expired], Any] | None = None,
        run_timers: bool = True,
        send: Callable[[dict[str, Any]], Awaitable[Any]] | None = None,
        update_id: Callable[[Any], int | str | None] | None = None,
    ) -> None:
        _check_seconds("lease", lease)
        if wait != 0:
            _check_seconds("wait", wait)
        for name, function in (("update_id", update_id), ("send", send), ("on_expired", on_expired)):
            if function is not None and not callable(function):
                raise InvalidOption(f"{name} is a function, got {function!r}")
        if ttl is not None:
            _check_seconds("ttl", ttl)
        self.bot = bot
        self.storage = as_storage(storage)
        self.storage.address(bot, ())
        self.flows = Flows(flows)
        self.key = keys.strategy(key)
        self.transitions = TransitionPolicy(on_invalid_transition)
        self.unknown_state = UnknownStatePolicy(on_unknown_state)
        self.missing_key = MissingKeyPolicy(on_missing_key)
        self.duplicates = DuplicatePolicy(on_duplicate)
        self.wait = wait
        self.lease = lease
        self.ttl = ttl
        self.sliding = sliding
        #: Where the calls of timers go.
        self.send = send
        self._update_id = update_id
        self.ready = False
        #: The storage was not open before, so it is ours to close.
        self._opened = False
        self._entered = 0
        self._timers = Timers(self) if run_timers else None
        self._on_expired = on_expired
        self._hooks = any(flow.hook("on_enter") or flow.hook("on_leave") for flow in self.flows.values())
        #: Conversations may expire.
        self.expires = ttl is not None or any(flow.ttl for flow in self.flows.values())
        #: Conversations that expire are handed over to ``on_expired``.
        self.hands_over = on_expired is not None and self.expires
        for flow in self.flows.values():
            if flow.data is not None:
                ensure_registered(flow.data, f"{flow.name}.{flow.data.__name__}")

    async def __aenter__(self) -> Self:
        if self._timers is not None:
            self._timers.check()
        self._opened = self._opened or not self.storage.is_open
        await self.storage.open()
        await self.prepare()
        self._entered += 1
        if self._entered > 1:
            return self
        if self._on_expired is not None:
            self.storage.expired_listeners.append(self._swept)
        if self._timers is not None:
            self._timers.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        if self._entered:
            return
        if self._timers is not None:
            await self._timers.stop()
        if self._on_expired is not None:
            self.storage.expired_listeners.remove(self._swept)
        if self._opened:
            self.ready = self._opened = False
            await self.storage.close()

    def conversation(
        self, update: Any = None, *, key: Any = _NOT_GIVEN, update_id: int | str | None = None
    ) -> Conversation:
        """``async with fsm.conversation(update) as ctx:`` claims and loads, then commits and releases.

        With ``key=`` it is the door for admins, jobs and other platforms.
        """
        return self.open(update, key=key, update_id=update_id)

    async def handle(
        self, update: Any, handler: Handler, *, key: Any = _NOT_GIVEN, update_id: int | str | None = None
    ) -> Any:
        """What ``handler(ctx)`` returned, once it is committed; ``None`` for an update that was handled before."""
        async with self.open(update, key=key, update_id=update_id, enters=True) as ctx:
            if ctx.duplicate:
                return None
            return await _portal.call(handler, ctx)

    def handle_sync(self, update: Any, handler: Handler, **options: Any) -> Any:
        """``handle`` for code without an event loop. A ``def`` handler runs in the caller's thread, and may block."""
        return _portal.sync(self.handle(update, handler, **options))

    def find(
        self, *, user: int | None = None, chat: int | None = None, flow: Any = ANY, state: Any = ANY
    ) -> AsyncIterator[Entry]:
        """Records of a user, of a chat, in a flow, in a state: ``async for entry in fsm.find(user=42)``."""
        return admin.find(self, user, chat, flow, state)

    async def forget(self, *, user: int | None = None, chat: int | None = None) -> admin.Forgotten:
        """Remove every record of a user or a chat, with all that cleared ones leave behind; how many.

        ``forgotten.erased`` says whether nothing of them is left on the storage's disk.
        """
        return await admin.forget(self, user, chat)

    async def move_chat(self, old: int, new: int) -> int:
        """Give the records of a chat its new id; how many. Doing it twice, or again after a crash, is fine.

        A group that becomes a supergroup is moved by itself, when Telegram says so. Where a conversation is
        already active under the new key, that one stays and the old one ends.
        """
        return await admin.move_chat(self, old, new)

    async def migrate(self, progress: Callable[[int], Any] | None = None) -> Migrated:
        """Bring all records to the present revision of their flows now, instead of each at its next update."""
        return await migrate_all(self, progress)

    async def tick(self) -> int:
        """Fire all timers that are due now; how many. ``async with fsm:`` does it by itself."""
        return await (self._timers or Timers(self)).tick()

    # For the router, the timers and the adapters

    def move_to(self, storage: Storage) -> None:
        """Use another storage from now on. Call it before the first update; the present one is not closed."""
        self.storage, self.ready = storage, False
        if self._timers is not None:
            self._timers = Timers(self)

    def for_bot(self, bot: str) -> FSM:
        """The same flows and options for another bot, over the same storage; to be entered by itself."""
        self.storage.address(bot, ())
        other = copy.copy(self)
        other.bot, other.ready, other._opened, other._entered = bot, False, False, 0
        other._timers = None if self._timers is None else Timers(other)
        return other

    def open(
        self,
        update: Any = None,
        *,
        key: Any = _NOT_GIVEN,
        update_id: int | str | None = None,
        collects: bool = False,
        enters: bool | None = None,
    ) -> Conversation:
        """A conversation with the router's extras: it collects calls, and has its own way with duplicates."""
        if update is None and key is _NOT_GIVEN:
            raise InvalidOption("conversation() needs an update, or a key=")
        seen = Update.of(update)
        by_hand = key is not _NOT_GIVEN
        if not by_hand:
            key = self.key.extract(seen)
            if key is None:
                self._check_update(seen.raw)
        return Conversation(
            self,
            seen,
            key,
            self.id_of(seen) if update_id is None and update is not None else update_id,
            by_hand=by_hand,
            collects=collects,
            enters=self.duplicates.enters if enters is None else enters,
        )

    def _check_update(self, raw: Any) -> None:
        """Raise ``InvalidOption`` for what can be no update, where the strategy found no key in it."""
        if isinstance(raw, Mapping):
            if isinstance(raw.get("result"), list) and "ok" in raw:
                raise InvalidOption(
                    "this is a whole reply of getUpdates; pass one update at a time: for update in reply['result']: ..."
                )
            if raw.get("ok") is False and "error_code" in raw:
                raise InvalidOption("this is an error reply of the Bot API, not an update; check reply['ok'] first")
        elif isinstance(raw, _NO_UPDATES) and keys.reads_telegram(self.key):
            parse = "; parse its JSON first" if isinstance(raw, str | bytes | bytearray) else ""
            raise InvalidOption(
                f"an update is a dict or an object of a framework, not {type(raw).__name__}{parse}; "
                "pass one update at a time"
            )

    def id_of(self, update: Update) -> int | str | None:
        """The update's id, read by the function that was given for it."""
        return update.update_id if self._update_id is None else self._update_id(update)

    def no_key(self, update: Update, *, by_hand: bool) -> NoKeyError:
        """The error for a change where there is no key."""
        return NoKeyError(update.kind, None if by_hand else keys.name_of(self.key))

    async def prepare(self) -> None:
        """Open the storage and initialise the bot."""
        self._opened = self._opened or not self.storage.is_open
        await self.storage.init(self.bot)
        self.ready = True

    def knows(self, slot: Slot) -> bool:
        """The flow and state of a held record are declared here."""
        flow = None if slot.flow is None else self.flows.get(slot.flow)
        return flow is not None and (slot.state is None or flow.declares(slot.state))

    def catch_up(self, slot: Slot) -> bool:
        """Migrate a held record if it is behind; one that cannot be migrated stays as it is.

        Whether its flow and state are declared here, then.
        """
        flow = None if slot.flow is None else self.flows.get(slot.flow)
        if flow is not None and slot.revision == flow.revision and not slot.stack and slot.state in flow.states:
            # Nearly always: nothing is behind.
            return True
        try:
            migrate_slot(self.flows, slot)
        except MigrationError:
            logger.exception("the record at %s stays as it was", slot.address.text)
        return self.knows(slot)

    async def finish(self, ctx: Context) -> None:
        """Run the hooks of all that the handler did."""
        if self._hooks and ctx.moves:
            await run_hooks(ctx, ctx.moves, self.flows)

    async def save(self, ctx: Context, slot: Slot) -> None:
        """Write what changed so far, and keep the claim."""
        if await self.write(ctx, slot, keep=True):
            ctx.saved = True

    async def commit(self, ctx: Context, slot: Slot, memo: Memo | None) -> None:
        """Write what changed, with the memo of handled updates if this one has an id, and end the claim."""
        if self._hooks and ctx.moves:
            await self.finish(ctx)
        if memo is None or ctx.update_id is None:
            await self.write(ctx, slot)
        else:
            await self.write(ctx, slot, memo=memo.with_update(ctx.update_id, ctx._calls or []), force=ctx.saved)

    async def write(
        self,
        ctx: Context,
        slot: Slot,
        *,
        keep: bool = False,
        memo: Any = KEEP,
        force: bool = False,
        deadline_passed: bool = False,
    ) -> bool:
        """Write what changed, with the deadline of the state that was entered."""
        flow = None if slot.flow is None else self.flows.get(slot.flow)
        changes: Changes | None = None
        if flow is not None and flow.data is not None:
            # Fields that were changed in place are checked like those given to update_data.
            changes = await slot.changes()
            typed.check_fields(flow.name, flow.data, slot.changed_data(changes))
        deadline: float | Keep | None = KEEP
        if ctx.entered:
            timeout = None if flow is None or slot.state is None else flow.timeouts.get(slot.state)
            deadline = None if timeout is None else timeout.seconds
            if timeout is not None or slot.where:
                slot.where = () if timeout is None else self._where(ctx, slot)
            # Entering a state again is a change too: its time begins anew, and the update is handled.
            force = True
        elif deadline_passed:
            deadline = None
        expiry = self._expiry(ctx, slot, flow) if self.expires else KEEP
        watched = self.hands_over or slot.times or slot.expired
        if watched and not slot.deletes and (force or deadline_passed or slot.changed):
            deadline, expiry = schedule(slot, deadline, expiry)
        written = await slot.commit(
            keep=keep,
            memo=memo,
            # A key belongs to the same people and chats for good.
            tags=KEEP if slot.tags else self._tags(ctx),
            deadline=deadline,
            expiry=expiry,
            force=force or deadline_passed,
            changes=changes,
        )
        ctx.entered = False
        return written

    async def deliver(self, calls: list[dict[str, Any]]) -> None:
        """Send what a timer answers. One that fails is logged: the state has moved on already."""
        send = self.send
        if send is None:
            if calls:
                logger.warning("a timer answers, but there is no send= to send it with")
            return
        for call in calls:
            try:
                async with asyncio.timeout(SEND_TIMEOUT):
                    await send(call)
            except Exception:
                logger.exception("a timer's call %s could not be sent", call.get("method"))

    def _expiry(self, ctx: Context, slot: Slot, flow: FlowDescription | None) -> float | Keep | None:
        ttl = flow.ttl if flow is not None and flow.ttl is not None else self.ttl
        if self.sliding or ctx.began or not slot.found or (slot.expired and not any(slot.times)):
            return ttl
        return KEEP

    async def _swept(self, address: Address, head: str | None) -> None:
        if self._on_expired is None or address.namespace != encode_namespace(self.bot, self.storage.limits):
            return
        place = self.storage.seal(address).open_head(head)
        for _, flow, state, _ in place.expired:
            await self.tell_expired(decode_key(address.key), flow, state)
        if place.flow is not None or not place.expired:
            await self.tell_expired(decode_key(address.key), place.flow, place.state)

    async def tell_expired(self, key: Any, flow: str | None, state: str | None) -> None:
        """Call ``on_expired`` for one conversation."""
        result = None if self._on_expired is None else self._on_expired(Expired(key, flow, state))
        if inspect.isawaitable(result):
            await result

    def _where(self, ctx: Context, slot: Slot) -> tuple[Any, ...]:
        """Where a timer will answer: where the conversation is now, unless its key says the same."""
        where = () if ctx.update.raw is None else keys.answer_to(ctx.update)
        if not where:
            return slot.where
        return () if where == keys.answer_to_key(self.key, ctx.key) else where

    def _tags(self, ctx: Context) -> tuple[str, ...] | Keep:
        if ctx.update.raw is None:
            return keys.tags_of_key(self.key, ctx.key) or KEEP
        return keys.tags_of(self.key, ctx.update, ctx.key)


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise InvalidOption(f"{name} is a number of seconds above 0, got {value!r}")


class Expired(NamedTuple):
    """A conversation that nobody went on with in time; its record is gone."""

    key: Any
    flow: str | None
    state: str | None
