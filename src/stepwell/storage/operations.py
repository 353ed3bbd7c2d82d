"""The four operations and their results.

A result may also be a ``StepwellError``, which concerns its own operation only.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from stepwell._secrets import quoted
from stepwell.codec.json import Struct
from stepwell.errors import InvalidOption, StepwellError
from stepwell.record import Address, Change, Queue, Range, Stored, Version

__all__ = [
    "Applied",
    "Apply",
    "Claim",
    "Claimed",
    "EncryptedQueue",
    "Get",
    "Guard",
    "Operation",
    "Range",
    "Release",
    "Result",
    "Taken",
    "check_queue",
]

#: The maximum size of a queue's name, in bytes of UTF-8.
_LONGEST_NAME: Final = 500


class Get(Struct, frozen=True, gc=False):
    """Read a record. Returns ``Stored``, or ``None`` if there is none or it has expired.

    Example::

        await storage.set_data("my_bot", 42, {"name": "Alice"})
        stored = await storage.perform(Get(storage.address("my_bot", 42)))
        assert stored.expires_at is None
    """

    address: Address
    #: Load its parts too: all of them, a range, or those with these names. Parts that do not exist are left out.
    parts: bool | Range | tuple[str, ...] = False


class Claim(Struct, frozen=True, gc=False):
    """Lease an address to a token, and read it. Returns ``Claimed``, or ``Taken`` while another token has the lease.

    The address need not have a record. A token that already has the lease extends it.

    Example::

        address = storage.address("my_bot", 42)
        assert isinstance(await storage.perform(Claim(address, "token-1", lease=30)), Claimed)
        assert isinstance(await storage.perform(Claim(address, "token-2", lease=30)), Taken)
    """

    address: Address
    token: str
    #: Seconds from now on the backend's clock.
    lease: float
    #: Only extend the lease; returns ``LeaseLost`` if it has expired or another token has it.
    renew: bool = False


class Guard(Struct, frozen=True, gc=False):
    """Conditions of a write. If one is not met, nothing is written.

    Example::

        address = storage.address("my_bot", 42)
        change = Change(write=storage.ids(), parts={"0001": "..."})
        await storage.perform(Apply(address, change, Guard(absent=True)))
        with pytest.raises(RecordExists):
            await storage.perform(Apply(address, change, Guard(absent=True)))
    """

    #: This token has the lease, else ``LeaseLost``.
    token: str | None = None
    #: The record was not replaced or deleted since the claim, else ``RecordReplaced``.
    base: str | None = None
    #: The record has exactly this version, else ``VersionChanged``.
    version: Version | None = None
    #: There is no record, or it has expired, else ``RecordExists``.
    absent: bool = False


class Apply(Struct, frozen=True, gc=False):
    """Write one change. Returns ``Applied``, the error of the guard, or ``TooLarge``.

    Example::

        address = storage.address("my_bot", 42)
        done = await storage.perform(Apply(address, Change(write=storage.ids(), parts={"0001": "..."})))
        assert isinstance(done, Applied)
    """

    address: Address
    change: Change
    guard: Guard | None = None
    #: Whether to release or keep the guard's lease after the write; ``keep`` extends it to ``lease`` seconds from now.
    then: Literal["release", "keep"] = "release"
    lease: float = 0.0
    #: Return the record after the write.
    returning: bool = False


class Release(Struct, frozen=True, gc=False):
    """End a token's lease, if it still has it. Returns ``None``.

    Example::

        address = storage.address("my_bot", 42)
        await storage.perform(Claim(address, "token-1", lease=30))
        await storage.perform(Release(address, "token-1"))
        assert isinstance(await storage.perform(Claim(address, "token-2", lease=30)), Claimed)
    """

    address: Address
    token: str


Operation: TypeAlias = Get | Claim | Apply | Release


class Claimed(Struct, frozen=True):
    """The token has the lease."""

    record: Stored | None
    #: The base to guard a write with; empty if the record was never replaced or deleted.
    base: str
    memo: str | None
    #: The backend's clock, in seconds since 1970.
    now: float


class Taken(Struct, frozen=True, gc=False):
    """Another token has the lease."""

    #: Seconds until it expires, unless it is extended.
    remaining: float


class Applied(Struct, frozen=True):
    """The change was written."""

    version: Version
    base: str
    now: float
    #: Only with ``returning``.
    record: Stored | None = None


Result: TypeAlias = Stored | Claimed | Taken | Applied | StepwellError | None


class EncryptedQueue(Queue):
    """A queue with an encrypted name, which may be longer; its plaintext was checked."""

    __slots__ = ()


def check_queue(queue: object) -> None:
    """Raise ``InvalidOption`` unless every backend can store this queue of a change."""
    if queue is None or type(queue) is EncryptedQueue:
        return
    if not (isinstance(queue, Queue) and type(queue.name) is str and type(queue.priority) is int):
        raise InvalidOption(f"queue must be a Queue(name, priority) or None, not {quoted(queue)}")
    name, priority = queue
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _LONGEST_NAME or any(ord(character) < 32 for character in name):
        raise InvalidOption(
            f"the name of a queue must have 1 to {_LONGEST_NAME} bytes of UTF-8 and no control characters, "
            f"not {quoted(name[:100])}"
        )
    if not -(1 << 31) <= priority < 1 << 31:
        raise InvalidOption(f"the priority of a queue must fit into 32 bits, not {priority}")
