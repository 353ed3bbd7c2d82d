"""Operations as arguments of the batch script, and its answers as results. Keys and scripts are here too."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final
from zlib import crc32

from stepwell.errors import (
    CorruptRecord,
    LeaseLost,
    RecordReplaced,
    StepwellError,
    StorageError,
    StorageFull,
    StorageUnavailable,
    TooLarge,
    VersionChanged,
)
from stepwell.record import KEEP, Address, Stored, Version
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Get, Operation, Result, Taken

__all__ = [
    "TAGS",
    "Keys",
    "Script",
    "address_back",
    "arguments",
    "namespace_back",
    "refusal",
    "result",
    "space_of",
    "stored",
]

#: Records are spread over so many hash tags. Part of the stored layout: it never changes.
TAGS: Final = 64


class Script:
    """A Lua script, known to servers by its checksum."""

    def __init__(self, name: str) -> None:
        folder = files("stepwell.storage.redis")
        self.source = "".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("record", name))
        self.sha = sha1(self.source.encode(), usedforsecurity=False).hexdigest()


class Keys:
    """The names of keys; see ``record.lua`` for what they hold."""

    def __init__(self, prefix: str) -> None:
        #: What all keys of a hash tag begin with; all are equally long.
        self.prefixes = [f"{prefix}:{{{tag:02}}}:" for tag in range(TAGS)]
        self.width = str(len(self.prefixes[0].encode()))
        self._records = [f"{prefix}r:" for prefix in self.prefixes]

    def tag(self, address: Address) -> int:
        """The hash tag of an address."""
        return crc32(address.text.encode()) % TAGS

    def record(self, address: Address) -> str:
        """The record's own key."""
        text = address.text
        return self._records[crc32(text.encode()) % TAGS] + text

    def never(self, tag: int) -> str:
        """The key that is never written."""
        return self.prefixes[tag] + "-"

    def journal(self, tag: int, lane: str) -> str:
        """The journal of a lane."""
        return f"{self.prefixes[tag]}j:{lane}"

    def listing(self, tag: int, space: str, name: str | None) -> str:
        """The index of a namespace, or of one of its tags."""
        return f"{self.prefixes[tag]}n:{space}" if name is None else f"{self.prefixes[tag]}g:{space}/{_escaped(name)}"

    def deadlines(self, tag: int, space: str) -> str:
        """The index of deadlines of a namespace."""
        return f"{self.prefixes[tag]}d:{space}"

    def namespaces(self, tag: int) -> str:
        """The index of namespaces."""
        return self.prefixes[tag] + "s"

    def leaving(self, tag: int) -> str:
        """The index of what may be swept."""
        return self.prefixes[tag] + "x"


def space_of(namespace: str) -> str:
    """A namespace as it stands in keys."""
    return namespace.replace("/", "\\/")


def namespace_back(space: str) -> str:
    """The namespace that stands in keys like this."""
    return space.replace("\\/", "/")


def address_back(text: str) -> Address:
    """The address that has this text."""
    at = 0
    while text[at] != "/":
        at += 2 if text[at] == "\\" else 1
    return Address(namespace_back(text[:at]), text[at + 1 :])


# Arguments


def arguments(operation: Operation) -> Sequence[str]:
    """An operation for the batch script: its letter, how many arguments follow, and these."""
    if isinstance(operation, Apply):
        return _apply(operation)
    if isinstance(operation, Claim):
        return "C", "3", operation.token, _seconds(operation.lease), "1" if operation.renew else ""
    if isinstance(operation, Get):
        return "G", "1", "1" if operation.parts else ""
    return "R", "1", operation.token


def _apply(apply: Apply) -> list[str]:
    change, guard = apply.change, apply.guard
    fields = change.set
    if change.delete:
        mode = "forget" if change.forget else "delete"
    else:
        mode = "replace" if change.replace else "merge"
    if guard is None:
        token, base = "", "-"
    else:
        token, base = guard.token or "", "-" if guard.base is None else "=" + guard.base
    row = ["A", "", mode, change.write, token, base, str(change.limit), str(len(fields)), *fields, *fields.values()]
    if guard is not None and guard.version is not None:
        row += ("n", str(guard.version.number), "w", guard.version.write)
    if apply.then == "keep":
        row += ("k", _seconds(apply.lease))
    if apply.returning:
        row += ("r", "1")
    head = change.head
    if head is not KEEP:
        row += ("h", head.text)
        if head.flow is not None:
            row += ("a", head.flow)
        if head.state is not None:
            row += ("s", head.state)
    if change.memo is not KEEP:
        row += ("m", change.memo)
    if change.deadline is not KEEP:
        row += ("d", "-" if change.deadline is None else _seconds(change.deadline))
    if change.expiry is not KEEP:
        row += ("e", "-" if change.expiry is None else _seconds(change.expiry))
    if change.tags is not KEEP:
        row += ("g", "".join([_escaped(tag) + "\n" for tag in change.tags]))
    if change.fresh:
        row += ("f", "1")
    for name in dict.fromkeys(change.unset):
        # What is unset and set in one change is set.
        if name not in fields:
            row += ("u", name)
    for name, text in change.parts.items():
        row += ("q", name) if text is None else ("p", name, "t", text)
    row[1] = str(len(row) - 2)
    return row


