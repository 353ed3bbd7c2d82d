"""What is kept, where it is kept, and what a write does to it. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

__all__ = [
    "DAY",
    "KEEP",
    "NOTHING",
    "NOWHERE",
    "QUARANTINE",
    "RUNS",
    "Address",
    "Change",
    "Damage",
    "Head",
    "Keep",
    "Limits",
    "Place",
    "ReservedNamespace",
    "State",
    "Stored",
    "Version",
]

#: How long a tombstone and a memo outlive the last write, in seconds: as long as Telegram keeps an update.
DAY: Final = 86_400.0


@dataclass(slots=True)
class State:
    """Where a conversation or a run stands: its flow, its state in that flow, and its data."""

    flow: str | None = None
    state: str | None = None
    data: dict[Any, Any] = field(default_factory=dict)


class ReservedNamespace(str):
    """A namespace that no bot's name can equal, because it is never encoded as one."""

    __slots__ = ()


#: All runs of node flows, with the flow id as key.
RUNS: Final = ReservedNamespace('"runs"')
#: Copies of damaged records, with (namespace, key) of the original as key.
QUARANTINE: Final = ReservedNamespace('"quarantine"')


class Address(NamedTuple):
    """One place in a storage. Both parts are encoded text without control characters (see ``codec``)."""

    namespace: str
    key: str

    @property
    def text(self) -> str:
        """Both parts as one readable text; different addresses have different texts."""
        # Encoded namespaces double their backslashes, so an escaped slash cannot be mistaken.
        return self.namespace.replace("/", "\\/") + "/" + self.key


class Version(NamedTuple):
    """Never reused: ``number`` grows by one a write and starts at the clock, ``write`` is random."""

    number: int
    write: str


class Keep(Enum):
    """The type of ``KEEP``."""

    KEEP = "keep"


#: Leave this part of the record as it is.
KEEP: Final = Keep.KEEP


class Place(NamedTuple):
    """Where a conversation or a run stands, without its data."""

    flow: str | None
    state: str | None
    #: Of the flow, when the state was entered.
    revision: int | None = None
    #: The states before this one, the last one last.
    history: tuple[str, ...] = ()
    #: The flows that wait for this one to end, the outermost first, each with its place and data.
    stack: tuple[Any, ...] = ()
    #: Where a timer answers, if the key does not say so: chat, thread, business connection.
    where: tuple[Any, ...] = ()
    #: When the conversation expires and when its state times out, on the backend's clock, if the machine hands over
    #: expired conversations; otherwise empty.
    times: tuple[float | None, ...] = ()
    #: Expired conversations that were not handed over yet: when each expired, its flow, its state, and from when on a
    #: worker may hand it over.
    expired: tuple[tuple[Any, ...], ...] = ()


NOWHERE: Final = Place(None, None)


class Head(NamedTuple):
    """Flow and state, which change together."""

    #: For the indexes only; what is true is in ``text``.
    flow: str | None
    state: str | None
    #: A ``Place``, sealed by the codec.
    text: str


#: No fields, or no parts.
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Change(NamedTuple):
    """One atomic write. A backend applies all of it or none.

    The order: drop what ``replace`` or ``delete`` drops, then unset, then set.
    """

    #: Random; becomes the second half of the version, and the base if the write replaces or deletes.
    write: str
    #: Drop all fields and parts first.
    replace: bool = False
    #: Drop everything but version, base, tags, memo and lease, and leave that as a tombstone for a day.
    #: Where there is no record this does nothing. Head, fields, tags and parts are not given with it.
    delete: bool = False
    #: With ``delete``: leave no tombstone, no tags and no memo either. ``tags`` may be given: the index entries of
    #: these are removed too, whatever the record says its tags are.
    forget: bool = False
    #: The writer saw no record: if an expired one is still there, drop its fields, parts and tags first.
    fresh: bool = False
    head: Head | Keep = KEEP
    #: Field name to sealed text.
    set: Mapping[str, str] = NOTHING
    unset: tuple[str, ...] = ()
    tags: tuple[str, ...] | Keep = KEEP
    #: Seconds from now on the backend's clock; ``None`` takes it away.
    deadline: float | Keep | None = KEEP
    expiry: float | Keep | None = KEEP
    #: Only under a claim. Kept for a day after it was last written.
    memo: str | Keep = KEEP
    #: Part name to sealed text; ``None`` deletes the part.
    parts: Mapping[str, str | None] = NOTHING
    #: The most that fields and parts may take together after the write, names included, in UTF-8 bytes.
    #: A write that makes a record smaller is never refused.
    limit: int = 256 * 1024


class Damage(str):
    """A text in a ``Stored`` that the backend found to be damaged or missing: decoding it raises ``CorruptRecord``."""

    __slots__ = ("found", "what", "why")

    #: What is damaged, and how: the end of the error's sentence.
    what: str
    why: str
    #: The text as it was found.
    found: str | None

    def __new__(cls, what: str, why: str, found: str | None = None) -> Damage:
        # No checksum begins like this.
        text = super().__new__(cls, f"damaged: {what} {why}")
        text.what, text.why, text.found = what, why, found
        return text


@dataclass(slots=True)
class Stored:
    """A record as a backend gives it back: texts are the codec's and still sealed."""

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
    #: ``None`` unless they were asked for.
    parts: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large things may be, in bytes of their stored text; checked before writing and before parsing."""

    #: All fields and parts of a conversation.
    record: int = 256 * 1024
    #: All fields and parts of a run of a node flow.
    run: int = 64 * 1024 * 1024
    #: One part of a run: an item of a batch, or its result.
    item: int = 1024 * 1024
    #: An encoded key, and an encoded namespace.
    key: int = 512
    #: How deep values and keys may be nested.
    depth: int = 64

    def __post_init__(self) -> None:
        for name in ("record", "run", "item", "key", "depth"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"Limits({name}={value!r}): give a whole number of at least 1")
