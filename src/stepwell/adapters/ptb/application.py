"""The hook in python-telegram-bot's ``Application``: claims before the handlers of an update, a commit after them.

``Application`` has no hook around the handlers of an update that also sees calls of ``process_update``, and its
instances cannot be changed. So the methods of the class are wrapped, once, when this package is imported. An
application without a ``StepwellPersistence`` is not affected.
"""

from __future__ import annotations

import logging
from functools import partial, wraps
from typing import Any, TypeAlias

from telegram import Update
from telegram.ext import Application

from stepwell.adapters.ptb.conversation import check_names, conversations_in
from stepwell.adapters.ptb.persistence import StepwellPersistence
from stepwell.adapters.ptb.updates import updates_of

__all__ = ["install"]

logger: logging.Logger = logging.getLogger(__name__)

_Application: TypeAlias = Application[Any, Any, Any, Any, Any, Any]


def install() -> None:
    """Wrap the methods of ``Application``."""
    initialize, process_update = Application.initialize, Application.process_update

    @wraps(initialize)
    async def initialize_and_start(self: _Application) -> None:
        check_names(self)
        await initialize(self)
        if isinstance(self.persistence, StepwellPersistence):
            updates_of(self.persistence, self).start()
        elif not all(handler.persistent for handler in conversations_in(self)):
            logger.warning(
                "the ConversationHandlers of this application keep their states in memory, because it has no "
                "StepwellPersistence; pass ApplicationBuilder().persistence(StepwellPersistence(storage))"
            )

    @wraps(process_update)
    async def process_with_claims(self: _Application, update: object) -> None:
        persistence = self.persistence
        if isinstance(persistence, StepwellPersistence) and isinstance(update, Update):
            await updates_of(persistence, self).process(update, partial(process_update, self, update))
        else:
            await process_update(self, update)

    Application.initialize = initialize_and_start  # type: ignore[method-assign]
    Application.process_update = process_with_claims  # type: ignore[method-assign]
