"""Updates that are handled at once, without the events isolation of a dispatcher."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiogram import BaseMiddleware, Dispatcher
from aiogram.dispatcher.event.handler import CallbackType, FilterObject
from aiogram.fsm.middleware import FSMContextMiddleware
from aiogram.fsm.storage.memory import DisabledEventIsolation
from aiogram.types import TelegramObject, Update

from stepwell.errors import InvalidOption, UsageError
from stepwell.options import check_instance

__all__ = ["without_isolation"]

_Handler = Callable[[TelegramObject, dict[str, Any]], Awaitable[Any]]


def without_isolation(dispatcher: Dispatcher, *filters: CallbackType) -> None:
    """Handle the updates that match all filters at once, while another update of the same chat and user is handled.

    Use it for an update that stops a long handler, such as ``/stop``. Its handler claims nothing: each ``set_state``
    and ``update_data`` is written immediately, also if the handler raises. The filters are those of a handler, and are
    checked before the state is read, so they cannot depend on it. Call it again for other updates.

    Raises ``UsageError`` if the dispatcher has no FSM.

    Example::

        from aiogram import Dispatcher
        from aiogram.filters import Command
        from stepwell.adapters.aiogram import StepwellIsolation, StepwellStorage, without_isolation

        dispatcher = Dispatcher(storage=StepwellStorage(storage), events_isolation=StepwellIsolation(storage))
        without_isolation(dispatcher, Command("stop"))
    """
    check_instance(dispatcher, Dispatcher, "without_isolation(dispatcher, filter) takes a Dispatcher, got {}")
    if not filters:
        raise InvalidOption("give a filter to without_isolation(dispatcher, filter), such as Command('stop')")
    middlewares = dispatcher.update.outer_middleware
    present = list(middlewares)
    found = next((each for each in present if isinstance(each, _Exempting)), None)
    if found is None:
        if dispatcher.fsm not in present:
            raise UsageError("this dispatcher has no FSM, so its updates do not wait; remove disable_fsm=True")
        found = _Exempting(dispatcher.fsm)
        for each in present:
            middlewares.unregister(each)
        for each in present:
            middlewares.register(found if each is dispatcher.fsm else each)
    found.exempt.append([FilterObject(each) for each in filters])


class _Exempting(BaseMiddleware):
    """Stands in for the FSM of a dispatcher, and passes some updates to one without an isolation."""

    def __init__(self, fsm: FSMContextMiddleware) -> None:
        self._fsm = fsm
        self._free = FSMContextMiddleware(fsm.storage, DisabledEventIsolation(), fsm.strategy)
        self.exempt: list[list[FilterObject]] = []

    async def __call__(self, handler: _Handler, event: TelegramObject, data: dict[str, Any]) -> Any:
        fsm = self._free if await self._matches(event, data) else self._fsm
        return await fsm(handler, event, data)

    async def _matches(self, event: TelegramObject, data: dict[str, Any]) -> bool:
        assert isinstance(event, Update)
        try:
            inner = event.event
        except LookupError:
            # A kind of update that this release does not know.
            return False
        for filters in self.exempt:
            for each in filters:
                if not await each.call(inner, **data):
                    break
            else:
                return True
        return False
