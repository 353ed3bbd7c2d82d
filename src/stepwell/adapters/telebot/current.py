"""The conversation of an event, for its handlers and filters."""

from __future__ import annotations

from typing import Any

from stepwell.errors import UsageError
from stepwell.fsm import Context, Update

__all__ = ["HandledEvent", "fsm_of", "remember", "update_of"]

#: The attribute of an event: handlers get the message or query without its update.
_ATTRIBUTE = "_stepwell"


class HandledEvent:
    """A message, query or other event, and its conversation while its handlers run."""

    __slots__ = ("ctx", "error", "update")

    def __init__(self, update: Update) -> None:
        self.update: Update = update
        self.ctx: Context[Any] | None = None
        #: The error of a handler.
        self.error: Exception | None = None


def remember(event: Any, update: Update | None = None) -> HandledEvent:
    """Return the object of an event, made with its first call. An event that is handled again gets a new one."""
    known: HandledEvent | None = vars(event).get(_ATTRIBUTE)
    # An update that arrives again must not replace the object that its handlers use at this time.
    new = known is None or (known.ctx is not None if update is None else known.update.update_id != update.update_id)
    if known is None or new:
        known = HandledEvent(update or update_of(event))
        setattr(event, _ATTRIBUTE, known)
    return known


def update_of(event: Any) -> Update:
    """Return the update of an event, without its id if only the event is known."""
    known: HandledEvent | None = vars(event).get(_ATTRIBUTE)
    return Update(event) if known is None else known.update


def fsm_of(event: Any) -> Context[Any]:
    """Return the conversation of the message, query or other event that a handler gets as its first argument.

    Raises ``UsageError`` outside a handler.

    Example::

        from stepwell.adapters.telebot import fsm_of

        def get_name(message):
            ctx = fsm_of(message)
            ctx.update_data(name=message.text)
            ctx.transition("get_email")
    """
    handled: HandledEvent | None = getattr(event, _ATTRIBUTE, None)
    if handled is None or handled.ctx is None:
        raise UsageError(
            f"fsm_of() has no conversation for this {type(event).__name__}; call setup(bot, fsm) first, and pass the "
            "first argument of a handler. Handlers of register_next_step_handler() have no conversation: use states"
        )
    return handled.ctx
