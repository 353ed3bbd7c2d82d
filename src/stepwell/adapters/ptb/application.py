"""The hook in python-telegram-bot's ``Application``: claims before the handlers of an update, a commit after them.

``Application`` has no hook around the handlers of an update that also sees calls of ``process_update``. So an
application becomes a ``ClaimingApplication`` by ``setup()`` or ``confirm_handled()``, or when it is initialized with a
``StepwellPersistence``. ``Application.initialize`` is the only method that is wrapped for all applications.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import cache, partial, wraps
from typing import Any

from telegram import Update
from telegram.ext import Application

from stepwell.adapters.framework.conversations import check_flows
from stepwell.adapters.framework.retry import TEMPORARY
from stepwell.adapters.ptb.albums import ApplicationAlbums
from stepwell.adapters.ptb.arrival.confirmation import ConfirmingQueue, confirm_update
from stepwell.adapters.ptb.arrival.turns import ControlQueue, add_turns, turns_of
from stepwell.adapters.ptb.conversation import check_names, conversations_in
from stepwell.adapters.ptb.conversations import (
    add_conversations,
    album_in_handlers,
    conversations_of,
    discard_changes,
)
from stepwell.adapters.ptb.filters import filters_in
from stepwell.adapters.ptb.objects import AnyApplication
from stepwell.adapters.ptb.persistence import StepwellPersistence
from stepwell.adapters.ptb.updates import updates_of
from stepwell.errors import InvalidOption
from stepwell.fsm import FSM
from stepwell.options import check_instance
from stepwell.turns import Turns

__all__ = ["ClaimingApplication", "attach_turns", "confirm_handled", "install", "setup"]

logger: logging.Logger = logging.getLogger(__name__)


class ClaimingApplication(Application[Any, Any, Any, Any, Any, Any]):
    """An application that claims the records of its updates."""

    __slots__ = ()

    async def shutdown(self) -> None:
        """Stop the timers, and shut down."""
        conversations, turns = conversations_of(self), turns_of(self)
        try:
            if turns is not None and not self.running:
                await turns.stop()
            if conversations is not None and not self.running:
                await conversations.stop()
        finally:
            await super().shutdown()

    async def process_update(self, update: object) -> None:
        """Claim the records of an update, call its handlers and write the changes."""
        error: Exception | None = None
        try:
            error = await _process(self, update, partial(super().process_update, update))
        finally:
            confirm_update(update, error)
        # The error handlers were called. A webhook that calls this method must fail, so that Telegram delivers the
        # update again; the task that handles the queue must not, because it would end.
        if isinstance(error, TEMPORARY) and not _from_queue.get():
            raise error

    async def process_error(self, update: object, error: Exception, *args: Any, **kwargs: Any) -> bool:
        """Discard the changes of a conversation whose handler has raised, and call the error handlers."""
        await discard_changes(self, update, error)
        return await super().process_error(update, error, *args, **kwargs)

    async def _update_fetcher(self) -> None:
        _from_queue.set(True)
        await super()._update_fetcher()


def setup(application: AnyApplication, fsm: FSM) -> None:
    """Let the handlers of an application use conversations: ``ctx = fsm_of(context)``.

    Each update makes one claim and one commit. If a handler raises, the changes that the update has made so far are
    discarded before the error handlers are called. Timers run from ``initialize()`` to ``shutdown()`` of the
    application, and answer through its bot.

    Example::

        from telegram.ext import Application, MessageHandler, filters
        from stepwell.adapters.ptb import fsm_of, setup

        async def register(update, context):
            fsm_of(context).start_flow(Registration)

        application = Application.builder().token("42:token").build()
        application.add_handler(MessageHandler(filters.TEXT, register))
        setup(application, fsm)
    """
    check_instance(application, Application, "setup(application, fsm) takes an Application, got {}")
    add_conversations(application, fsm)
    fsm.albums = ApplicationAlbums(application)
    _claim_updates(application)


def attach_turns(application: AnyApplication, turns: Turns) -> None:
    """Pass on what no handler of an application takes, as ``turns.attach(application)`` does.

    The handlers of the default group come first. A stop, and the answer to a question of a turn, act when they arrive,
    before the updates that wait. The turns run from ``initialize()`` to ``shutdown()`` of the application, and their
    calls are made by its bot.

    Raises ``UsageError`` if turns are attached already.

    Example::

        from telegram.ext import Application
        from stepwell.adapters.ptb import attach_turns

        application = Application.builder().token("42:token").build()
        attach_turns(application, turns)
    """
    check_instance(application, Application, "attach_turns(application, turns) takes an Application, got {}")
    add_turns(application, turns)
    _claim_updates(application)


def confirm_handled(application: AnyApplication) -> None:
    """Confirm each update to Telegram when it is handled, so that an update is delivered again after a kill.

    python-telegram-bot confirms an update when it arrives. Call this before ``run_polling`` or ``run_webhook``.
    A webhook is then answered when its update is handled. Polling handles updates one after the other, also with
    ``concurrent_updates``. If the storage is unavailable or a lease was lost, the update is delivered again too.

    Example::

        from telegram.ext import Application
        from stepwell.adapters.ptb import confirm_handled

        application = Application.builder().token("42:token").build()
        confirm_handled(application)
    """
    if application.updater is None:
        raise InvalidOption(
            "confirm_handled(application) needs an application with an updater; without one, answer the webhook after "
            "'await application.process_update(update)'"
        )
    queue: Any = ConfirmingQueue(application.update_queue)
    arriving: Any = application.updater.update_queue
    if isinstance(arriving, ControlQueue):
        arriving.queue = queue
    else:
        application.updater.update_queue = queue
    _claim_updates(application)


def install() -> None:
    """Wrap ``Application.initialize``."""
    initialize = Application.initialize

    @wraps(initialize)
    async def initialize_and_start(self: AnyApplication) -> None:
        check_names(self)
        if isinstance(self.persistence, StepwellPersistence):
            _claim_updates(self)
        await initialize(self)
        await _start(self)

    Application.initialize = initialize_and_start  # type: ignore[method-assign]


def _claim_updates(application: AnyApplication) -> None:
    if not isinstance(application, ClaimingApplication):
        application.__class__ = _claiming(type(application))


@cache
def _claiming(cls: type[AnyApplication]) -> type[AnyApplication]:
    """Return a subclass of an application's class that claims the records of its updates."""
    return type(cls.__name__, (ClaimingApplication, cls), {"__slots__": (), "__module__": cls.__module__})


