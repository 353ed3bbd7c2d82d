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

__all__ = ["ContextFilter", "filters_of", "fsm_flow", "fsm_in_flow", "fsm_state"]


class ContextFilter(Filter):
    """A filter on the conversation, for ``@dispatcher.message(...)`` and the like.

    Combine it with ``&``, ``|`` and ``~``. Put it first if the other operand is aiogram's ``F``.
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
    """Match if this flow, given as class, object or name, is active; ``None`` matches if no flow is."""
    return ContextFilter(filters.fsm_flow(flow))


def fsm_state(state: str | tuple[Any, Any] | None) -> ContextFilter:
    """Match this state; ``fsm_state(("key", value))`` matches a field of the data."""
    return ContextFilter(filters.fsm_state(state))


def fsm_in_flow() -> ContextFilter:
    """Match if any flow is active."""
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
