"""``ConversationHandler`` with states in the storage: python-telegram-bot's own, safe for several workers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from telegram import Update, ext

from stepwell.adapters.ptb.objects import AnyApplication
from stepwell.adapters.ptb.persistence import StepwellPersistence
from stepwell.adapters.ptb.states import ConversationKey
from stepwell.engine import quoted
from stepwell.errors import InvalidOption

__all__ = ["ConversationHandler", "conversations_in"]


class ConversationHandler(ext.ConversationHandler[Any]):
    """python-telegram-bot's ``ConversationHandler``, with its states in the storage of ``StepwellPersistence``.

    Change the import of an existing handler. The state is read before each update and written with the data of the
    update's user and chat when the handlers have ended, so several workers and ``concurrent_updates`` are safe.
    It takes the same arguments. ``persistent=True`` is not needed. Without a ``name``, the states are stored
    under the name of the first entry point's function.

    If the application has no ``StepwellPersistence``, the states are kept in memory.

    Example::

        from telegram.ext import CommandHandler, MessageHandler, filters
        from stepwell.adapters.ptb import ConversationHandler

        async def ask(update, context):
            return 0

        async def end(update, context):
            return ConversationHandler.END

        name = [MessageHandler(filters.TEXT, end)]
        handler = ConversationHandler([CommandHandler("register", ask)], {0: name}, fallbacks=[])
    """

    __slots__ = ()

    @property
    def conversation_timeout(self) -> Any:
        """The seconds, or ``timedelta``, after which a conversation ends without an update."""
        # The base class would schedule a job for it, in this process only.
        return None if _times_out_here.get() else self._conversation_timeout

    @conversation_timeout.setter
    def conversation_timeout(self, _: object) -> None:
        raise AttributeError("You can not assign a new value to conversation_timeout after initialization.")

    @property
    def stored_name(self) -> str:
        """The name under which the states are stored."""
        return self.name or _derived_name(self)

    def key_of(self, update: Update) -> ConversationKey | None:
        """Return the key of the conversation that an update belongs to, if it can belong to one."""
        if update.channel_post or update.edited_channel_post:
            return None
        query = update.callback_query
        if (
            (self.per_chat and not update.effective_chat)
            or (self.per_user and not update.effective_user)
            or (self.per_message and not query)
            or (query and self.per_chat and not query.message)
        ):
            return None
        return self._get_key(update)

    def record_of(self, key: ConversationKey) -> Any:
        """Return the key of the record with the state of a conversation: the record of its user, or of its chat."""
        if self.per_user:
            return key[1 if self.per_chat else 0]
        return key[0] if self.per_chat else ("message", key[0])

    async def _initialize_persistence(self, application: AnyApplication) -> Any:
        if not isinstance(application.persistence, StepwellPersistence):
            return await super()._initialize_persistence(application)
        found: dict[str, Any] = {}
        for child in self._child_conversations:
            # Nothing has to be loaded for handlers of this class.
            found.update(await child._initialize_persistence(application))
        return found

    async def handle_update(
        self,
        update: Update,
        application: AnyApplication,
        check_result: Any,
        context: Any,
    ) -> object | None:
        """Call the handler of the current state."""
        persistence = application.persistence
        if not isinstance(persistence, StepwellPersistence):
            return await super().handle_update(update, application, check_result, context)
        claim = persistence.held.get(self.record_of(check_result[1]))
        if claim is not None:
            claim.touch(self, check_result[1], context)
        token = _times_out_here.set(True)
        try:
            return await super().handle_update(update, application, check_result, context)
        finally:
            _times_out_here.reset(token)


def conversations_in(
    application: AnyApplication,
) -> Iterator[ConversationHandler]:
    """Yield all handlers of this class in an application, nested ones included."""
    found: list[ext.ConversationHandler[Any]] = [
        handler
        for group in application.handlers.values()
        for handler in group
        if isinstance(handler, ext.ConversationHandler)
    ]
    seen: set[int] = set()
    for handler in found:
        if id(handler) not in seen:
            seen.add(id(handler))
            if isinstance(handler, ConversationHandler):
                yield handler
            found.extend(handler._child_conversations)


def check_names(application: AnyApplication) -> None:
    """Raise ``InvalidOption`` if two handlers would store their states under the same name."""
    names: set[str] = set()
    for handler in conversations_in(application):
        if handler.stored_name in names:
            raise InvalidOption(
                f"two ConversationHandlers would store their states as {quoted(handler.stored_name)}; give "
                "each a name=..."
            )
        names.add(handler.stored_name)


def _derived_name(handler: ext.ConversationHandler[Any]) -> str:
    for entry in handler.entry_points:
        if isinstance(entry, ext.ConversationHandler):
            return f"{_derived_name(entry)} in"
        callback: Any = entry.callback
        while isinstance(callback, functools.partial):
            callback = callback.func
        name = getattr(callback, "__qualname__", type(callback).__qualname__)
        module = str(getattr(callback, "__module__", "__main__")).rpartition(".")[2]
        # A bot's file may be started as a script or imported.
        return name if module == "__main__" else f"{module}.{name}"
    return "conversation"


#: True while ``handle_update`` of a handler with stored states runs.
_times_out_here: ContextVar[bool] = ContextVar("stepwell_times_out_here", default=False)
