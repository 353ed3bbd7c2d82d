"""The flows, storage and options of a machine, which the other modules of this package read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from stepwell.errors import StepwellError
from stepwell.fsm.bot import BotMethods
from stepwell.fsm.flows.description import Flows
from stepwell.fsm.keys import KeyStrategy
from stepwell.fsm.policy import Policy, UnknownStatePolicy
from stepwell.fsm.update import Update
from stepwell.record import Address
from stepwell.slot import Slot
from stepwell.storage import Storage
from stepwell.texts import Formatting

__all__ = ["AlbumHandler", "Machine", "Send"]

#: Sends a Bot API call. It may be a coroutine function; a ``def`` function runs in a thread.
Send: TypeAlias = Callable[[dict[str, Any]], Any]


class AlbumHandler(Protocol):
    """Handles albums, for a router or an adapter."""

    @property
    def collects_albums(self) -> bool:
        """Whether a handler waits for albums."""

    async def handle_album(self, conversation: Any, ctx: Any) -> None:
        """Call the handlers of an album with its context."""


class Machine:
    """The flows, storage and options of one bot; the base of ``FSM``."""

    #: The bot's name.
    bot: str
    storage: Storage
    flows: Flows
    key: KeyStrategy
    transitions: Policy
    unknown_state: UnknownStatePolicy
    missing_key: Policy
    duplicates: Policy
    #: Seconds to wait for a record that another update holds.
    wait: float
    #: Seconds of a lease.
    lease: float
    #: Seconds that a conversation is kept; ``None``: without an end.
    ttl: float | None
    #: Each update restarts the ``ttl``.
    sliding: bool
    on_expired: Callable[[Any], Any] | None
    #: The type of ``ctx.profile``.
    profile: type | None
    #: Sends the Bot API calls of timers.
    send: Send | None
    #: The client of handlers, ``ctx.bot``.
    client: BotMethods | None = None
    #: Handles the albums of its conversations.
    albums: AlbumHandler | None = None
    #: What the texts of calls have unless they say otherwise.
    formatting: Formatting | None = None
    #: Calls of the outbox that are being sent.
    deliveries: set[asyncio.Task[None]]
    #: Reads the id of an update; ``None``: its ``update_id``.
    update_id: Callable[[Update], int | str | None] | None
    #: Called with the events of this machine.
    subscribers: list[Callable[[Any], object]]
    #: How many updates it has received, how many of them have failed, and how many attempts were followed by another.
    received: int = 0
    failed: int = 0
    retried: int = 0
    #: The seconds from the receipt of each update until it was handled.
    took: float = 0.0
    #: How many calls were refused, and how many updates were set aside.
    refused: int = 0
    aside: int = 0
    #: The storage is open, and the bot is initialised.
    ready: bool
    #: A flow has ``on_enter`` or ``on_leave``.
    has_hooks: bool
    #: Conversations may expire.
    expires: bool
    #: Expired conversations are passed to ``on_expired``.
    hands_over: bool

    def address_of(self, key: Any) -> Address | None:
        """Return the address of a key; ``None`` if there is no key, or one that cannot be encoded."""
        try:
            return None if key is None else self.storage.address(self.bot, key)
        except StepwellError:
            return None

    async def prepare(self) -> None:
        """Open the storage and initialise the bot."""
        await self.storage.init(self.bot)
        self.ready = True

    async def write(self, ctx: Any, slot: Slot, *, keep: bool) -> bool:
        """Write what a context has changed, and return whether that was anything."""
        raise NotImplementedError
