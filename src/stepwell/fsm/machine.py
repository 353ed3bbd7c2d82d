"""The machine: all conversations of one bot."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from math import inf
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from stepwell import _portal
from stepwell.codec import encode_namespace, ensure_registered
from stepwell.errors import InvalidOption
from stepwell.fsm import admin, keys
from stepwell.fsm.context import Context, Handler
from stepwell.fsm.conversation import NOT_GIVEN, Conversation
from stepwell.fsm.description import Flows
from stepwell.fsm.events import FSMSubscriber, MachineReady, add_subscriber, emit, subscribers
from stepwell.fsm.expiry import Expired, hand_over_swept
from stepwell.fsm.migration import Migrated, migrate_all
from stepwell.fsm.policy import DuplicatePolicy, MissingKeyPolicy, TransitionPolicy, UnknownStatePolicy
from stepwell.fsm.timers import Timers
from stepwell.fsm.update import Update
from stepwell.record import Address
from stepwell.storage import ANY, Entry, Storage
from stepwell.storage.urls import as_storage

__all__ = ["FSM", "Expired"]

#: Called with the context, and with the state that is left and the one that is entered, or with flow and state.
StateCallback: TypeAlias = Callable[[Context, str | None, str | None], Any]


class FSM:
    """The conversations of one bot.

    ``async with fsm:`` opens its storage at start-up and closes what it opened; the first update opens it too.
    """

    def __init__(
        self,
        bot: str,
        *,
        storage: Storage | str,
        flows: Iterable[object],
        key: keys.KeyStrategy | type[keys.KeyStrategy] | Callable[[Update], Any] = keys.ChatUser(),  # noqa: B008 frozen
        on_invalid_transition: Literal["raise", "log", "ignore"] | StateCallback = "raise",
        on_unknown_state: Literal["keep", "reset", "raise"] | StateCallback = "keep",
        on_missing_key: Literal["raise", "log", "ignore"] = "raise",
        on_duplicate: Literal["raise", "enter"] = "raise",
        wait: float = 60.0,
        lease: float = 30.0,
        ttl: float | None = None,
        sliding: bool = True,
        on_expired: Callable[[Expired], Any] | None = None,
        run_timers: bool = True,
        send: Callable[[dict[str, Any]], Awaitable[Any]] | None = None,
        update_id: Callable[[Any], int | str | None] | None = None,
    ) -> None:
        _check_seconds("lease", lease)
        if wait != 0:
            _check_seconds("wait", wait)
        for name, function in (("update_id", update_id), ("send", send), ("on_expired", on_expired)):
            if function is not None and not callable(function):
                raise InvalidOption(f"{name} is a function, got {function!r}")
        if ttl is not None:
            _check_seconds("ttl", ttl)
        self.bot = bot
        self.storage = as_storage(storage)
        self.storage.address(bot, ())
        self.flows = Flows(flows)
        self.key = keys.strategy(key)
        self.transitions = TransitionPolicy(on_invalid_transition)
        self.unknown_state = UnknownStatePolicy(on_unknown_state)
        self.missing_key = MissingKeyPolicy(on_missing_key)
        self.duplicates = DuplicatePolicy(on_duplicate)
        self.wait = wait
        self.lease = lease
        self.ttl = ttl
        self.sliding = sliding
        #: Called with the events of this machine.
        self.subscribers: list[FSMSubscriber] = []
        #: Where the calls of timers go.
        self.send = send
        #: Reads the id of an update; ``None``: its ``update_id``.
        self.update_id = update_id
        #: The storage is open, and the bot is initialised.
        self.ready = False
        #: The storage was not open before, so it is ours to close.
        self._opened = False
        self._entered = 0
        self._timers = Timers(self) if run_timers else None
        self.on_expired = on_expired
        #: Some flow has ``on_enter`` or ``on_leave``.
        self.has_hooks = any(flow.hook("on_enter") or flow.hook("on_leave") for flow in self.flows.values())
        #: Conversations may expire.
        self.expires = ttl is not None or any(flow.ttl for flow in self.flows.values())
        #: Conversations that expire are handed over to ``on_expired``.
        self.hands_over = on_expired is not None and self.expires
        for flow in self.flows.values():
            if flow.data is not None:
                ensure_registered(flow.data, f"{flow.name}.{flow.data.__name__}")

    async def __aenter__(self) -> Self:
        if self._timers is not None:
            self._timers.check()
        self._opened = self._opened or not self.storage.is_open
        await self.storage.open()
        await self.prepare()
        self._entered += 1
        if self._entered > 1:
            return self
        self.storage.expired_listeners.append(self._swept)
        if self._timers is not None:
            self._timers.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        if self._entered:
            return
        if self._timers is not None:
            await self._timers.stop()
        self.storage.expired_listeners.remove(self._swept)
        if self._opened:
            self.ready = self._opened = False
            await self.storage.close()

    def conversation(
        self, update: Any = None, *, key: Any = NOT_GIVEN, update_id: int | str | None = None
    ) -> Conversation:
        """``async with fsm.conversation(update) as ctx:`` claims and loads, then commits and releases.

        With ``key=`` it is for admin code, background jobs and other platforms.
        """
        return Conversation(self, update, key=key, update_id=update_id, enters=self.duplicates.enters)

    async def handle(
        self, update: Any, handler: Handler, *, key: Any = NOT_GIVEN, update_id: int | str | None = None
    ) -> Any:
        """What ``handler(ctx)`` returned, once it is committed; ``None`` for an update that was handled before."""
        async with Conversation(self, update, key=key, update_id=update_id, enters=True) as ctx:
            if ctx.duplicate:
                return None
            return await _portal.call(handler, ctx)

    def handle_sync(self, update: Any, handler: Handler, **options: Any) -> Any:
        """``handle`` for code without an event loop. A ``def`` handler runs in the caller's thread, and may block."""
        return _portal.sync(self.handle(update, handler, **options))

    def find(
        self, *, user: int | None = None, chat: int | None = None, flow: Any = ANY, state: Any = ANY
    ) -> AsyncIterator[Entry]:
        """Records of a user, of a chat, in a flow, in a state: ``async for entry in fsm.find(user=42)``."""
        return admin.find(self, user, chat, flow, state)

    async def forget(self, *, user: int | None = None, chat: int | None = None) -> admin.Forgotten:
        """Remove every record of a user or a chat, with all that cleared ones leave behind; how many.

        ``forgotten.erased`` says whether nothing of them is left on the storage's disk.
        """
        return await admin.forget(self, user, chat)

    async def move_chat(self, old: int, new: int) -> int:
        """Give the records of a chat its new id; how many. Doing it twice, or again after a crash, is fine.

        A group that becomes a supergroup is moved by itself, when Telegram says so. Where a conversation is
        already active under the new key, that one stays and the old one ends.
        """
        return await admin.move_chat(self, old, new)

    async def migrate(self, progress: Callable[[int], Any] | None = None) -> Migrated:
        """Bring all records to the present revision of their flows now, instead of each at its next update."""
        return await migrate_all(self, progress)

    def subscribe(self, callback: FSMSubscriber) -> Callable[[], None]:
        """Call ``callback(event)`` for every event of this machine; return a function that ends it.

        Callbacks run on the event loop, in the order of the events, and must be quick. A callback that raises is
        logged, and does not affect the conversation. ``stepwell.fsm.subscribe`` does the same for all machines.
        """
        return add_subscriber(self.subscribers, callback)

    async def tick(self) -> int:
        """Fire all timers that are due now; how many. ``async with fsm:`` does it by itself."""
        return await (self._timers or Timers(self)).tick()

    # For the timers and the adapters

    def move_to(self, storage: Storage) -> None:
        """Use another storage from now on. Call it before the first update; the present one is not closed."""
        self.storage, self.ready = storage, False
        if self._timers is not None:
            self._timers = Timers(self)

    def for_bot(self, bot: str) -> FSM:
        """The same flows and options for another bot, over the same storage; to be entered by itself."""
        self.storage.address(bot, ())
        other = copy.copy(self)
        other.bot, other.ready, other._opened, other._entered = bot, False, False, 0
        other._timers = None if self._timers is None else Timers(other)
        return other

    async def prepare(self) -> None:
        """Open the storage and initialise the bot."""
        self._opened = self._opened or not self.storage.is_open
        await self.storage.init(self.bot)
        self.ready = True
        if self.subscribers or subscribers:
            emit(MachineReady(fsm=self, bot=self.bot))

    async def _swept(self, address: Address, head: str | None) -> None:
        if address.namespace == encode_namespace(self.bot, self.storage.limits):
            await hand_over_swept(self, address, head)


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise InvalidOption(f"{name} is a number of seconds above 0, got {value!r}")