async def _start(application: AnyApplication) -> None:
    conversations, persistence = conversations_of(application), application.persistence
    if conversations is not None:
        check_flows(conversations.fsm, [each.inner for each in filters_in(application)])
        await conversations.start(application)
    turns = turns_of(application)
    if turns is not None:
        await turns.start(application)
    if isinstance(persistence, StepwellPersistence):
        updates_of(persistence, application).start()
    elif not all(handler.persistent for handler in conversations_in(application)):
        logger.warning(
            "the ConversationHandlers of this application keep their states in memory, because it has no "
            "StepwellPersistence; pass ApplicationBuilder().persistence(StepwellPersistence(storage))"
        )


async def _process(
    application: AnyApplication, update: object, process: Callable[[], Awaitable[None]]
) -> Exception | None:
    """Let the handlers of an update run; return the error if its changes could not be written."""
    persistence, conversations = application.persistence, conversations_of(application)
    if not isinstance(update, Update):
        await process()
        return None

    async def process_claimed() -> Exception | None:
        if isinstance(persistence, StepwellPersistence):
            return await updates_of(persistence, application).process(update, process)
        await process()
        return None

    async def process_in_conversation() -> Exception | None:
        if conversations is None:
            return await process_claimed()
        return await conversations.process(application, update, process_claimed)

    turns = turns_of(application)
    if turns is None or album_in_handlers.get() is not None:
        return await process_in_conversation()
    return await turns.process(application, update, process_in_conversation)


#: True in the task that handles the updates of the queue, and in those that it starts.
_from_queue: ContextVar[bool] = ContextVar("stepwell_from_queue", default=False)
