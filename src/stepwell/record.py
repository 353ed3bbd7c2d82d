"""Records, their addresses, and changes to them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec import Struct

from stepwell._secrets import quoted

__all__ = [
    "AUDIT",
    "BUDGETS",
    "BY_BOT",
    "DAY",
    "GRAPHS",
    "INBOX",
    "KEEP",
    "LOGS",
    "NOTHING",
    "NOWHERE",
    "NO_HEAD",
    "PARTITIONS",
    "PROCESSES",
    "QUARANTINE",
    "RATES",
    "REFUSED",
    "RUNS",
    "SCHEDULES",
    "SHOWN",
    "STREAMS",
    "TURN",
    "TURNS",
    "Address",
    "Change",
    "Damage",
    "Head",
    "Keep",
    "Limits",
    "OpenedHead",
    "Place",
    "Queue",
    "Range",
    "ReservedNamespace",
    "State",
    "Stored",
    "Version",
]

#: Seconds for which a tombstone and a memo are kept after the last write: as long as Telegram keeps an update.
DAY: Final = 86_400.0


@dataclass(slots=True)
class State:
    """A conversation or a run: its flow, its state in that flow, and its data.

    Example::

        state = State("registration", "get_email", {"name": "Alice"})
        assert state.data["name"] == "Alice"
    """

    flow: str | None = None
    state: str | None = None
    data: dict[Any, Any] = field(default_factory=dict)


class ReservedNamespace(str):
    """A namespace that is not encoded, so that no bot's name can equal it.

    Example::

        async for entry in storage.scan(RUNS):
            print(entry.key, entry.place.state)
    """

    __slots__ = ()


#: All runs of node flows, with the flow id as key.
RUNS: Final = ReservedNamespace('"runs"')
#: The run that has each partition of a flow, with (flow, partition) as key.
PARTITIONS: Final = ReservedNamespace('"partitions"')
#: The last starts of runs of a flow with a rate, with the flow's name as key.
RATES: Final = ReservedNamespace('"rates"')
#: When workers have first used each graph of a flow, with the flow's name as key.
GRAPHS: Final = ReservedNamespace('"graphs"')
#: Schedules of runs, with the schedule's name as key.
SCHEDULES: Final = ReservedNamespace('"schedules"')
#: Logs, with (namespace, key) of the log as key.
LOGS: Final = ReservedNamespace('"logs"')
#: The processes that run bots and workers, each with a random key.
PROCESSES: Final = ReservedNamespace('"processes"')
#: The values that the nodes of a run have written, with the flow id as key.
STREAMS: Final = ReservedNamespace('"streams"')
#: The messages that show texts while they are written, with what writes them as key.
SHOWN: Final = ReservedNamespace('"shown"')
#: Updates that were fetched and are not finished, with the bot's name as key.
INBOX: Final = ReservedNamespace('"inbox"')
#: Conversations with an agent: their turns, waiting messages and history, with (bot, conversation) as key.
TURNS: Final = ReservedNamespace('"turns"')
#: Logs of calls that Telegram has refused, with (bot, chat) as key.
REFUSED: Final = ReservedNamespace('"refused"')
#: The log of changes by operators, and logs of their values with (kind, bot, key) of what was changed as key.
AUDIT: Final = ReservedNamespace('"audit"')
#: What the turns of each payer have cost, with (bot, (turns, payer)) as key.
BUDGETS: Final = ReservedNamespace('"budgets"')
#: The namespaces whose keys begin with the name of a bot, and whose tags are those of ``log_tag``.
BY_BOT: Final = (LOGS, REFUSED, TURNS, BUDGETS)
#: Copies of damaged records, with (namespace, key) of the original as key.
QUARANTINE: Final = ReservedNamespace('"quarantine"')


#: The end of the key of a turn, see ``slot.waiters.ClaimTurn``. No key is encoded like this.
TURN: Final = " waiting"


class Address(NamedTuple):
    """The address of a record in a storage. Both parts are encoded text without control characters (see ``codec``).

    Example::

        address = storage.address("my_bot", (42, 42))
        assert address.text == "my_bot/(42,42)"
    """

    namespace: str
    key: str

    @property
    def text(self) -> str:
        """Both parts as one readable text; different addresses have different texts."""
        # Encoded namespaces double their backslashes, so an escaped slash is unambiguous.
        return self.namespace.replace("/", "\\/") + "/" + self.key


class Version(NamedTuple):
    """A version that is never reused: ``number`` starts at the clock and grows with each write, ``write`` is random.

    Example::

        await storage.set_data("my_bot", 42, {"name": "Alice"})
        first: Version = (await storage.perform(Get(storage.address("my_bot", 42)))).version
        await storage.set_data("my_bot", 42, {"name": "Bob"})
        assert (await storage.perform(Get(storage.address("my_bot", 42)))).version > first
    """

    number: int
    write: str


class Keep(Enum):
    """The type of ``KEEP``.

    Example::

        change = Change(write=storage.ids(), set={}, tags=())
        assert change.head is KEEP
    """

    KEEP = "keep"


#: Leave this part of the record unchanged.
KEEP: Final = Keep.KEEP


class Place(Struct, frozen=True, gc=False):
    """The flow and state of a conversation or a run, without its data.

    Example::

        await storage.set_state("my_bot", 42, State("registration", "get_name"))
        async for entry in storage.scan("my_bot"):
            assert (entry.place.flow, entry.place.state) == ("registration", "get_name")

        from stepwell.engine import replaced

        assert replaced(entry.place, state="get_email").flow == "registration"
    """

    flow: str | None
    state: str | None
    #: The flow's revision when the state was entered.
    revision: int | None = None


NOWHERE: Final = Place(None, None)


class OpenedHead(Struct, frozen=True, gc=False):
    """What ``Head.text`` has: the place of a record, its timers, and what the layer above keeps beside them.

    Example::

        await storage.set_state("my_bot", 42, State("registration", "get_name"))
        stored = await storage.perform(Get(storage.address("my_bot", 42)))
        opened: OpenedHead = storage.seal(storage.address("my_bot", 42)).open_head(stored.head)
        assert (opened.place.state, opened.timers, opened.extension) == ("get_name", {}, "")
    """

    place: Place
    #: Times on the backend's clock, by name. The deadline of the record is the earliest.
    timers: Mapping[str, float] = MappingProxyType({})
    #: JSON that only the layer above reads, or an empty text.
    extension: str = ""
    #: The flow and the state by which indexes find the record, if they differ from those of the place.
    indexed: tuple[str | None, str | None] | None = None

    @property
    def index_texts(self) -> tuple[str | None, str | None]:
        """The flow and the state by which indexes find the record."""
        return (self.place.flow, self.place.state) if self.indexed is None else self.indexed

    def next_timer(self, now: float) -> float | None:
        """Return the seconds to the earliest timer, at least 0; ``None`` if there is none."""
        return max(min(self.timers.values()) - now, 0.0) if self.timers else None


#: The head of an address without a record.
NO_HEAD: Final = OpenedHead(NOWHERE)


class Head(Struct, frozen=True, gc=False):
    """Flow and state, which change together.

    Example::

        seal = storage.seal(storage.address("my_bot", 42))
        head: Head = seal.head(OpenedHead(Place("registration", "get_name")))
        assert (head.flow, head.state) == ("registration", "get_name")
    """

    #: For the indexes only; readers decode ``text``.
    flow: str | None
    state: str | None
    #: An ``OpenedHead``, sealed by the codec.
    text: str


class Queue(NamedTuple):
    """A record's place in a queue. ``Storage.queued`` lists a queue by priority, then by the time of entering it.

    Example::

        address = storage.address("my_bot", "task-7")
        await storage.perform(Apply(address, Change(write=storage.ids(), queue=Queue("mails", priority=5))))
        assert await storage.queued(address.namespace, "mails") == [address]
    """

    #: 1 to 500 bytes of UTF-8, without control characters.
    name: str
    #: 32 bits with a sign. Higher priorities come first.
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """Parts of a record by name. Names are ordered by their code points, which is the order of their UTF-8 bytes.

    Both ends are included, and need not exist. Write ``first=name + "\\0"`` to begin behind a name.

    Example::

        address = storage.address("my_bot", "log")
        await storage.perform(Apply(address, Change(write=storage.ids(), parts={"1": "a", "2": "b", "3": "c"})))
        stored = await storage.perform(Get(address, parts=Range(limit=2, reverse=True)))
        assert list(stored.parts) == ["3", "2"]
    """

    first: str | None = None
    last: str | None = None
    #: The maximum number of parts, counted from the first one, or from the last one with ``reverse``.
    limit: int | None = None
    #: From the last part to the first one.
    reverse: bool = False

    def __post_init__(self) -> None:
        for name in (self.first, self.last):
            if name is not None and type(name) is not str:
                raise ValueError(f"an end of a Range must be the name of a part or None, not {quoted(name)}")
        if self.limit is not None and (type(self.limit) is not int or not 0 <= self.limit < 1 << 63):
            raise ValueError(f"Range(limit={quoted(self.limit)}): must be None or an int of at least 0")

    @classmethod
    def prefix(cls, prefix: str, *, limit: int | None = None, reverse: bool = False) -> Range:
        """Return the range of all names that begin with ``prefix``.

        Names with several U+10FFFF right behind the prefix, which is no character, are left out.
        """
        return cls(prefix, prefix + 4 * "\U0010ffff", limit, reverse)

    def covers(self, count: int) -> bool:
        """Return whether it has all parts of a record, if it has found this many."""
        return self.first is None and self.last is None and (self.limit is None or count < self.limit)

    def span(self, names: Sequence[str]) -> slice:
        """Return the place of this range in sorted names."""
        first = 0 if self.first is None else bisect_left(names, self.first)
        last = len(names) if self.last is None else bisect_right(names, self.last)
        if self.limit is not None:
            if self.reverse:
                first = max(first, last - self.limit)
            else:
                last = min(last, first + self.limit)
        return slice(first, last)


#: No fields, or no parts.
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Change(Struct, frozen=True, gc=False):
    """One atomic write. A backend applies all of it or none.

    The order is: ``replace`` or ``delete``, then ``unset`` and ``drop``, then ``set`` and ``parts``.

    Example::

        address = storage.address("my_bot", "log")
        await storage.perform(Apply(address, Change(write=storage.ids(), parts={"0001": "..."}, expiry=3600)))
    """

    #: A random id. It becomes the second half of the version, and the base if the write replaces or deletes.
    write: str
    #: Remove all fields and parts first.
    replace: bool = False
    #: Remove everything except version, base, tags, memo and lease, which stay as a tombstone for a day.
    #: Without a record this does nothing. Head, fields, tags and parts must not be given with it.
    delete: bool = False
    #: With ``delete``: leave no tombstone, no tags and no memo. ``tags`` may be given: their index entries are removed
    #: in addition to those of the record's own tags.
    forget: bool = False
    #: The writer saw no record. If there is an expired one, remove its fields, parts and tags first.
    fresh: bool = False
    head: Head | Keep = KEEP
    #: Field name to sealed text.
    set: Mapping[str, str] = NOTHING
    unset: tuple[str, ...] = ()
    tags: tuple[str, ...] | Keep = KEEP
    #: Seconds from now on the backend's clock; ``None`` removes it.
    deadline: float | Keep | None = KEEP
    expiry: float | Keep | None = KEEP
    #: Only with a claim. Kept for a day after its last write.
    memo: str | Keep = KEEP
    #: Part name to sealed text; ``None`` deletes the part.
    parts: Mapping[str, str | None] = NOTHING
    #: The maximum size of all fields and parts after the write, with names, in UTF-8 bytes.
    #: A write that makes a record smaller is never refused.
    limit: int = 256 * 1024
    #: Enter a queue now, on the backend's clock; ``None`` leaves it.
    queue: Queue | Keep | None = KEEP
    #: Delete the parts of this range.
    drop: Range | None = None


class Damage(str):
    """A text in a ``Stored`` that the backend found damaged or missing. Decoding it raises ``CorruptRecord``.

    Example::

        text = Damage("a field", "is missing")
        assert (text.what, text.why) == ("a field", "is missing")
    """

    __slots__ = ("error", "found", "what", "why")

    #: The damaged thing and the kind of damage, for the error message.
    what: str
    why: str
    #: The damaged text.
    found: str | None
    #: Raised instead of ``CorruptRecord``, for a text that is not damaged and cannot be read.
    error: Exception | None

    def __new__(cls, what: str, why: str, found: str | None = None) -> Damage:
        # No valid checksum begins like this.
        text = super().__new__(cls, f"damaged: {what} {why}")
        text.what, text.why, text.found, text.error = what, why, found, None
        return text


class Stored(Struct):
    """A record as a backend returns it, with sealed texts.

    Example::

        await storage.set_data("my_bot", 42, {"name": "Alice"})
        stored: Stored = await storage.perform(Get(storage.address("my_bot", 42)))
        assert list(stored.fields) == ["name"]
    """

    version: Version
    #: The write id of the last replace or delete.
    base: str
    #: Times are seconds since 1970 on the backend's clock.
    written_at: float
    head: str | None
    fields: dict[str, str]
    tags: tuple[str, ...] = ()
    expires_at: float | None = None
    deadline: float | None = None
    #: ``None`` unless requested. In the order of a requested ``Range``, else in no particular order.
    parts: dict[str, str] | None = None
    queue: Queue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Size limits, in bytes of the stored text. They are checked before writing and before decoding.

    Example::

        storage = open_storage("memory://", limits=Limits(record=1024 * 1024))
    """

    #: All fields and parts of a conversation.
    record: int = 256 * 1024
    #: All fields and parts of a run of a node flow.
    run: int = 64 * 1024 * 1024
    #: One part of a run: an item of a batch, or its result.
    item: int = 1024 * 1024
    #: An encoded key, and an encoded namespace.
    key: int = 512
    #: The nesting depth of values and keys.
    depth: int = 64

    def __post_init__(self) -> None:
        for name in ("record", "run", "item", "key", "depth"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"Limits({name}={quoted(value)}): must be an int of at least 1")
