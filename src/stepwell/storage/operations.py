"""The four operations, and what each gives back.

A result may also be a ``StepwellError``: it belongs to its operation alone.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from stepwell.errors import StepwellError
from stepwell.record import Address, Change, Stored, Version

__all__ = [
    "Applied",
    "Apply",
    "Claim",
    "Claimed",
    "Get",
    "Guard",
    "Operation",
    "Release",
    "Result",
    "Taken",
]


class Get(NamedTuple):
    """Read a record. Gives ``Stored``, or ``None`` if there is none, or only an expired one or a tombstone."""

    address: Address
    #: Also load its parts.
    parts: bool = False


class Claim(NamedTuple):
    """Lease an address to a token, and read it. Gives ``Claimed``, or ``Taken`` while another token's lease runs.

    The address need not have a record. A token that holds the lease already extends it.
    """

    address: Address
    token: str
    #: Seconds from now on the backend's clock.
    lease: float
    #: Only extend: a lease that has run out, or was taken over, gives ``LeaseLost``.
    renew: bool = False


class Guard(NamedTuple):
    """What must hold at the moment of the write; otherwise nothing is written."""

    #: This token's lease runs, else ``LeaseLost``.
    token: str | None = None
    #: Nobody replaced or deleted the record since the claim, else ``RecordReplaced``.
    base: str | None = None
    #: The record is there at exactly this version, else ``VersionChanged``.
    version: Version | None = None


class Apply(NamedTuple):
    """Make one change. Gives ``Applied``, or the error of the guard, or ``TooLarge``."""

    address: Address
    change: Change
    guard: Guard | None = None
    #: What happens to the guard's lease after the write: ``keep`` also extends it by ``lease`` seconds.
    then: Literal["release", "keep"] = "release"
    lease: float = 0.0
    #: Give the record back as it is after the write.
    returning: bool = False


class Release(NamedTuple):
    """End a token's lease, if it still has it. Gives ``None``."""

    address: Address
    token: str


Operation: TypeAlias = Get | Claim | Apply | Release


class Claimed(NamedTuple):
    """The lease is ours."""

    record: Stored | None
    #: The base to guard with; empty where nothing was ever replaced or deleted.
    base: str
    memo: str | None
    #: The backend's clock, in seconds since 1970.
    now: float


class Taken(NamedTuple):
    """Somebody else holds the lease."""

    #: Seconds until it runs out, unless it is extended.
    remaining: float


class Applied(NamedTuple):
    """The change is made."""

    version: Version
    base: str
    now: float
    #: Only if it was asked for.
    record: Stored | None = None


Result: TypeAlias = Stored | Claimed | Taken | Applied | StepwellError | None
