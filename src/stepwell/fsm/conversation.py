"""A conversation: from the claim of its record to the commit, for one update."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stepwell.errors import Conflict, DuplicateUpdate, StorageError
from stepwell.fsm.context import Context, NoRecord
from stepwell.fsm.expiry import is_expired, retire
from stepwell.fsm.memo import Memo
from stepwell.fsm.timers import is_timed_out, time_out
from stepwell.fsm.update import Update
from stepwell.slot import Slot

if TYPE_CHECKING:
    from stepwell.fsm.machine import FSM

__all__ = ["Conversation"]

logger = logging.getLogger(__name__)


class Conversation:
    """From claim to commit; made by ``FSM.conversation``."""

    __slots__ = ("_by_hand", "_collects", "_ctx", "_enters", "_fsm", "_key", "_memo", "_slot", "_update", "_update_id")

    def __init__(
        self,
        fsm: FSM,
        update: Update,
        key: Any,
        update_id: int | str | None,
        *,
        by_hand: bool,
        collects: bool,
        enters: bool,
    ) -> None:
        self._fsm = fsm
        self._update = update
        self._key = key
        self._update_id = update_id
        #: The key was given, and not read from the update.
        self._by_hand = by_hand
        self._collects = collects
        self._enters = enters
        self._slot: Slot | None = None
        #: What was handled before, where updates have ids.
        self._memo: Memo | None = None
        self._ctx: Context | None = None

    async def __aenter__(self) -> Context:
        fsm = self._fsm
        if self._update.text is None and self._update.migration is not None:
            if not fsm.ready:
                await fsm.prepare()
            await fsm.move_chat(*self._update.migration)
        if self._key is None:
            self._ctx = Context(fsm, self._update, None, NoRecord(by_hand=self._by_hand), collects=self._collects)
            return self._ctx
        if not fsm.ready:
            await fsm.prepare()
        slot = Slot(fsm.storage, fsm.bot, self._key, wait=fsm.wait, lease=fsm.lease)
        await slot.__aenter__()
        try:
            ctx = Context(fsm, self._update, self._key, slot, collects=self._collects)
            ctx.update_id = self._update_id
            if self._update_id is not None:
                memo = self._memo = Memo.of(slot)
                if memo.has(self._update_id):
                    await self._repeat(ctx, memo, self._update_id)
            if slot.times and not ctx.duplicate and is_expired(slot):
                await retire(slot)
            if slot.flow is not None and not ctx.duplicate:
                known = fsm.catch_up(slot)
                if not known or is_timed_out(slot):
                    await self._catch_up(ctx, slot)
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
                self._fsm.missing_key.refuse(self._fsm.no_key(self._update, by_hand=self._by_hand))
        elif not ctx.duplicate:
            await self._fsm.commit(ctx, slot, self._memo)
        elif slot.changed:
            refusal = ctx.refusal()
            assert refusal is not None
            raise refusal

    async def _repeat(self, ctx: Context, memo: Memo, update_id: int | str) -> None:
        """Answer an update that was handled before."""
        # The write of the memo may not be replicated yet, or its replication may have failed.
        await memo.slot.confirm()
        if not self._enters:
            raise DuplicateUpdate(memo.slot.address.text, update_id, memo.calls_of(update_id))
        ctx.duplicate = True
        if self._collects:
            ctx._calls = list(memo.calls_of(update_id))

    async def _catch_up(self, ctx: Context, slot: Slot) -> None:
        """What time and deploys did to the record since its last update."""
        fsm = self._fsm
        if not fsm.knows(slot):
            if await fsm.unknown_state.meet(ctx, slot.flow, slot.state) == "reset":
                slot.delete()
        elif is_timed_out(slot):
            try:
                calls = await time_out(fsm, slot)
            except (Conflict, StorageError):
                raise
            except Exception:
                # A timeout that fails must not lock anybody out; the timers try it again.
                logger.exception("the timeout at %s failed", slot.address.text)
                slot.rollback()
                fsm.catch_up(slot)
            else:
                await fsm.deliver(calls)
