"""The four operations and their results.

A result may also be a ``StepwellError``, which concerns its own operation only.
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
    """Read a record. Returns ``Stored``, or ``None`` if there is none or it has expired."""

    address: Address
    #: Load its parts too.
    parts: bool = False


class Claim(NamedTuple):
    """Lease an address to a token, and read it. Returns ``Claimed``, or ``Taken`` while another token has the lease.

    The address need not have a record. A token that already has the lease extends it.
    """

    address: Address
    token: str
    #: Seconds from now on the backend's clock.
    lease: float
    #: Only extend the lease; returns ``LeaseLost`` if it has expired or another token has it.
    renew: bool = False


class Guard(NamedTuple):
    """Conditions of a write. If one is not met, nothing is written."""

    #: This token has the lease, else ``LeaseLost``.
    token: str | None = None
    #: The record was not replaced or deleted since the claim, else ``RecordReplaced``.
    base: str | None = None
    #: The record has exactly this version, else ``VersionChanged``.
    version: Version | None = None


class Apply(NamedTuple):
    """Write one change. Returns ``Applied``, the error of the guard, or ``TooLarge``."""

    address: Address
    change: Change
    guard: Guard | None = None
    #: Whether to release or keep the guard's lease after the write; ``keep`` extends it to ``lease`` seconds from now.
    then: Literal["release", "keep"] = "release"
    lease: float = 0.0
    #: Return the record after the write.
    returning: bool = False


class Release(NamedTuple):
    """End a token's lease, if it still has it. Returns ``None``."""

    address: Address
    token: str


Operation: TypeAlias = Get | Claim | Apply | Release


class Claimed(NamedTuple):
    """The token has the lease."""

    record: Stored | None
    #: The base to guard a write with; empty if the record was never replaced or deleted.
    base: str
    memo: str | None
    #: The backend's clock, in seconds since 1970.
    now: float


class Taken(NamedTuple):
    """Another token has the lease."""

    #: Seconds until it expires, unless it is extended.
    remaining: float


class Applied(NamedTuple):
    """The change was written."""

    version: Version
    base: str
    now: float
    #: Only with ``returning``.
    record: Stored | None = None


Result: TypeAlias = Stored | Claimed | Taken | Applied | StepwellError | None
