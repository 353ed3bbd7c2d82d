"""A router: which handler an update is for, without any framework."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

from stepwell import _portal
from stepwell.errors import InvalidOption, UnknownFlowError
from stepwell.fsm.context import Context, Handler
from stepwell.fsm.conversation import Conversation
from stepwell.fsm.filters import Filter, as_filter
from stepwell.fsm.machine import FSM

__all__ = ["Router"]

H = TypeVar("H", bound=Handler)


class Router:
    """Handlers with their filters; the first that matches handles the update.

    ``Router(fsm)`` handles updates. One without a machine only collects handlers, for another to ``include``.
    With ``send`` each Bot API call is also passed to it, after the commit.
    """

    def __init__(
        self, fsm: FSM | None = None, *, send: Callable[[dict[str, Any]], Awaitable[Any]] | None = None
    ) -> None:
        if fsm is not None and not isinstance(fsm, FSM):
            raise InvalidOption(f"Router(fsm) takes an FSM, got {fsm!r}")
        self.fsm = fsm
        self.send = send
        if fsm is not None and fsm.send is None:
            # What timers answer goes the same way.
            fsm.send = send
        self._routes: list[tuple[tuple[Filter, ...], Handler | Router]] = []
        self._scope: tuple[Filter, ...] = ()

    def on(self, *filters: Filter | Callable[[Any], Any]) -> Callable[[H], H]:
        """Decorate a handler ``async def handler(ctx)`` that is for updates that pass all these filters."""
        chosen = tuple(as_filter(given) for given in filters)
        self._check(chosen)

        def register(handler: H) -> H:
            if not callable(handler):
                raise InvalidOption(f"@router.on(...) decorates a function of the context, got {handler!r}")
            self._routes.append((self._scope + chosen, handler))
            return handler

        return register

    def scope(self, *filters: Filter | Callable[[Any], Any]) -> Router:
        """A router whose handlers all have these filters too; they keep their place in the order of this one."""
        inner = Router(self.fsm, send=self.send)
        chosen = tuple(as_filter(given) for given in filters)
        self._check(chosen)
        inner._scope = self._scope + chosen
        inner._routes = self._routes
        return inner

    def include(self, other: Router) -> None:
        """Ask another router here; what is added to it later counts too."""
        if not isinstance(other, Router):
            raise InvalidOption(f"include() takes a Router, got {other!r}")
        if other._routes is self._routes or any(inner._routes is self._routes for inner in other._included()):
            raise InvalidOption("a router cannot include itself")
        for filters, _ in other._flat():
            self._check(filters)
        self._routes.append((self._scope, other))

    async def handle(self, update: Any) -> list[dict[str, Any]]:
        """Handle an update and return the Bot API calls to make, each a dict with ``method`` and its parameters.

        Without a matching handler: ``[]``, and nothing is written. An update that was handled before: the
        calls of the first time if it is the newest of its key (they may never have been sent), else ``[]``.
        """
        if self.fsm is None:
            raise InvalidOption(
                "this router has no machine; give it one with Router(fsm), or include it in one that has"
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

    def _check(self, filters: tuple[Filter, ...]) -> None:
        """A flow that is not registered is an error. A state that no flow has may be one of an earlier release."""
        if self.fsm is None:
            return
        for name in sorted({name for given in filters for name in given.flows}):
            if name not in self.fsm.flows:
                raise UnknownFlowError(name, self.fsm.flows)
        states = {str(each) for flow in self.fsm.flows.values() for each in flow.states}
        for name in sorted({name for given in filters for name in given._asked_states} - states if states else ()):
            near = " or ".join(map(repr, get_close_matches(name, states)))
            hint = f"did you mean {near}? Correct it" if near else "correct it"
            warnings.warn(
                f"fsm_state({name!r}): no registered flow has the state {name!r}; {hint}, or add its flow to "
                "FSM(flows=[...])",
                UserWarning,
                stacklevel=3,
            )
