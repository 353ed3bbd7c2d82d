"""The updates of one application with ``StepwellPersistence``: each is claimed, handled and committed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from telegram import Update
from telegram.ext._handlers.conversationhandler import PendingState

from stepwell import Storage
from stepwell.adapters.ptb.claims import UpdateClaim
from stepwell.adapters.ptb.conversation import conversations_in
from stepwell.adapters.ptb.held_conversation import HeldConversation
from stepwell.adapters.ptb.objects import AnyApplication, bot_of_objects
from stepwell.adapters.ptb.pending import PendingHandlers, resolve
from stepwell.adapters.ptb.persistence import StepwellPersistence, UpdatesInUse
from stepwell.adapters.ptb.timeouts import (
    ConversationTimeout,
    ConversationTimers,
    seconds_of,
    timeout_field,
)
from stepwell.engine import Address, Get, Stored, TimerSource, decode_key

__all__ = ["ClaimedUpdates", "updates_of"]

logger: logging.Logger = logging.getLogger(__name__)


class DueTimeouts(TimerSource):
    """The records with overdue timeouts. ``fire`` claims them itself, with the other records of their update."""

    def __init__(self, storage: Storage, namespace: str, fire: Callable[[Address], Awaitable[bool]]) -> None:
        super().__init__(storage, namespace, {}, what="conversation timeouts")
        self._fire = fire

    async def serve(self, address: Address) -> bool:
        """Fire the timeouts of a record."""
        return await self._fire(address)


class ClaimedUpdates(UpdatesInUse):
    """Handles the updates of an application, and the timeouts of its conversations."""

    def __init__(self, persistence: StepwellPersistence[Any, Any, Any], application: AnyApplication) -> None:
        self.persistence: StepwellPersistence[Any, Any, Any] = persistence
        self.application: AnyApplication = application
        self._pending = PendingHandlers(persistence.storage)
        self._timers = ConversationTimers(lambda timeout: self._spawn(self._time_out(timeout)))
        self._tasks: set[asyncio.Task[None]] = set()
        self._due: DueTimeouts | None = None

    def start(self) -> None:
        """Start to look for timeouts that no other process has fired, if a handler has a timeout."""
        if self._due is None and any(seconds_of(handler) for handler in conversations_in(self.application)):
            storage = self.persistence.storage
            self._due = DueTimeouts(storage, self.persistence.namespace, self.time_out_record)
            self._due.start()

    async def stop(self) -> None:
        """Wait for running timeouts and pending handlers. Timeouts that are not due yet are stored."""
        self._timers.cancel_all()
        due, self._due = self._due, None
        if due is not None:
            await due.stop(timeout=self.persistence.lease)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def process(self, update: Update, process: Callable[[], Awaitable[None]]) -> Exception | None:
        """Let the handlers of an update run, with its records claimed; return the error if they were not written."""

        async def work(claim: UpdateClaim) -> None:
            await process()

        return await self._run(update, work, once=True)

    async def _run(
        self, update: Update, work: Callable[[UpdateClaim], Awaitable[None]], *, once: bool = False
    ) -> Exception | None:
        """Call ``work`` with the records of an update claimed, and write the changes.

        If that fails, the error is passed to the error handlers of the application, and returned.
        """
        application = self.application
        bot_of_objects.set(application.bot)
        claim = UpdateClaim(self.persistence, application, update, self._pending, once=once)
        try:
            try:
                if await claim.enter():
                    logger.info("update %d was delivered again and is dropped", update.update_id)
                    return None
            except Exception as error:  # noqa: BLE001 it is passed to the error handlers
                await application.process_error(update=update, error=error)
                return error
            try:
                await work(claim)
                try:
                    await claim.finish()
                except Exception as error:  # noqa: BLE001 it is passed to the error handlers
                    claim.abandon()
                    await application.process_error(update=update, error=error)
                    return error
            except BaseException:
                claim.abandon()
                raise
        finally:
            await claim.close()
        for conversation in claim.conversations:
            self._follow(update, conversation, claim)
        return None

    def _follow(self, update: Update, each: HeldConversation, claim: UpdateClaim) -> None:
        """Set the timer of a conversation, and wait for its pending handler."""
        state = each.state
        if each.starts_pending:
            assert isinstance(state, PendingState)
            pending = state
            pending.task.add_done_callback(lambda _: self._spawn(self._settle(update, each, pending)))
        elif each.timeout is not None:
            self.start()
            timeout = ConversationTimeout(each.handler, each.key, each.timeout, update, each.context)
            self._timers.set(timeout, max(claim.seconds_until(each.timeout, each.record), 0.0))
        elif state is None:
            self._timers.cancel(each.handler, each.key)

    async def _settle(self, update: Update, begun: HeldConversation, pending: PendingState) -> None:
        """Store the state that a ``block=False`` handler has returned."""

        async def work(claim: UpdateClaim) -> None:
            each = claim.conversation(begun.handler, begun.key)
            if each.state is pending:
                each.state = pending.old_state
                each.handler._update_state(resolve(pending), each.key)
                each.context = begun.context

        try:
            await self._run(update, work)
        finally:
            await self._pending.end()

    async def _time_out(self, timeout: ConversationTimeout) -> None:
        """End a conversation, unless a later update has set another timeout."""
        application, update, handler, key = self.application, timeout.update, timeout.handler, timeout.key

        async def work(claim: UpdateClaim) -> None:
            each = claim.conversation(handler, key)
            slot = claim.slot(each.record)
            stored = slot.data.get(timeout_field(each.name), {}).get(each.text)
            if stored is None or stored[0] != timeout.at or (timeout.context is None and timeout.at > slot.now):
                return
            context = timeout.context or application.context_types.context.from_update(update, application)
            await context.refresh_data()
            about = SimpleNamespace(
                conversation_key=key, update=update, application=application, callback_context=context
            )
            job: Any = SimpleNamespace(data=about)
            handler.timeout_jobs[key] = job
            each.timed_out = True
            try:
                await handler._trigger_timeout(SimpleNamespace(job=job))
            except Exception as error:  # noqa: BLE001 it is passed to the error handlers
                await application.process_error(update=update, error=error)

        await self._run(update, work)

    async def time_out_record(self, address: Address) -> bool:
        """Fire the timeouts of a record that are overdue."""
        storage, application = self.persistence.storage, self.application
        stored: Stored | None = await storage.perform(Get(address))
        handlers = {timeout_field(handler.stored_name): handler for handler in conversations_in(application)}
        found = False
        for field, pairs in ({} if stored is None else storage.seal(address).data(stored.fields)).items():
            for text, (at, about) in pairs.items() if field in handlers else ():
                update = Update.de_json(json.loads(about), application.bot)
                assert update is not None
                await self._time_out(ConversationTimeout(handlers[field], decode_key(text), at, update, None))
                found = True
        if not found and self._due is not None:
            # Another process may have the handler.
            self._due.pauses.add(address)
        return found

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a timeout or the end of a handler failed", exc_info=task.exception())


def updates_of(persistence: StepwellPersistence[Any, Any, Any], application: AnyApplication) -> ClaimedUpdates:
    """Return the object that handles the updates of an application."""
    found = persistence.updates
    if not isinstance(found, ClaimedUpdates) or found.application is not application:
        found = persistence.updates = ClaimedUpdates(persistence, application)
    return found
