"""Listings of records: the filter, a page, a listed record, due deadlines, and the result of a sweep."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from stepwell.codec import Seal, decode_key, decode_namespace
from stepwell.record import Address, OpenedHead, Place, State, Stored, Version

__all__ = ["ANY", "Any_", "Beside", "Due", "Entry", "Page", "Query", "StateCount", "Swept"]


class Any_:  # noqa: N801 the type of a constant
    """The type of ``ANY``.

    Example::

        from stepwell.engine import ANY, Any_

        assert isinstance(ANY, Any_)
    """

    def __repr__(self) -> str:
        return "ANY"


#: Matches any flow or state, while ``None`` matches records without one.
ANY: Final = Any_()


class Query(NamedTuple):
    """A filter for ``page``. Names are encoded. Expired records and tombstones never match.

    Example::

        await storage.set_state("my_bot", 42, State("registration", "get_name"))
        page = await storage.page(Query("my_bot", flow="registration"), after=None, limit=100)
        assert len(page.records) == 1
    """

    namespace: str
    flow: str | Any_ | None = ANY
    state: str | Any_ | None = ANY
    tag: str | None = None
    #: Whether a replica may answer, which may not have the latest writes.
    may_lag: bool = False


class Page(NamedTuple):
    """Some records, and the position of the next page; ``None`` at the end.

    Example::

        await storage.set_data("my_bot", 42, {"name": "Alice"})
        page = await storage.page(Query("my_bot"), after=None, limit=100)
        assert len(page.records) == 1 and page.after is None
    """

    records: list[tuple[Address, Stored]]
    after: Any


class StateCount(NamedTuple):
    """The records of a namespace in one state, as the indexes have them.

    Example::

        from stepwell.engine import StateCount

        await storage.set_state("my_bot", 42, State("registration", "get_name"))
        counts: list[StateCount] = await storage.counts()
        assert [(count.flow, count.records) for count in counts] == [("registration", 1)]
    """

    namespace: str
    #: Of runs: the index text of the flow, and the status.
    flow: str | None
    state: str | None
    records: int
    #: The time of the oldest last write among them; ``None`` if it was not looked for.
    oldest: float | None = None
    #: Whether there are more records than ``records``.
    more: bool = False


class Beside(NamedTuple):
    """What is stored beside a record: its lease, and the memo of handled updates."""

    #: The token of the lease; ``None`` if there is none.
    holder: str | None = None
    #: The seconds until the lease ends, unless it is extended.
    remaining: float = 0.0
    #: The sealed memo.
    memo: str | None = None


class Due(NamedTuple):
    """A record whose deadline has passed.

    Example::

        address = storage.address("my_bot", 42)
        await storage.perform(Apply(address, Change(write=storage.ids(), deadline=0)))
        assert [due.address for due in await storage.due(address.namespace)] == [address]
    """

    address: Address
    deadline: float


class Swept(NamedTuple):
    """The result of one sweep.

    Example::

        swept = await storage.sweep(limit=1000)
        print(len(swept.expired), "conversations have expired")
    """

    #: Address and sealed head of each expired record.
    expired: list[tuple[Address, str | None]]
    #: The number of removals, with tombstones, memos and old leases. If it equals the limit, there may be more.
    removed: int


class Entry:
    """One record of a scan. ``state`` and ``place`` decode it on access, and raise if it is damaged.

    Example::

        await storage.set_data("my_bot", 42, {"name": "Alice"})
        async for entry in storage.scan("my_bot"):
            assert (entry.key, entry.state.data) == (42, {"name": "Alice"})
    """

    __slots__ = ("_seal", "address", "stored")

    def __init__(self, address: Address, stored: Stored, seal: Seal) -> None:
        self.address: Address = address
        #: The record with its sealed texts.
        self.stored: Stored = stored
        self._seal = seal

    def __repr__(self) -> str:
        # The data may be confidential.
        return f"Entry({self.address.text})"

    @property
    def key(self) -> Any:
        """The decoded key."""
        return decode_key(self.address.key)

    @property
    def namespace(self) -> str:
        """The bot's name."""
        return decode_namespace(self.address.namespace)

    @property
    def state(self) -> State:
        """The record."""
        return State(self.place.flow, self.place.state, self._seal.data(self.stored.fields))

    @property
    def place(self) -> Place:
        """Flow, state and revision."""
        return self.head.place

    @property
    def head(self) -> OpenedHead:
        """The place with its timers, and what the layer above keeps beside it."""
        return self._seal.open_head(self.stored.head)

    @property
    def version(self) -> Version:
        """The version, to guard an edit with."""
        return self.stored.version

    @property
    def written_at(self) -> float:
        """The time of the last write, in seconds since 1970 on the backend's clock."""
        return self.stored.written_at

    @property
    def expires_at(self) -> float | None:
        """The time of its expiry."""
        return self.stored.expires_at

    @property
    def deadline(self) -> float | None:
        """The time when its timer is due."""
        return self.stored.deadline

    @property
    def tags(self) -> tuple[str, ...]:
        """The users and chats that it belongs to."""
        return self.stored.tags
