"""Stepwell's conversations in the handlers of python-telegram-bot: one claim and one commit for each update."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from telegram import Update
from telegram.ext import CallbackContext

from stepwell.adapters.framework.conversations import UpdateConversation
from stepwell.adapters.framework.sending import make_call, refusal_of
from stepwell.adapters.ptb.calls import call_bot, client_of, pause_of
from stepwell.adapters.ptb.objects import AnyApplication, bot_of_objects
from stepwell.errors import UsageError
from stepwell.fsm import FSM, Context
from stepwell.options import check_instance

__all__ = [
    "ApplicationConversations",
    "HeldAlbum",
    "add_conversations",
    "album_in_handlers",
    "conversations_of",
    "current_context",
    "fsm_of",
]


class _Current(NamedTuple):
    """The conversation of the update that is being handled."""

    application: AnyApplication
    update: Update
    conversation: UpdateConversation
    ctx: Context[Any]
    #: The task in which the handlers run.
    task: asyncio.Task[Any] | None


def add_conversations(application: AnyApplication, fsm: FSM) -> None:
    """Let an application have conversations."""
    check_instance(fsm, FSM, "setup(application, fsm) takes an FSM, got {}")
    if application in _conversations:
        raise UsageError("setup() was already called for this application; put all flows in one FSM(flows=[...])")
    _conversations[application] = ApplicationConversations(fsm)


def fsm_of(context: CallbackContext[Any, Any, Any, Any]) -> Context[Any]:
    """Return the conversation of the update that the handler gets.

    Raises ``UsageError`` outside a handler.

    Example::

        from stepwell.adapters.ptb import fsm_of

        async def get_name(update, context):
            ctx = fsm_of(context)
            ctx.update_data(name=update.message.text)
            ctx.transition("get_email")
    """
    check_instance(context, CallbackContext, "fsm_of(context) takes the second argument of a handler, got {}")
    return current_context("fsm_of(context)")


def current_context(what: str) -> Context[Any]:
    """Return the conversation of the update that is being handled; ``what`` names the caller in errors."""
    current = _current.get()
    if current is None:
        raise UsageError(
            f"{what}: no conversation is open; call setup(application, fsm) first, and use "
            "'async with fsm.conversation(key=...)' outside of handlers, such as in a job"
        )
    if current.task is not asyncio.current_task():
        raise UsageError(
            f"{what} is not available in a block=False handler or in another task, because the conversation is "
            "written when the update ends, which may be earlier; remove block=False, or call it in the handler itself"
        )
    return current.ctx


def conversations_of(application: AnyApplication) -> ApplicationConversations | None:
    """Return the conversations of an application, if ``setup`` was called for it."""
    return _conversations.get(application)


class ApplicationConversations:
    """The conversations of one application."""

    def __init__(self, fsm: FSM) -> None:
        self.fsm: FSM = fsm
        self._running = False

    async def start(self, application: AnyApplication) -> None:
        """Open the storage and start the timers."""
        # Also for the timers, whose tasks begin here.
        bot_of_objects.set(application.bot)
        if not self._running:
            client = client_of(application.bot)
            self.fsm.send = self.fsm.send or client.send
            self.fsm.client = self.fsm.client or client
            await self.fsm.__aenter__()
            self._running = True

    async def stop(self) -> None:
        """Stop the timers, and close the storage if ``start()`` opened it."""
        if self._running:
            self._running = False
            await self.fsm.__aexit__(None, None, None)

    async def process(
        self, application: AnyApplication, update: Update, process: Callable[[], Awaitable[Exception | None]]
    ) -> Exception | None:
        """Let the handlers of an update run in its conversation, and make its calls.

        Return the error if the update could not be claimed or written; it was passed to the error handlers.
        """
        album = album_in_handlers.get()
        if album is not None and album.ctx.update.update_id == update.update_id:
            # The machine writes what the handlers change, and makes their calls.
            token = _current.set(_Current(application, update, *album, asyncio.current_task()))
            try:
                return await process()
            finally:
                _current.reset(token)
        await self.start(application)
        conversation = UpdateConversation(self.fsm, update)
        try:
            ctx = await conversation.__aenter__()
        except Exception as error:  # noqa: BLE001 it is passed to the error handlers
            await application.process_error(update=update, error=error)
            return error
        if ctx is not None and ctx.update.media_group_id is not None and conversation.add_to_album(_as_json(update)):
            # Its handlers are called when the album is complete.
            ctx = None
            try:
                await conversation.__aexit__(None, None, None)
            except Exception as error:  # noqa: BLE001 it is passed to the error handlers
                await application.process_error(update=update, error=error)
                return error
        if ctx is not None:
            token = _current.set(_Current(application, update, conversation, ctx, asyncio.current_task()))
            try:
                conversation.failed = await process()
            except BaseException as error:
                await conversation.__aexit__(type(error), error, error.__traceback__)
                raise
            finally:
                _current.reset(token)
            try:
                await conversation.__aexit__(None, None, None)
            except Exception as error:  # noqa: BLE001 it is passed to the error handlers
                await application.process_error(update=update, error=error)
                return error
        for call in conversation.calls:
            try:
                await make_call(partial(call_bot, application.bot), pause_of, call)
            except Exception as error:  # noqa: BLE001 it is passed to the error handlers
                if pause_of(error) is None:
                    await conversation.keep_refused(call, refusal_of(call["method"], error))
                await application.process_error(update=update, error=error)
        return conversation.failed


class HeldAlbum(NamedTuple):
    """An album that is being handled."""

    conversation: UpdateConversation
    ctx: Context[Any]


def _as_json(update: Update) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(update.to_json())
    return found


async def discard_changes(application: AnyApplication, update: object, error: Exception) -> None:
    """Discard the changes of a conversation whose handler has raised."""
    current = _current.get()
    # A block=False handler has its own task and does not change the conversation.
    if current is not None and current[:2] == (application, update) and current.task is asyncio.current_task():
        await current.conversation.rollback(error)


_conversations: WeakKeyDictionary[AnyApplication, ApplicationConversations] = WeakKeyDictionary()
album_in_handlers: ContextVar[HeldAlbum | None] = ContextVar("stepwell_ptbalbum_in_handlers", default=None)
_current: ContextVar[_Current | None] = ContextVar("stepwell_ptb_conversation", default=None)
