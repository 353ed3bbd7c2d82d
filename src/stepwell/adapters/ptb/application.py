"""The hook in python-telegram-bot's ``Application``: claims before the handlers of an update, a commit after them.

``Application`` has no hook around the handlers of an update that also sees calls of ``process_update``, and its
instances cannot be changed. So the methods of the class are wrapped, once, when this package is imported. An
application without ``setup()`` and without a ``StepwellPersistence`` is not affected.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, TypeAlias

from telegram import Update
from telegram.ext import Application

from stepwell.adapters.ptb.confirmation import confirm_update
from stepwell.adapters.ptb.conversation import check_names, conversations_in
from stepwell.adapters.ptb.conversations import conversations_of, discard_changes
from stepwell.adapters.ptb.filters import filters_in
from stepwell.adapters.ptb.persistence import StepwellPersistence
from stepwell.adapters.ptb.updates import updates_of
from stepwell.adapters.retry import TEMPORARY
from stepwell.errors import UnknownFlowError

__all__ = ["install"]

logger: logging.Logger = logging.getLogger(__name__)

_Application: TypeAlias = Application[Any, Any, Any, Any, Any, Any]


def install() -> None:
    """Wrap the methods of ``Application``."""
    initialize, shutdown = Application.initialize, Application.shutdown
    process_update, process_error = Application.process_update, Application.process_error
    update_fetcher = Application._update_fetcher

    @wraps(initialize)
    async def initialize_and_start(self: _Application) -> None:
        check_names(self)
        await initialize(self)
        await _start(self)

    @wraps(shutdown)
    async def stop_and_shut_down(self: _Application) -> None:
        conversations = conversations_of(self)
        try:
            if conversations is not None and not self.running:
                await conversations.stop()
        finally:
            await shutdown(self)

    @wraps(update_fetcher)
    async def fetch_updates(self: _Application) -> None:
        _from_queue.set(True)
        await update_fetcher(self)

    @wraps(process_update)
    async def process_with_claims(self: _Application, update: object) -> None:
        error: Exception | None = None
        try:
            error = await _process(self, update, partial(process_update, self, update))
        finally:
            confirm_update(update, error)
        # The error handlers were called. A webhook that calls this method must fail, so that Telegram delivers the
        # update again; the task that handles the queue must not, because it would end.
        if isinstance(error, TEMPORARY) and not _from_queue.get():
            raise error

    @wraps(process_error)
    async def roll_back_and_process_error(
        self: _Application, update: object, error: Exception, *args: Any, **kwargs: Any
    ) -> bool:
        await discard_changes(self, update, error)
        return await process_error(self, update, error, *args, **kwargs)

    Application.initialize = initialize_and_start  # type: ignore[method-assign]
    Application.shutdown = stop_and_shut_down  # type: ignore[method-assign]
    Application._update_fetcher = fetch_updates  # type: ignore[method-assign]
    Application.process_update = process_with_claims  # type: ignore[method-assign]
    Application.process_error = roll_back_and_process_error  # type: ignore[method-assign]


async def _start(application: _Application) -> None:
    conversations, persistence = conversations_of(application), application.persistence
    if conversations is not None:
        for each in filters_in(application):
            for name in sorted(each.inner.flows):
                if name not in conversations.fsm.flows:
                    raise UnknownFlowError(name, conversations.fsm.flows)
        await conversations.start(application)
    if isinstance(persistence, StepwellPersistence):
        updates_of(persistence, application).start()
    elif not all(handler.persistent for handler in conversations_in(application)):
        logger.warning(
            "the ConversationHandlers of this application keep their states in memory, because it has no "
            "StepwellPersistence; pass ApplicationBuilder().persistence(StepwellPersistence(storage))"
        )


async def _process(
    application: _Application, update: object, process: Callable[[], Awaitable[None]]
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

    if conversations is None:
        return await process_claimed()
    return await conversations.process(application, update, process_claimed)


#: True in the task that handles the updates of the queue, and in those that it starts.
_from_queue: ContextVar[bool] = ContextVar("stepwell_from_queue", default=False)
