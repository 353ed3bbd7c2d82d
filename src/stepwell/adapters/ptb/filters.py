"""Filters on the conversation, for ``MessageHandler`` and the like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from telegram import Update, ext
from telegram.ext import filters as telegram_filters

from stepwell.adapters.ptb.conversations import current_context
from stepwell.adapters.ptb.objects import AnyApplication
from stepwell.fsm import filters

__all__ = ["ConversationFilter", "album", "filters_in", "fsm_flow", "fsm_in_flow", "fsm_state"]


class ConversationFilter(telegram_filters.UpdateFilter):
    """A filter on the conversation: ``MessageHandler(fsm_state("email") & filters.TEXT, ...)``.

    Combine it with ``&``, ``|``, ``^`` and ``~``, also with the filters of python-telegram-bot. A
    ``CallbackQueryHandler`` has no filters, and takes one of these as its ``pattern``.

    Example::

        from telegram.ext import filters
        from stepwell.adapters.ptb import fsm_flow, fsm_state

        asks_email = fsm_flow(Registration) & ~fsm_state("get_name") & filters.TEXT
    """

    __slots__ = ("inner",)

    def __init__(self, inner: filters.Filter) -> None:
        super().__init__()
        self.inner: filters.Filter = inner

    def check_update(self, update: Update) -> bool:
        """Return whether the conversation of the update that is being handled matches, also if it has no message."""
        return self.filter(update)

    def filter(self, update: Update) -> bool:
        """Return whether the conversation of the update that is being handled matches."""
        return self.inner(current_context("filters on the conversation"))

    def __call__(self, callback_data: object) -> bool:
        return self.inner(current_context("filters on the conversation"))


def album() -> ConversationFilter:
    """Match an album: several pictures, videos or files that were sent together. ``ctx.album`` has its messages.

    Its messages, which are one update each, are then collected and handled as one, see ``stepwell.fsm.album``.

    Example::

        from telegram.ext import MessageHandler
        from stepwell.adapters.ptb import album, fsm_of

        async def pictures(update, context):
            album = fsm_of(context).album
            await update.message.reply_text(f"{len(album)} pictures: {album[0].caption}")

        handler = MessageHandler(album(), pictures)
    """
    return ConversationFilter(filters.album())


def fsm_flow(flow: object) -> ConversationFilter:
    """Match if this flow, given as class, object or name, is active; ``None`` matches if no flow is.

    Example::

        from telegram.ext import MessageHandler, filters
        from stepwell.adapters.ptb import fsm_flow

        async def other(update, context):
            await update.message.reply_text("Please answer the question.")

        handler = MessageHandler(fsm_flow(Registration) & filters.TEXT, other)
    """
    return ConversationFilter(filters.fsm_flow(flow))


def fsm_state(state: str | tuple[Any, Any] | None) -> ConversationFilter:
    """Match this state; ``fsm_state(("key", value))`` matches a field of the data.

    Example::

        from telegram.ext import MessageHandler, filters
        from stepwell.adapters.ptb import fsm_of, fsm_state

        async def get_email(update, context):
            fsm_of(context).update_data(email=update.message.text)

        handler = MessageHandler(fsm_state(Registration.get_email) & filters.TEXT, get_email)
    """
    return ConversationFilter(filters.fsm_state(state))


def fsm_in_flow() -> ConversationFilter:
    """Match if any flow is active.

    Example::

        from telegram.ext import CommandHandler
        from stepwell.adapters.ptb import fsm_in_flow, fsm_of

        async def register(update, context):
            fsm_of(context).start_flow(Registration)

        handler = CommandHandler("register", register, filters=~fsm_in_flow())
    """
    return ConversationFilter(filters.fsm_in_flow())


def filters_in(application: AnyApplication) -> Iterator[ConversationFilter]:
    """Yield every ``ConversationFilter`` of an application, those inside of combined filters included."""
    handlers: list[Any] = [handler for group in application.handlers.values() for handler in group]
    for handler in handlers:
        if isinstance(handler, ext.ConversationHandler):
            handlers += [*handler.entry_points, *handler.fallbacks]
            handlers += [inner for group in handler.states.values() for inner in group]
        else:
            for given in (getattr(handler, "filters", None), getattr(handler, "pattern", None)):
                yield from _unpack(given)


def _unpack(given: Any) -> Iterator[ConversationFilter]:
    if isinstance(given, ConversationFilter):
        yield given
    for name in ("base_filter", "and_filter", "or_filter", "xor_filter", "inv_filter"):
        part = getattr(given, name, None)
        if isinstance(part, telegram_filters.BaseFilter):
            yield from _unpack(part)
