"""A router: find the handler of an update, without a framework."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

from stepwell import _portal
from stepwell.errors import InvalidOption, UnknownFlowError
from stepwell.fsm.context import Context, Handler
from stepwell.fsm.conversation import Conversation
from stepwell.fsm.filters import Condition, Filter, as_filter
from stepwell.fsm.machine import FSM

__all__ = ["Router"]

H = TypeVar("H", bound=Handler)


class Router:
    """Handlers with their filters. The first handler whose filters match gets the update.

    ``Router(fsm)`` handles updates. A ``Router()`` without a machine only collects handlers, for another router to
    ``include``. With ``send`` each Bot API call is also passed to that function, after the commit.
    """

    def __init__(
        self, fsm: FSM | None = None, *, send: Callable[[dict[str, Any]], Awaitable[Any]] | None = None
    ) -> None:
        if fsm is not None and not isinstance(fsm, FSM):
            raise InvalidOption(f"Router(fsm) takes an FSM, got {fsm!r}")
        self.fsm: FSM | None = fsm
        self.send: Callable[[dict[str, Any]], Awaitable[Any]] | None = send
        if fsm is not None and fsm.send is None:
            # The calls of timers are sent the same way.
            fsm.send = send
        self._routes: list[tuple[tuple[Filter, ...], Handler | Router]] = []
        self._scope: tuple[Filter, ...] = ()

    def on(self, *filters: Filter | Condition) -> Callable[[H], H]:
        """Decorate a handler, ``async def handler(ctx)``, for updates that match all these filters."""
        chosen = self._checked(filters)

        def register(handler: H) -> H:
            if not callable(handler):
                raise InvalidOption(f"@router.on(...) decorates a function of the context, got {handler!r}")
            self._routes.append((self._scope + chosen, handler))
            return handler

        return register

    def scope(self, *filters: Filter | Condition) -> Router:
        """Return a router whose handlers have these filters too. They keep their order among this router's handlers."""
        inner = Router(self.fsm, send=self.send)
        inner._scope = self._scope + self._checked(filters)
        inner._routes = self._routes
        return inner

    def include(self, other: Router) -> None:
        """Add the handlers of another router here, with those that are added to it later."""
        if not isinstance(other, Router):
            raise InvalidOption(f"include() takes a Router, got {other!r}")
        if other._routes is self._routes or any(inner._routes is self._routes for inner in other._included()):
            raise InvalidOption("a router cannot include itself")
        for filters, _ in other._flat():
            self._checked(filters)
        self._routes.append((self._scope, other))

    async def handle(self, update: Any) -> list[dict[str, Any]]:
        """Handle an update and return the Bot API calls to make, each a dict with ``method`` and its parameters.

        Without a matching handler, return ``[]`` and write nothing. For an update that was handled before, return the
        same calls again if it is the newest of its key, because they may not have been sent, else ``[]``.
        """
        if self.fsm is None:
            raise InvalidOption(
                "this router has no machine; make it with Router(fsm), or include it in a router with one"
            )
        async with Conversation(self.fsm, update, collects=True, enters=True) as ctx:
            handler = None if ctx.duplicate else self._find(ctx)
            if handler is not None:
                await _portal.call(handler, ctx)
            # The same list that hooks add to before the commit.
            calls = ctx.calls
        if self.send is not None:
            for call in calls:
                await self.send(call)
        return calls

    def handle_sync(self, update: Any) -> list[dict[str, Any]]:
        """``handle`` for code without an event loop. A ``def`` handler runs in the caller's thread, and may block."""
        return _portal.sync(self.handle(update))

    def _find(self, ctx: Context) -> Handler | None:
        for filters, handler in self._flat():
            ctx.match = None
            if all(accepts(ctx) for accepts in filters):
                return handler
        return None

    def _flat(self) -> Iterator[tuple[tuple[Filter, ...], Handler]]:
        for filters, target in self._routes:
            if isinstance(target, Router):
                for inner, handler in target._flat():
                    yield filters + inner, handler
            else:
                yield filters, target

    def _included(self) -> Iterator[Router]:
        for _, target in self._routes:
            if isinstance(target, Router):
                yield target
                yield from target._included()

    def _checked(self, given: Iterable[Filter | Condition]) -> tuple[Filter, ...]:
        """Return filters. Raises for a flow that is not registered; warns of a state that no flow declares.

        Such a state is not an error, because records of an earlier release may have it.
        """
        filters = tuple(as_filter(each) for each in given)
        if self.fsm is None:
            return filters
        for name in sorted({name for each in filters for name in each.flows}):
            if name not in self.fsm.flows:
                raise UnknownFlowError(name, self.fsm.flows)
        states = {str(each) for flow in self.fsm.flows.values() for each in flow.states}
        for name in sorted({name for each in filters for name in each._states} - states if states else ()):
            near = " or ".join(map(repr, get_close_matches(name, states)))
            hint = f"did you mean {near}? Correct it" if near else "correct it"
            warnings.warn(
                f"fsm_state({name!r}): no registered flow has the state {name!r}; {hint}, or add its flow to "
                "FSM(flows=[...])",
                UserWarning,
                stacklevel=3,
            )
        return filters
