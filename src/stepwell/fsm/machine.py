"""The machine: all conversations of one bot."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from stepwell import _portal
from stepwell.codec import encode_namespace, ensure_registered
from stepwell.codec.secret import register_data
from stepwell.fsm import admin, keys
from stepwell.fsm.base import Machine, Send
from stepwell.fsm.conversation.commit import write
from stepwell.fsm.conversation.context import Context, Handler
from stepwell.fsm.conversation.conversation import NOT_GIVEN, Conversation
from stepwell.fsm.conversation.migration import Migrated, migrate_all
from stepwell.fsm.events import FSMSubscriber, MachineReady, add_subscriber, emit, subscribers
from stepwell.fsm.flows.description import Flows
from stepwell.fsm.policy import Policy, UnknownStatePolicy
from stepwell.fsm.timers import outbox
from stepwell.fsm.timers.expiry import Expired, hand_over_swept
from stepwell.fsm.timers.owners import Timers
from stepwell.fsm.update import Update
from stepwell.options import check_function, check_number
from stepwell.record import Address
from stepwell.slot import Slot
from stepwell.storage import ANY, Entry, Storage
from stepwell.storage.listing import Any_
from stepwell.storage.presence import Presence
from stepwell.storage.urls import as_storage
from stepwell.texts import Formatting

__all__ = ["FSM", "Expired"]

#: Called with the context and the names of two states, from and to, or with the context, a flow and a state.
StateCallback: TypeAlias = Callable[[Context[Any], str | None, str | None], Any]


class FSM(Machine):
    """The conversations of one bot.

    ``async with fsm:`` opens the storage at start-up, and closes it at the end if it was not open before. Without it
    the first update opens the storage.

    Within the block the process writes a small record to the storage every 20 seconds, from which the inspector and
    ``stepwell doctor`` know that it runs. ``presence=False``: it writes none.

    ``parse_mode`` is the formatting of all texts and captions that name none: Telegram's ``"HTML"``, ``"MarkdownV2"``
    and ``"Markdown"``, or ``"CommonMark"``, the Markdown of language models, which needs ``stepwell[markdown]``.
    ``link_preview_options`` are those of all messages that have none.

    Example::

        fsm = FSM("my_bot", storage="sqlite:///bot.db", flows=[Registration])
        async with fsm, fsm.conversation(update) as ctx:
            ctx.start_flow(Registration)
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
        presence: bool = True,
        send: Send | None = None,
        parse_mode: str | None = None,
        link_preview_options: Mapping[str, Any] | None = None,
        profile: type | None = None,
        update_id: Callable[[Update], int | str | None] | None = None,
    ) -> None:
        _check_seconds("lease", lease)
        if wait != 0:
            _check_seconds("wait", wait)
        for name, function in (("update_id", update_id), ("send", send), ("on_expired", on_expired)):
            check_function(function, f"{name} must be a function, got {{}}", optional=True)
        if ttl is not None:
            _check_seconds("ttl", ttl)
        self.bot: str = bot
        self.storage: Storage = as_storage(storage)
        self.storage.address(bot, ())
        self.flows: Flows = Flows(flows)
        self.key: keys.KeyStrategy = keys.strategy(key)
        self.transitions: Policy = Policy(
            "on_invalid_transition", on_invalid_transition, ("raise", "log", "ignore"), "(ctx, from_, to)"
        )
        self.unknown_state: UnknownStatePolicy = UnknownStatePolicy(
            "on_unknown_state", on_unknown_state, ("keep", "reset", "raise"), "(ctx, flow, state)"
        )
        self.missing_key: Policy = Policy("on_missing_key", on_missing_key, ("raise", "log", "ignore"))
        self.duplicates: Policy = Policy("on_duplicate", on_duplicate, ("raise", "enter"))
        self.wait = wait
        self.lease = lease
        self.ttl = ttl
        self.sliding = sliding
        self.subscribers: list[FSMSubscriber] = []
        self.send = send
        self.formatting: Formatting | None = Formatting.of(parse_mode, link_preview_options, "FSM")
        self.deliveries: set[asyncio.Task[None]] = set()
        self.profile: type | None = profile
        self.update_id = update_id
        self.on_expired = on_expired
        self.has_hooks: bool = any(flow.hook("on_enter") or flow.hook("on_leave") for flow in self.flows.values())
        self.expires: bool = ttl is not None or any(flow.ttl for flow in self.flows.values())
        self.hands_over: bool = on_expired is not None and self.expires
        self.ready: bool = False
        #: This machine opened the storage and closes it.
        self._opened = False
        self._entered = 0
        #: The warning about timers was logged, or is not wanted.
        self._warned = False
        self._timers = Timers(self) if run_timers else None
        self._announces = presence
        self._presence: Presence | None = None
        if profile is not None:
            ensure_registered(profile, f"{bot}.{profile.__name__}")
            register_data("profile", bot, profile)
        for flow in self.flows.values():
            if flow.data is not None:
                ensure_registered(flow.data, f"{flow.name}.{flow.data.__name__}")

    async def __aenter__(self) -> Self:
        if self._timers is not None:
            self._timers.check()
        self._opened = self._opened or not self.storage.is_open
        # prepare() does not open a storage that was closed.
        await self.storage.open()
        await self._prepare()
        self._entered += 1
        if self._entered == 1:
            self._warn(running=True)
            self.storage.expired_listeners.append(self._swept)
            if self._announces:
                self._presence = Presence(self.storage, "bot", [self.bot], self._counts)
                self._presence.start()
        if self._timers is not None:
            # Also when entered again: since then the machine may have got a sender.
            self._timers.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        if self._entered:
            return
        give_up = monotonic() + outbox.STOP_TIMEOUT
        async with AsyncExitStack() as stack:
            # If the stop is cancelled, the rest still stops.
            if self._opened:
                stack.push_async_callback(self._close)
            stack.callback(self.storage.expired_listeners.remove, self._swept)
            # Not before the timers have stopped, because they deliver too.
            stack.push_async_callback(self._finish, give_up)
            if self._timers is not None:
                stack.push_async_callback(self._timers.stop, timeout=outbox.STOP_TIMEOUT)
            if self._presence is not None:
                stack.push_async_callback(self._presence.stop)

    async def _close(self) -> None:
        self.ready = self._opened = False
        await self.storage.close()

    async def _finish(self, give_up: float) -> None:
        await outbox.finish(self, timeout=max(give_up - monotonic(), 0.0))

    def conversation(
        self, update: Any = None, *, key: Any = NOT_GIVEN, update_id: int | str | None = None
    ) -> Conversation:
        """Open the conversation of an update: ``async with fsm.conversation(update) as ctx:``.

        The record is claimed and read at the beginning of the block, and committed and released at its end. Admin
        code, background jobs and other platforms pass ``key=`` instead of an update.
        """
        return Conversation(self, update, key=key, update_id=update_id, enters=self.duplicates.choice == "enter")

    async def handle(
        self, update: Any, handler: Handler, *, key: Any = NOT_GIVEN, update_id: int | str | None = None
    ) -> Any:
        """Call ``handler(ctx)`` and commit. Return its result, or ``None`` for an update that was handled before."""
        async with Conversation(self, update, key=key, update_id=update_id, enters=True) as ctx:
            if ctx.duplicate:
                return None
            return await _portal.call_function(handler, ctx)

    def handle_sync(
        self, update: Any, handler: Handler, *, key: Any = NOT_GIVEN, update_id: int | str | None = None
    ) -> Any:
        """``handle`` for code without an event loop. A ``def`` handler runs in the caller's thread, and may block."""
        return _portal.sync(self.handle(update, handler, key=key, update_id=update_id))

    def find(
        self, *, user: int | None = None, chat: int | None = None, flow: object = ANY, state: str | Any_ | None = ANY
    ) -> AsyncIterator[Entry]:
        """Find records by user, chat, flow and state: ``async for entry in fsm.find(user=42)``.

        With a user or a chat, the storage finds them without reading all records.
        """
        return admin.find(self, user, chat, flow, state)

    async def forget(self, *, user: int | None = None, chat: int | None = None) -> admin.Forgotten:
        """Delete all records of a user or a chat, and the traces of deleted ones. Return how many.

        ``forgotten.erased`` tells whether they are erased from the storage's disk too.
        """
        return await admin.forget(self, user, chat)

    async def move_chat(self, old: int, new: int) -> int:
        """Move the records of a chat to its new id. Return how many. It can be repeated, even after a crash.

        When a group becomes a supergroup, Telegram's message about it starts this. If a conversation is already active
        under the new key, it is kept and the old conversation ends.
        """
        return await admin.move_chat(self, old, new)

    async def migrate(self, progress: Callable[[int], Any] | None = None) -> Migrated:
        """Migrate all records to the present revision of their flows now, instead of each at its next update."""
        return await migrate_all(self, progress)

    def subscribe(self, callback: FSMSubscriber) -> Callable[[], None]:
        """Call ``callback(event)`` for every event of this machine. Return a function that unsubscribes.

        Callbacks run on the event loop, in the order of the events, and must be quick. Errors of a callback are logged
        and do not affect the conversation. ``stepwell.fsm.subscribe`` does the same for all machines.
        """
        return add_subscriber(self.subscribers, callback)

    async def tick(self) -> int:
        """Fire all timers that are due now. Return how many. ``async with fsm:`` does this in the background."""
        return await (self._timers or Timers(self)).tick()

    # For the timers and the adapters

    def move_to(self, storage: Storage) -> None:
        """Use another storage from now on. Call it before the first update. The present storage is not closed."""
        self.storage, self.ready = storage, False
        if self._timers is not None:
            self._timers = Timers(self)

    def for_bot(self, bot: str) -> FSM:
        """Return a machine for another bot with the same flows, options and storage. Enter it separately."""
        self.storage.address(bot, ())
        other = copy.copy(self)
        other.bot, other.ready, other._opened, other._entered = bot, False, False, 0
        other.deliveries, other.received, other.failed, other.retried, other.took = set(), 0, 0, 0, 0.0
        other.refused = other.aside = 0
        other._timers = None if self._timers is None else Timers(other)
        return other

    def expect_ticks(self) -> None:
        """Do not warn that no timers run, because the caller uses ``tick()``."""
        self._warned = True

    def hold_timers(self, held: Callable[[Address], bool] | None) -> None:
        """Do not fire the timers of addresses for which ``held`` returns ``True``."""
        if self._timers is not None:
            self._timers.hold(held)

    async def prepare(self) -> None:
        """Open the storage and initialise the bot before the first update, outside ``async with fsm:``."""
        await self._prepare()
        if not self._entered:
            self._warn(running=False)

    async def write(self, ctx: Context[Any], slot: Slot, *, keep: bool) -> bool:
        """Write what a context has changed, and return whether that was anything."""
        return await write(self, ctx, slot, keep=keep)

    def _counts(self) -> dict[str, float]:
        return {
            "done": self.received,
            "took": self.took,
            "failed": self.failed,
            "retried": self.retried,
            "refused": self.refused,
            "aside": self.aside,
        }

    def _warn(self, *, running: bool) -> None:
        if self._timers is not None and not self._warned:
            self._warned = True
            self._timers.warn(running=running)

    async def _prepare(self) -> None:
        self._opened = self._opened or not self.storage.is_open
        await super().prepare()
        if self.subscribers or subscribers:
            emit(MachineReady, self, None, None)

    async def _swept(self, address: Address, head: str | None) -> None:
        if address.namespace == encode_namespace(self.bot, self.storage.limits):
            await hand_over_swept(self, address, head)


def _check_seconds(name: str, value: object) -> None:
    check_number(value, f"{name} must be a number of seconds above 0, got {{}}", above=0, finite=True)
