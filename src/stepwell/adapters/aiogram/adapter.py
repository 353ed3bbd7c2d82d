"""aiogram 3: its own FSM kept by us, or our conversations in its handlers. The only module that knows aiogram.

Keep an existing bot as it is, and change where its states live::

    storage = open_storage("sqlite:///bot.db")
    dispatcher = Dispatcher(storage=StepwellStorage(storage), events_isolation=StepwellIsolation(storage))

Or take our conversations: ``setup(dispatcher, fsm)``, and every handler may have a parameter named ``ctx``.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from stepwell._optional import require
from stepwell.adapters.aiogram.claims import Claims, Held
from stepwell.adapters.aiogram.machines import Machines, conversation
from stepwell.errors import DuplicateUpdate, InvalidOption, UnknownFlowError, UsageError
from stepwell.fsm import FSM, Context, filters
from stepwell.record import Place
from stepwell.storage import Storage
from stepwell.storage.urls import as_storage

#: The oldest release of aiogram that works.
MINIMUM = "3.21"
require("aiogram", "aiogram", minimum=MINIMUM)

from aiogram import BaseMiddleware, Bot, Dispatcher  # noqa: E402
from aiogram import methods as api  # noqa: E402
from aiogram.dispatcher.event.bases import CancelHandler, SkipHandler  # noqa: E402
from aiogram.dispatcher.event.handler import FilterObject  # noqa: E402
from aiogram.exceptions import DataNotDictLikeError  # noqa: E402
from aiogram.filters import Filter, and_f, or_f  # noqa: E402
from aiogram.fsm.state import State  # noqa: E402
from aiogram.fsm.storage.base import BaseEventIsolation, BaseStorage, StateType, StorageKey  # noqa: E402
from aiogram.fsm.storage.memory import MemoryStorage  # noqa: E402
from aiogram.types import TelegramObject  # noqa: E402

__all__ = [
    "ContextFilter",
    "StepwellIsolation",
    "StepwellStorage",
    "fsm_flow",
    "fsm_in_flow",
    "fsm_state",
    "setup",
]


class StepwellStorage(BaseStorage):
    """aiogram's states and data in a Stepwell storage, one record for both.

    Bot, chat, user, topic, business connection and destiny are always part of the key. A bot's records
    are in the namespace ``"<name>:<bot id>"``; a group of states is the flow.
    """

    def __init__(self, storage: Storage | str, *, name: str = "aiogram") -> None:
        self._claims = _claims_in(storage)
        self._name = name
        #: Made here from a URL, or opened by its first use here: ``close()`` closes it.
        self._mine: bool | None = True if isinstance(storage, str) else None

    @property
    def storage(self) -> Storage:
        """Where the records are."""
        return self._claims.storage

    async def set_state(self, key: StorageKey, state: StateType = None) -> None:
        name = state.state if isinstance(state, State) else state
        await self._claims.set_place(*self._at(key), _place(name), tags=_tags(key))

    async def get_state(self, key: StorageKey) -> str | None:
        return _state_name(await self._claims.place(*self._at(key)))

    async def set_data(self, key: StorageKey, data: Mapping[str, Any]) -> None:
        await self._claims.set_data(*self._at(key), _mapping(data), tags=_tags(key))

    async def get_data(self, key: StorageKey) -> dict[str, Any]:
        return await self._claims.data(*self._at(key))

    async def update_data(self, key: StorageKey, data: Mapping[str, Any]) -> dict[str, Any]:
        return await self._claims.update_data(*self._at(key), _mapping(data), tags=_tags(key))

    async def close(self) -> None:
        """Close the storage, unless somebody else had opened it."""
        if self._mine:
            await self.storage.close()
            # A dispatcher has no start-up hook for its storage, and may start polling again.
            self.storage.allow_reopen()

    def _at(self, key: StorageKey) -> tuple[str, Any]:
        if self._mine is None:
            self._mine = not self.storage.is_open
        return _address(self._name, key)


class StepwellIsolation(BaseEventIsolation):
    """One update of a key at a time, across all workers, in the order of their coming.

    What a handler writes to its key through ``StepwellStorage`` over the same storage is one write at its
    end, fenced by this claim. A handler that raises changes nothing; one that overslept its lease gets
    ``LeaseLost``, and nothing of it is written.
    """

    def __init__(
        self,
        storage: Storage | StepwellStorage | str,
        *,
        wait: float = 60.0,
        lease: float = 30.0,
        name: str = "aiogram",
    ) -> None:
        #: Made here from a URL, so ``close()`` closes it.
        self._mine = isinstance(storage, str)
        if isinstance(storage, StepwellStorage):
            name, storage = storage._name, storage.storage
        if not lease > 0 or wait < 0:
            raise InvalidOption(f"lease is above 0 and wait not below 0 (seconds), got lease={lease!r}, wait={wait!r}")
        self._claims = _claims_in(storage)
        self._name = name
        self._wait, self._lease = wait, lease

    def lock(self, key: StorageKey) -> Held:  # type: ignore[override]
        """Used as ``async with isolation.lock(key)``; the two exceptions are no failures, but ways to be done."""
        fine = (SkipHandler, CancelHandler)
        return self._claims.holding(*_address(self._name, key), wait=self._wait, lease=self._lease, fine=fine)

    async def close(self) -> None:
        """Close the storage if it was made from a URL here. Claims end with their updates."""
        if self._mine:
            await self._claims.storage.close()
            self._claims.storage.allow_reopen()


def setup(dispatcher: Dispatcher, fsm: FSM, *, bot: Bot | None = None) -> None:
    """Give every handler of a dispatcher its conversation, as a parameter named ``ctx``.

    One claim and one commit per update; a handler that raises changes nothing, whatever error handlers do
    afterwards. Timers run from the dispatcher's start-up to its shut-down, and answer through its bot;
    where a webhook's start-up does not know it (``setup_application(app, dispatcher)``), give ``bot=``.
    """
    if not isinstance(dispatcher, Dispatcher):
        raise InvalidOption(
            f"setup(dispatcher, fsm) takes the Dispatcher, which all routers are in, got {dispatcher!r}"
        )
    if not isinstance(fsm, FSM):
        raise InvalidOption(f"setup(dispatcher, fsm) takes an FSM, got {fsm!r}")
    middlewares = dispatcher.update.outer_middleware
    if any(isinstance(each, _Conversations) for each in middlewares):
        raise UsageError("this dispatcher is set up already; one machine has all flows: FSM(flows=[...])")
    if dispatcher.fsm in list(middlewares) and isinstance(dispatcher.storage, MemoryStorage):
        warnings.warn(
            "aiogram's own FSM still runs on MemoryStorage beside this one, and forgets at every restart; switch "
            "it off with Dispatcher(disable_fsm=True), or keep it with Dispatcher(storage=StepwellStorage(storage))",
            UserWarning,
            stacklevel=2,
        )
    conversations = _Conversations(dispatcher, fsm, bot)
    # After aiogram's own ErrorsMiddleware, so that an error is seen here before a handler makes it good.
    middlewares.register(conversations)
    dispatcher.startup.register(conversations.start)
    dispatcher.shutdown.register(conversations.stop)


class _Conversations(BaseMiddleware):
    def __init__(self, dispatcher: Dispatcher, fsm: FSM, bot: Bot | None) -> None:
        self._dispatcher = dispatcher
        self._machines = Machines(fsm)
        self._bot = bot
        self._checked = False

    async def __call__(
        self,
        handler: Callable[[TelegramObject, dict[str, Any]], Awaitable[Any]],
        event: TelegramObject,
        data: dict[str, Any],
    ) -> Any:
        if not self._checked:
            self._check_flows()
        bot: Bot = data["bot"]
        fsm = await self._machines.of(bot.id, partial(_call, bot))
        try:
            async with conversation(fsm, event) as ctx:
                data["ctx"] = ctx
                result = await handler(event, data)
                calls = ctx.calls
        except DuplicateUpdate as duplicate:
            # Those of the first time may never have been sent.
            result, calls = None, duplicate.calls
        for call in calls:
            await _call(bot, call)
        return result

    async def start(self, **data: Any) -> None:
        self._check_flows()
        known: tuple[Bot | None, ...] = (self._bot, *data.get("bots", ()), data.get("bot"))
        await self._machines.start({bot.id: partial(_call, bot) for bot in known if bot is not None})

    async def stop(self) -> None:
        await self._machines.stop()

    def _check_flows(self) -> None:
        known = self._machines.fsm.flows
        for given in _filters_of(self._dispatcher):
            for name in sorted(given.inner.flows):
                if name not in known:
                    raise UnknownFlowError(name, known)
        self._checked = True


class ContextFilter(Filter):
    """A filter on the conversation, for ``@dispatcher.message(...)`` and the like.

    It combines with ``&``, ``|`` and ``~``; put it first where the other is aiogram's ``F``.
    """

    def __init__(self, inner: filters.Filter) -> None:
        self.inner = inner

    async def __call__(self, event: TelegramObject, ctx: Context | None = None) -> bool:
        if ctx is None:
            raise UsageError("filters on the conversation need it: call setup(dispatcher, fsm) first")
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
        # aiogram's F evaluates its right side by itself, and has no conversation to do it with.
        raise TypeError("put fsm_flow(...) before the & or |, or give both filters, separated by a comma")

    __ror__ = __rand__

    def __bool__(self) -> bool:
        raise TypeError("filters are combined with & | ~, not with and, or, not")


def fsm_flow(flow: object) -> ContextFilter:
    """The active flow is this one, given as class, object or name; ``None``: no flow is active."""
    return ContextFilter(filters.fsm_flow(flow))


def fsm_state(state: str | tuple[Any, Any] | None) -> ContextFilter:
    """The state is this one; ``fsm_state(("key", value))`` asks for a field of the data."""
    return ContextFilter(filters.fsm_state(state))


def fsm_in_flow() -> ContextFilter:
    """Some flow is active."""
    return ContextFilter(filters.fsm_in_flow())


async def _call(bot: Bot, call: dict[str, Any]) -> Any:
    """Make a call of the Bot API that is given as a dict."""
    params = dict(call)
    name: str = params.pop("method")
    method = getattr(api, name[:1].upper() + name[1:], None)
    if method is None:
        raise UsageError(f"this release of aiogram has no method {name!r}; upgrade it, or call another")
    return await bot(method(**params))


def _filters_of(dispatcher: Dispatcher) -> Iterator[ContextFilter]:
    for router in dispatcher.chain_tail:
        for observer in router.observers.values():
            for handler in (observer._handler, *observer.handlers):
                for given in handler.filters or ():
                    yield from _inside(given)


def _inside(given: FilterObject) -> Iterator[ContextFilter]:
    callback: Any = given.callback
    if isinstance(callback, ContextFilter):
        yield callback
    for part in (*getattr(callback, "targets", ()), getattr(callback, "target", None)):
        if isinstance(part, FilterObject):
            yield from _inside(part)


def _claims_in(storage: Storage | str) -> Claims:
    storage = as_storage(storage)
    # The destinies of a key, such as the history of scenes, belong together.
    return Claims(storage, family=lambda key: key[:-1])


def _address(name: str, key: StorageKey) -> tuple[str, Any]:
    parts = (key.chat_id, key.user_id, key.thread_id, key.business_connection_id, key.destiny)
    return f"{name}:{key.bot_id}", parts


def _tags(key: StorageKey) -> tuple[str, ...]:
    # Strategies that share a chat put its id where the user's would be.
    user = (f"user:{key.user_id}",) if key.user_id > 0 else ()
    return (*user, f"chat:{key.chat_id}")


def _place(name: str | None) -> Place:
    """``"Form:name"`` is the state ``name`` of the flow ``Form``; a name without a group is in no flow."""
    if name is not None and not isinstance(name, str):
        raise InvalidOption(f"a state is a State, its name, or None, got {name!r}")
    flow, colon, state = (name or "").rpartition(":")
    return Place(flow if colon else None, None if name is None else state)


def _state_name(place: Place) -> str | None:
    return place.state if place.flow is None else f"{place.flow}:{place.state}"


def _mapping(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise DataNotDictLikeError(f"Data must be a dict or dict-like object, got {type(data).__name__}")
    return data
