"""Filters on the conversation, for aiogram's ``@dispatcher.message(...)`` and the like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiogram import Dispatcher
from aiogram.dispatcher.event.handler import FilterObject
from aiogram.filters import Filter, and_f, or_f
from aiogram.types import TelegramObject

from stepwell.errors import UsageError
from stepwell.fsm import Context, filters

__all__ = ["ContextFilter", "album", "filters_of", "fsm_flow", "fsm_in_flow", "fsm_state"]


class ContextFilter(Filter):
    """A filter on the conversation, for ``@dispatcher.message(...)`` and the like.

    Combine it with ``&``, ``|`` and ``~``. Put it first if the other operand is aiogram's ``F``.

    Example::

        from stepwell.adapters.aiogram import ContextFilter, fsm_flow, fsm_state

        asks_email: ContextFilter = fsm_flow(Registration) & ~fsm_state("get_name")
    """

    def __init__(self, inner: filters.Filter) -> None:
        self.inner = inner

    async def __call__(self, event: TelegramObject, ctx: Context | None = None) -> bool:
        if ctx is None:
            raise UsageError("filters on the conversation are not available yet; call setup(dispatcher, fsm) first")
        return self.inner(ctx)

    def __and__(self, other: Any) -> Filter:
        if isinstance(other, ContextFilter):
            return ContextFilter(self.inner & other.inner)
        return and_f(self, other)

    def __or__(self, other: Any) -> Filter:
        if isinstance(other, ContextFilter):
            return ContextFilter(self.inner | other.inner)
        return or_f(self, other)

    def __invert__(self) -> ContextFilter:  # type: ignore[override]
        return ContextFilter(~self.inner)

    def __rand__(self, other: Any) -> Filter:
        # aiogram's F would evaluate this filter itself, without the conversation.
        raise TypeError("put fsm_flow(...) before the & or |, or pass both filters, separated by a comma")

    __ror__ = __rand__

    def __bool__(self) -> bool:
        raise TypeError("filters are combined with & | ~, not with and, or, not")


def fsm_flow(flow: object) -> ContextFilter:
    """Match if this flow, given as class, object or name, is active; ``None`` matches if no flow is.

    Example::

        from aiogram import Dispatcher
        from stepwell.adapters.aiogram import fsm_flow

        dispatcher = Dispatcher()

        @dispatcher.message(fsm_flow(Registration))
        async def other(message, ctx):
            await message.answer("Please answer the question.")
    """
    return ContextFilter(filters.fsm_flow(flow))


def fsm_state(state: str | tuple[Any, Any] | None) -> ContextFilter:
    """Match this state; ``fsm_state(("key", value))`` matches a field of the data.

    Example::

        from aiogram import Dispatcher, F
        from stepwell.adapters.aiogram import fsm_state

        dispatcher = Dispatcher()

        @dispatcher.message(fsm_state(Registration.get_email) & F.text)
        async def get_email(message, ctx):
            ctx.update_data(email=message.text)
    """
    return ContextFilter(filters.fsm_state(state))


def album() -> ContextFilter:
    """Match an album: several pictures, videos or files that were sent together. ``ctx.album`` has its messages.

    Its messages, which are one update each, are then collected and handled as one, see ``stepwell.fsm.album``.

    Example::

        from aiogram import Dispatcher
        from stepwell.adapters.aiogram import album

        dispatcher = Dispatcher()

        @dispatcher.message(album())
        async def pictures(message, ctx):
            await message.answer(f"{len(ctx.album)} pictures: {ctx.album[0].caption}")
    """
    return ContextFilter(filters.album())


def fsm_in_flow() -> ContextFilter:
    """Match if any flow is active.

    Example::

        from aiogram import Dispatcher
        from stepwell.adapters.aiogram import fsm_in_flow

        dispatcher = Dispatcher()

        @dispatcher.message(~fsm_in_flow())
        async def register(message, ctx):
            ctx.start_flow(Registration)
    """
    return ContextFilter(filters.fsm_in_flow())


def filters_of(dispatcher: Dispatcher) -> Iterator[ContextFilter]:
    """Yield every ``ContextFilter`` of a dispatcher's routers, those inside combined filters included."""
    for router in dispatcher.chain_tail:
        for observer in router.observers.values():
            for handler in (observer._handler, *observer.handlers):
                for registered in handler.filters or ():
                    yield from _unpack(registered)


def _unpack(registered: FilterObject) -> Iterator[ContextFilter]:
    callback: Any = registered.callback
    if isinstance(callback, ContextFilter):
        yield callback
    for part in (*getattr(callback, "targets", ()), getattr(callback, "target", None)):
        if isinstance(part, FilterObject):
            yield from _unpack(part)
