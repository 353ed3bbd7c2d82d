"""A conversation: claim the record of one update, pass a context to the handler, commit."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from time import monotonic
from types import TracebackType
from typing import Any

from stepwell.codec import decode_key
from stepwell.codec.json import replaced
from stepwell.errors import Conflict, DuplicateUpdate, InvalidOption, StepwellError, StorageError
from stepwell.fsm import keys
from stepwell.fsm.admin import move_chat
from stepwell.fsm.base import Machine
from stepwell.fsm.conversation.albums import (
    MOST_ATTEMPTS,
    add_message,
    drop_album,
    first_album,
    keep_album,
    messages_of,
)
from stepwell.fsm.conversation.awaited import explain_await
from stepwell.fsm.conversation.commit import run_hooks, write
from stepwell.fsm.conversation.context import CLOSED, Context, Handler, NoRecord
from stepwell.fsm.conversation.duplicates import HandledUpdates, token_of
from stepwell.fsm.conversation.extension import ALBUM, Album, end
from stepwell.fsm.conversation.migration import catch_up, is_declared
from stepwell.fsm.events import (
    DuplicateReceived,
    FSMEvent,
    HandlerEnded,
    HandlerFailed,
    HandlerStarted,
    UpdateHandled,
    UpdateReceived,
    emit,
    subscribers,
)
from stepwell.fsm.refusals import Origin
from stepwell.fsm.timers import outbox
from stepwell.fsm.timers.expiry import is_expired, retire
from stepwell.fsm.timers.timeouts import is_timed_out, time_out
from stepwell.fsm.update import Update
from stepwell.log.update import UpdateAppends
from stepwell.record import KEEP, NOWHERE
from stepwell.slot import Slot
from stepwell.texts import fit

__all__ = ["NOT_GIVEN", "Conversation", "handle_album"]

logger: logging.Logger = logging.getLogger(__name__)

NOT_GIVEN: Any = object()
_NOT_UPDATES = (
    str, bytes, bytearray, int, float, list, tuple, set, frozenset, Iterator, AsyncIterator, Awaitable
)  # fmt: skip


class Conversation:
    """An async context manager over a ``Context``; made by ``FSM.conversation``.

    With ``collects`` the context collects Bot API calls. With ``enters`` the block is entered for a duplicate, with
    ``ctx.duplicate`` set, instead of raising ``DuplicateUpdate``. A caller that handles an update again after some
    errors passes ``repeats``, which returns whether it does so, and the number of the ``attempt``. ``on_wait`` is
    called when another holder has the record, so that the update waits. ``held``: the record, if the caller holds it;
    the calls are then stored in the outbox.
    """

    __slots__ = (
        "_appends", "_attempt", "_collects", "_counted", "_ctx", "_enters", "_force", "_fsm", "_handled", "_held",
        "_key", "_key_given", "_on_wait", "_repeats", "_slot", "_started", "_token", "_update", "_update_id", "handler",
        "remembers_answers", "unsent",
    )  # fmt: skip

    def __init__(
        self,
        fsm: Machine,
        update: Any,
        *,
        key: Any = NOT_GIVEN,
        update_id: int | str | None = None,
        collects: bool = False,
        enters: bool = False,
        repeats: Callable[[BaseException], bool] | None = None,
        attempt: int = 1,
        on_wait: Callable[[], None] | None = None,
        held: Slot | None = None,
    ) -> None:
        read = update if isinstance(update, Update) else Update(update)
        key_given = key is not NOT_GIVEN
        if not key_given and update is None:
            raise InvalidOption("conversation() needs an update, or a key=")
        self._fsm = fsm
        self._update = read
        self._key = key if key_given else None
        self._key_given = key_given
        self._update_id = update_id
        # A job may answer if its calls can be sent.
        self._collects = collects or (update is None and fsm.send is not None)
        self._enters = enters
        self._repeats = repeats
        self._attempt = attempt
        self._on_wait = on_wait
        #: The record, if the caller holds it, and goes on holding it.
        self._held = held
        #: The update is counted as failed.
        self._counted = False
        self._slot: Slot | None = None
        self._ctx: Context | None = None
        #: Set if the update has an id: what its handler appends to logs.
        self._appends: UpdateAppends | None = None
        #: Set if the update has an id.
        self._handled: HandledUpdates | None = None
        self._token = ""
        #: Remember the update even if nothing else has changed.
        self._force = False
        #: Remember the update even if it was only answered.
        self.remembers_answers: bool = False
        #: The calls in the outbox that the caller has to deliver, if it holds the record.
        self.unsent: outbox.Unsent | None = None
        #: The handler that a router has chosen.
        self.handler: Handler | None = None
        try:
            if not key_given:
                self._key = fsm.key.extract(read)
            if update_id is None and update is not None:
                self._update_id = read.update_id if fsm.update_id is None else fsm.update_id(read)
        except BaseException as error:
            self._begin()
            self._failed(error)
            self._ended()
            raise
        if self._key is None and not key_given:
            _check_update(read.raw, fsm.key)

    def _begin(self) -> None:
        """Count and report that the update has arrived."""
        fsm = self._fsm
        self._started = monotonic()
        if self._update.raw is not None:
            fsm.received += self._attempt == 1 and self._held is None
            if fsm.subscribers or subscribers:
                self._emit(UpdateReceived, update_id=self._update_id, attempt=self._attempt)

    async def __aenter__(self) -> Context:
        fsm, update, key, update_id = self._fsm, self._update, self._key, self._update_id
        self._begin()
        if self._held is not None:
            return self._enter_held(self._held)
        try:
            migration = update.migration if update.text is None else None
            if not fsm.ready and (key is not None or migration is not None):
                await fsm.prepare()
            if migration is not None:
                await move_chat(fsm, *migration)
            if key is None:
                self._ctx = Context(fsm, update, None, NoRecord(key_given=self._key_given), collects=self._collects)
                if fsm.subscribers or subscribers:
                    self._emit(HandlerStarted, waited=monotonic() - self._started)
                if update_id is not None:
                    self._appends = UpdateAppends(fsm.bot, token_of(update_id))
                return self._ctx
            slot = Slot(fsm.storage, fsm.bot, key, wait=fsm.wait, lease=fsm.lease)
            slot.on_wait = self._on_wait
            await slot.__aenter__()
        except BaseException as error:
            self._failed(error)
            self._ended()
            raise
        try:
            ctx = Context(fsm, update, key, slot, collects=self._collects)
            if update_id is not None:
                ctx.update_id = update_id
                self._token = token_of(update_id)
                self._handled = HandledUpdates(slot)
                if self._handled.has(self._token):
                    await self._repeat(ctx, slot, self._handled)
            if not ctx.duplicate:
                if slot.head.timers and is_expired(slot):
                    await retire(fsm, slot)
                if slot.head.place.flow is not None:
                    declared = catch_up(fsm.flows, slot)
                    if not declared or (slot.head.timers and is_timed_out(slot)):
                        await self._apply_overdue(ctx, slot)
                if ALBUM in slot.head.timers and fsm.albums is not None:
                    while (album := first_album(slot, update)) is not None:
                        unsent = await handle_album(fsm, slot, album)
                        if unsent is not None:
                            await outbox.deliver_held(fsm, slot, unsent)
        except BaseException as error:
            if not isinstance(error, DuplicateUpdate):
                self._failed(error)
            self._ended()
            await slot.__aexit__(None, None, None)
            raise
        self._slot, self._ctx = slot, ctx
        if update_id is not None:
            self._appends = UpdateAppends(slot.address, self._token)
        if (fsm.subscribers or subscribers) and not ctx.duplicate:
            self._emit(HandlerStarted, waited=monotonic() - self._started)
        return ctx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ctx, slot = self._ctx, self._slot
        assert ctx is not None
        unsent: outbox.Unsent | None = None
        if (self._fsm.subscribers or subscribers) and not ctx.duplicate:
            self._emit(HandlerEnded, error=error)
        try:
            if error is not None:
                self._failed(error)
            elif slot is None or ctx.duplicate:
                self._check_unchanged(ctx, slot)
                if ctx._calls and not ctx.duplicate:
                    _fit(self._fsm, ctx._calls)
            else:
                fsm = self._fsm
                if fsm.has_hooks and ctx.moves:
                    await run_hooks(fsm, ctx)
                handled = self._handled
                if ctx._calls:
                    if self._update.raw is None or self._held is not None:
                        # Nothing delivers a job or an album again.
                        self.unsent = unsent = outbox.add(fsm, slot, ctx._calls)
                    else:
                        _fit(fsm, ctx._calls)
                memo = KEEP if handled is None else handled.with_update(self._token, ctx._calls)
                force = handled is not None and self._has_effects(ctx)
                await write(fsm, ctx, slot, keep=self._held is not None, memo=memo, force=force)
        except BaseException as failure:
            self._failed(failure)
            raise
        finally:
            if self._appends is not None:
                self._appends.end()
            ctx._record = CLOSED
            if slot is not None and self._held is None:
                await slot.__aexit__(kind, error, trace)
            self._fsm.took += monotonic() - self._started
            if self._fsm.subscribers or subscribers:
                self._emit(UpdateHandled, duration=monotonic() - self._started)
        if unsent is not None and self._held is None:
            await outbox.deliver(self._fsm, self._key, unsent)

    def _has_effects(self, ctx: Context) -> bool:
        """Return whether the update must be remembered even if nothing in its record has changed."""
        if ctx.saved or self._force:
            return True
        answers = self.remembers_answers and bool(ctx._calls)
        return answers or (self._appends is not None and self._appends.any)

    def _enter_held(self, slot: Slot) -> Context:
        fsm, update = self._fsm, self._update
        ctx = self._ctx = Context(fsm, update, self._key, slot, collects=True)
        self._slot = slot
        self._appends = UpdateAppends(slot.address, token_of(f"album {update.media_group_id}"))
        if fsm.subscribers or subscribers:
            self._emit(HandlerStarted, waited=0.0)
        return ctx

    def add_to_album(self, raw: Any = None) -> bool:
        """Add the update to its album, to be written at the end of the block. Return ``False`` if it has none.

        ``raw``: the update as JSON, if it is an object of a framework.
        """
        albums, update = self._fsm.albums, self._update
        if self._slot is None or update.media_group_id is None or albums is None or not albums.collects_albums:
            return False
        return add_message(self._slot, update, raw)

    async def run_hooks(self) -> None:
        """Run the hooks now instead of before the commit, so that the caller can handle their errors."""
        ctx = self._ctx
        if self._fsm.has_hooks and ctx is not None:
            await run_hooks(self._fsm, ctx)

    async def rollback(self, error: Exception, *, again: bool = False) -> None:
        """Discard all changes and answers of a failed handler since the last ``save()``, and keep the claim.

        The update is then remembered as handled even if nothing else changes. ``again``: the handler is called again.
        """
        ctx = self._ctx
        assert ctx is not None
        self._failed(error, again=again)
        if self._slot is None:
            ctx.data.clear()
        else:
            await self._slot.rollback()
            catch_up(self._fsm.flows, self._slot)
        ctx.reset()
        if self._appends is not None:
            self._appends.restart()
        self._force = True

    @property
    def origin(self) -> Origin:
        """The origin of its calls."""
        return Origin(
            fsm=self._fsm, key=self._key, update=self._update, update_id=self._update_id, handler=self.handler
        )

    def _emit(self, kind: type[FSMEvent], **fields: Any) -> None:
        emit(kind, self._fsm, self._key, self._fsm.address_of(self._key), update=self._update, **fields)

    def _failed(self, error: BaseException, *, again: bool = False) -> None:
        explain_await(error)
        again = again or (self._repeats is not None and self._repeats(error))
        if again:
            self._fsm.retried += 1
        elif isinstance(error, Exception) and not self._counted:
            self._fsm.failed += 1
            self._counted = True
        if self._fsm.subscribers or subscribers:
            self._emit(HandlerFailed, error=error, duration=monotonic() - self._started, again=again)

    def _ended(self) -> None:
        if self._fsm.subscribers or subscribers:
            self._emit(UpdateHandled, duration=monotonic() - self._started)

    def _check_unchanged(self, ctx: Context, slot: Slot | None) -> None:
        """Refuse data that was changed in place, bypassing update_data(), if nothing will be written."""
        if slot is None:
            if ctx.data or ctx._profile:
                self._fsm.missing_key.refuse(ctx.no_key())
        elif slot.changed:
            raise ctx.already_handled()

    async def _repeat(self, ctx: Context, slot: Slot, handled: HandledUpdates) -> None:
        """Answer an update that was handled before."""
        assert ctx.update_id is not None
        if self._fsm.subscribers or subscribers:
            self._emit(DuplicateReceived, update_id=ctx.update_id)
        # The write of the memo may not be replicated yet, or its replication may have failed.
        await slot.confirm()
        calls = handled.calls_of(self._token)
        if not self._enters:
            raise DuplicateUpdate(slot.address.text, ctx.update_id, calls)
        ctx.duplicate = True
        if self._collects:
            ctx._calls = list(calls)

    async def _apply_overdue(self, ctx: Context, slot: Slot) -> None:
        """Apply a timeout that has passed, or the policy for a state that a deploy removed."""
        fsm = self._fsm
        if not is_declared(fsm.flows, slot):
            if await fsm.unknown_state.resolve(ctx, slot.flow, slot.state) == "reset":
                end(slot)
        elif is_timed_out(slot):
            try:
                unsent = await time_out(fsm, slot)
            except (Conflict, StorageError):
                raise
            except Exception:
                # A timeout that fails must not block the conversation. The timers retry it.
                logger.exception("the timeout at %s failed", slot.address.text)
                await slot.rollback()
                catch_up(fsm.flows, slot)
            else:
                if unsent is not None:
                    await outbox.deliver_held(fsm, slot, unsent)


async def handle_album(fsm: Machine, slot: Slot, album: Album) -> outbox.Unsent | None:
    """Handle an album of a held record, write, and keep the claim. Return its calls, to be delivered.

    Raises errors of the storage, after which it is handled again. After any other error it is dropped.
    """
    assert fsm.albums is not None
    updates, key = messages_of(album), decode_key(slot.address.key)
    album = replaced(album, attempts=album.attempts + 1)
    if album.attempts > MOST_ATTEMPTS:
        logger.error("an album of %s is dropped, because its process has ended each time", slot.address.text)
        await _drop_album(slot, album)
        return None
    keep_album(slot, album)
    await slot.commit(keep=True)
    conversation = Conversation(fsm, updates[0], key=key, collects=True, held=slot, attempt=album.attempts)
    try:
        async with conversation as ctx:
            ctx._album = [update.event for update in updates]
            await fsm.albums.handle_album(conversation, ctx)
            drop_album(slot, album)
            _end_if_empty(slot)
    except (Conflict, StorageError):
        # The attempts count deaths of the process.
        with contextlib.suppress(StepwellError):
            await slot.rollback()
            keep_album(slot, replaced(album, attempts=album.attempts - 1))
            await slot.commit(keep=True)
        raise
    except Exception:
        # Like that of an update, which would fail again.
        logger.exception("the handler of an album failed (key %s)", key)
        await slot.rollback()
        catch_up(fsm.flows, slot)
        await _drop_album(slot, album)
    return conversation.unsent


async def _drop_album(slot: Slot, album: Album) -> None:
    drop_album(slot, album)
    _end_if_empty(slot)
    await slot.commit(keep=True)


def _end_if_empty(slot: Slot) -> None:
    if slot.place == NOWHERE and not slot.data and not slot.deleted:
        end(slot)


def _fit(fsm: Machine, calls: list[dict[str, Any]]) -> None:
    """Split long texts before the calls are remembered: after a kill, those that were not sent are still there."""
    calls[:] = fit(calls, fsm.formatting)


def _check_update(raw: Any, key: keys.KeyStrategy) -> None:
    """Raise ``InvalidOption`` if a value without a key is not one update."""
    if isinstance(raw, Mapping):
        if isinstance(raw.get("result"), list) and "ok" in raw:
            raise InvalidOption(
                "this is a whole reply of getUpdates; pass one update at a time: for update in reply['result']: ..."
            )
        if raw.get("ok") is False and "error_code" in raw:
            raise InvalidOption("this is an error reply of the Bot API, not an update; check reply['ok'] first")
        if not raw and keys.reads_telegram(key):
            raise InvalidOption("an empty dict is not an update; pass the update as Telegram sent it")
    elif isinstance(raw, _NOT_UPDATES) and keys.reads_telegram(key):
        if isinstance(raw, str | bytes | bytearray):
            advice = "parse its JSON first"
        elif isinstance(raw, Awaitable):
            advice = "await it first"
        else:
            advice = "pass one update at a time"
        raise InvalidOption(f"an update is a dict or an object of a framework, not {type(raw).__name__}; {advice}")