def _seconds(number: float) -> str:
    return repr(float(number))


def _escaped(tag: str) -> str:
    return tag.replace("\\", "\\\\").replace("\n", "\\n") if "\\" in tag or "\n" in tag else tag


def _tags(text: str) -> tuple[str, ...]:
    tags = text.split("\n")[:-1]
    if "\\" in text:
        tags = ["\\".join(piece.replace("\\n", "\n") for piece in tag.split("\\\\")) for tag in tags]
    return tuple(tags)


# Results


def result(operation: Operation, reply: list[Any], now: float) -> Result:
    """What the script answered to an operation. Raises ``StorageUnavailable`` if that concerns the whole batch."""
    code = reply[0]
    if isinstance(operation, Apply):
        if code:
            return _refused(operation, reply)
        version = Version(int(reply[1]), reply[2])
        if len(reply) == 4:
            return Applied(version, reply[3], now)
        # As it is after the write, hidden or not.
        after = stored(operation.address, reply[4], float("-inf"), None)
        return after if isinstance(after, StepwellError) else Applied(version, reply[3], now, after)
    if isinstance(operation, Claim):
        if code:
            return Taken(float(reply[1]) - now) if code == "TAKEN" else _refused(operation, reply)
        fields = _paired(reply[1])
        base = fields.get("$b", "")
        found = _stored(operation.address, fields, now, None)
        return found if isinstance(found, StepwellError) else Claimed(found, base, reply[2], now)
    if code == "ERROR":
        return refusal(reply[1], operation.address)
    if isinstance(operation, Get):
        return stored(operation.address, code, now, reply[1] if len(reply) > 1 else None)
    return None


def stored(address: Address, flat: list[str], now: float, parts: list[str] | None) -> Stored | StepwellError | None:
    """A record from the fields of its hash, or ``None`` if there is none that has not expired."""
    return _stored(address, _paired(flat), now, parts)


def _paired(flat: list[str]) -> dict[str, str]:
    pairs = iter(flat)
    return dict(zip(pairs, pairs, strict=True))


def _stored(
    address: Address, fields: dict[str, str], now: float, parts: list[str] | None
) -> Stored | StepwellError | None:
    take = fields.pop
    if take("$z", None) is None:
        return None
    try:
        expires = take("$e", None)
        expires_at = None if expires is None else float(expires)
        if expires_at is not None and expires_at <= now:
            return None
        deadline = take("$d", None)
        tags = take("$g", None)
        take("$f", None)
        take("$s", None)
        return Stored(
            version=Version(int(take("$v")), take("$w")),
            base=take("$b", ""),
            written_at=float(take("$t")),
            head=take("$h", None),
            fields=fields,
            tags=() if tags is None else _tags(tags),
            expires_at=expires_at,
            deadline=None if deadline is None else float(deadline),
            parts=None if parts is None else _paired(parts),
        )
    except (KeyError, ValueError):
        return _damaged(address)


def _damaged(address: Address) -> CorruptRecord:
    return CorruptRecord(address.text, "its version or one of its times", "cannot be read")


def _refused(operation: Operation, reply: list[Any]) -> StepwellError:
    code, place = reply[0], operation.address.text
    if code == "LEASE":
        return LeaseLost(place)
    if code == "BASE":
        return RecordReplaced(place)
    if code == "VERSION":
        return VersionChanged(place)
    if code == "LARGE":
        return TooLarge("the record", int(reply[1]), operation.change.limit)  # type: ignore[union-attr]
    if code == "DAMAGED":
        return _damaged(operation.address)
    return refusal(reply[1], operation.address)


def refusal(message: str, address: Address) -> StepwellError:
    """The error for what a server said inside a script; raises ``StorageUnavailable`` if another try may help."""
    # Older servers put the place in the script in front of the code.
    words = set(message.replace(":", " ").split())
    if "OOM" in words:
        return StorageFull("Redis has reached its maxmemory, nothing was written; give it more, or let records expire")
    for code, what in _PASSING.items():
        if code in words:
            raise StorageUnavailable(f"Redis {what} ({code}); nothing was written", sent=False)
    if "WRONGTYPE" in words:
        return CorruptRecord(address.text, "its key in Redis", "was written over by something else")
    # The second is how Redis 6.2 says it.
    if "ACL failure" in message or "user executing the script" in message:
        return StorageError(
            f"Redis does not let its user do this with {address.text} ({message}); see the ACL line in docs/redis.md"
        )
    return StorageError(f"Redis refused an operation on {address.text}: {message}")


#: Conditions that pass, or that another server does not have.
_PASSING: Final = {
    "READONLY": "answers as a replica, which cannot write",
    "MISCONF": "cannot save to disk and therefore refuses writes",
    "NOREPLICAS": "has too few replicas and therefore refuses writes",
    "LOADING": "is loading its data",
    "MASTERDOWN": "has lost its master",
    "CLUSTERDOWN": "is part of a cluster that is down",
    "TRYAGAIN": "is moving these keys to another node",
    "BUSY": "is busy with a script",
}
