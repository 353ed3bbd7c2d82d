"""The machine: opens a conversation for an update, and commits it in one step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, Self

from stepwell import background
from stepwell.codec import ensure_registered
from stepwell.errors import DuplicateUpdate, InvalidOption, NoKeyError
from stepwell.fsm import keys, typed
from stepwell.fsm.context import Context, Handler, NoRecord
from stepwell.fsm.description import Flows
from stepwell.fsm.memo import Memo
from stepwell.fsm.policy import DuplicatePolicy, MissingKeyPolicy, TransitionPolicy, UnknownStatePolicy
from stepwell.fsm.update import Update
from stepwell.record import KEEP, Keep
from stepwell.slot import Slot
from stepwell.storage import Storage, open_storage

__all__ = ["FSM", "Conversation"]

_NOT_GIVEN: Any = object()


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
        update_id: Callable[[Any], int | str | None] | None = None,
    ) -> None:
        if not lease > 0 or wait < 0:
            raise InvalidOption(f"lease is above 0 and wait not below 0 (seconds), got lease={lease!r}, wait={wait!r}")
        if update_id is not None and not callable(update_id):
            raise InvalidOption(f"update_id is a function of the update, got {update_id!r}")
        self.bot = bot
        self.storage = open_storage(storage) if isinstance(storage, str) else storage
        if not isinstance(self.storage, Storage):
            raise InvalidOption(f"storage is a Storage or a URL such as 'sqlite:///bot.db', not {storage!r}")
        self.storage.address(bot, ())
        self.flows = Flows(flows)
        self.key = keys.strategy(key)
        self.transitions = TransitionPolicy(on_invalid_transition)
        self.unknown_state = UnknownStatePolicy(on_unknown_state)
        self.missing_key = MissingKeyPolicy(on_missing_key)
        self.duplicates = DuplicatePolicy(on_duplicate)
        self.wait = wait
        self.lease = lease
        self._update_id = update_id
        self.ready = False
        self._opened = False
        for flow in self.flows.values():
            if flow.data is not None:
                ensure_registered(flow.data, f"{flow.name}.{flow.data.__name__}")

    async def __aenter__(self) -> Self:
        self._opened = not self.storage.is_open
        await self.prepare()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        try:
            async with self.open(update, key=key, update_id=update_id, enters=False) as ctx:
                result = handler(ctx)
                return await result if inspect.isawaitable(result) else result
        except DuplicateUpdate:
            return None

    def handle_sync(self, update: Any, handler: Handler, **options: Any) -> Any:
        """``handle`` for code without an event loop."""
        return background.sync(self.handle(update, handler, **options))

    # For the router and the adapters

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
        if key is _NOT_GIVEN:
            key = self.key.extract(seen)
        return Conversation(
            self,
            seen,
            key,
            self.id_of(seen) if update_id is None else update_id,
            collects=collects,
            enters=self.duplicates.enters if enters is None else enters,
        )

    def id_of(self, update: Update) -> int | str | None:
        """The update's id, read by the function that was given for it."""
        return update.update_id if self._update_id is None else self._update_id(update)

    def no_key(self, update: Update) -> NoKeyError:
        """The error for a change where there is no key."""
        return NoKeyError(update.kind, keys.name_of(self.key))

    async def prepare(self) -> None:
        """Open the storage and initialise the bot."""
        await self.storage.init(self.bot)
        self.ready = True

    async def save(self, ctx: Context, slot: Slot) -> None:
        """Write what changed so far, and keep the claim."""
        self._check_fields(slot)
        if await slot.commit(keep=True, tags=self._tags(ctx, slot)):
            ctx.saved = True

    async def commit(self, ctx: Context, slot: Slot, update_id: int | str | None) -> None:
        """Write what changed, with the memo of handled updates, and end the claim."""
        self._check_fields(slot)
        memo = KEEP if update_id is None else Memo.of(slot).with_update(update_id, ctx._calls or [])
        await slot.commit(memo=memo, tags=self._tags(ctx, slot), force=ctx.saved and update_id is not None)

    def _tags(self, ctx: Context, slot: Slot) -> tuple[str, ...] | Keep:
        # A key belongs to the same people and chats for good.
        if slot.tags or ctx.update.raw is None:
            return KEEP
        return keys.tags_of(self.key, ctx.update, ctx.key)

    def _check_fields(self, slot: Slot) -> None:
        """Fields that were changed in place are checked like those given to ``update_data``."""
        flow = None if slot.flow is None else self.flows.get(slot.flow)
        if flow is not None and flow.data is not None:
            typed.check_fields(flow.name, flow.data, slot.changed_data())


class Conversation:
    """From claim to commit; made by ``FSM.conversation``."""

    __slots__ = ("_collects", "_ctx", "_enters", "_fsm", "_key", "_slot", "_update", "_update_id")

    def __init__(
        self, fsm: FSM, update: Update, key: Any, update_id: int | str | None, *, collects: bool, enters: bool
    ) -> None:
        self._fsm = fsm
        self._update = update
        self._key = key
        self._update_id = update_id
        self._collects = collects
        self._enters = enters
        self._slot: Slot | None = None
        self._ctx: Context | None = None

    async def __aenter__(self) -> Context:
        fsm = self._fsm
        if self._key is None:
            self._ctx = Context(fsm, self._update, None, NoRecord(), collects=self._collects)
            return self._ctx
        if not fsm.ready:
            await fsm.prepare()
        slot = Slot(fsm.storage, fsm.bot, self._key, wait=fsm.wait, lease=fsm.lease)
        await slot.__aenter__()
        try:
            ctx = Context(fsm, self._update, self._key, slot, collects=self._collects)
            self._check_duplicate(ctx, slot)
            self._meet_unknown_state(ctx, slot)
        except BaseException:
            await slot.__aexit__(None, None, None)
            raise
        self._slot, self._ctx = slot, ctx
        return ctx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ctx, slot = self._ctx, self._slot
        assert ctx is not None
        try:
            if kind is None:
                await self._finish(ctx, slot)
        finally:
            ctx.close()
            if slot is not None:
                await slot.__aexit__(kind, error, trace)

    async def _finish(self, ctx: Context, slot: Slot | None) -> None:
        if slot is None:
            if ctx.data:
                # Changed in place, past all doors.
                self._fsm.missing_key.refuse(self._fsm.no_key(self._update))
        elif not ctx.duplicate:
            await self._fsm.commit(ctx, slot, self._update_id)
        elif slot.changed:
            refusal = ctx.refusal()
            assert refusal is not None
            raise refusal

    def _check_duplicate(self, ctx: Context, slot: Slot) -> None:
        if self._update_id is None:
            return
        memo = Memo.of(slot)
        if not memo.has(self._update_id):
            return
        if not self._enters:
            raise DuplicateUpdate(slot.address.text, self._update_id, memo.calls_of(self._update_id))
        ctx.duplicate = True

    def _meet_unknown_state(self, ctx: Context, slot: Slot) -> None:
        if slot.flow is None or ctx.duplicate:
            return
        flow = self._fsm.flows.get(slot.flow)
        if flow is not None and (slot.state is None or flow.declares(slot.state)):
            return
        if self._fsm.unknown_state.meet(ctx, slot.flow, slot.state) == "reset":
            slot.delete()
