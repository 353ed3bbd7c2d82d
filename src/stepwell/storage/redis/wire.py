"""The arguments and replies of the Lua scripts, and the names of keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final, TypeAlias
from zlib import crc32

from stepwell.errors import (
    CorruptRecord,
    LeaseLost,
    RecordExists,
    RecordReplaced,
    StepwellError,
    StorageError,
    StorageFull,
    StorageUnavailable,
    TooLarge,
    VersionChanged,
)
from stepwell.record import KEEP, TURN, Address, Range, Stored, Version
from stepwell.storage.operations import Applied, Apply, Claim, Claimed, Get, Guard, Operation, Result, Taken
from stepwell.storage.queue_text import queue_of, queue_text

__all__ = [
    "TAGS",
    "Keys",
    "Row",
    "Script",
    "begins",
    "decode_address",
    "decode_space",
    "failure",
    "flow_part",
    "paired",
    "refusal",
    "result",
    "row_of",
    "space_of",
    "stored",
    "tag_of",
]

#: The number of hash tags that records are spread over. Part of the stored layout: it never changes.
TAGS: Final = 64


class Script:
    """A Lua script with its SHA1, for ``EVALSHA``."""

    def __init__(self, name: str) -> None:
        folder = files("stepwell.storage.redis")
        self.source: str = "".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("record", name))
        self.sha: str = sha1(self.source.encode(), usedforsecurity=False).hexdigest()


class Keys:
    """The names of keys; ``record.lua`` documents their values."""

    def __init__(self, prefix: str) -> None:
        self.prefix: str = prefix
        self._prefixes: list[str] = [f"{prefix}:{{{tag:02}}}:r:" for tag in range(TAGS)]
        #: Returns the key of the record at an address.
        self.record: Callable[[Address], str] = lru_cache(maxsize=4096)(self._record)

    def _record(self, address: Address) -> str:
        return self._prefixes[tag_of(address)] + address.text


@lru_cache(maxsize=4096)
def tag_of(address: Address) -> int:
    """Return the hash tag of an address. A turn has that of its record, so that it needs no other node."""
    return crc32(address.text.removesuffix(TURN).encode()) % TAGS


def space_of(namespace: str) -> str:
    """Return a namespace as it is written in keys."""
    return namespace.replace("/", "\\/")


def decode_space(space: str) -> str:
    """Return the namespace that ``space_of`` was given."""
    return space.replace("\\/", "/")


def decode_address(text: str) -> Address:
    """Return the address that has this text."""
    at = 0
    while text[at] != "/":
        at += 2 if text[at] == "\\" else 1
    return Address(decode_space(text[:at]), text[at + 1 :])


# Operations

#: An operation as ``batch.lua`` gets it.
Row: TypeAlias = list[Any]


def row_of(operation: Operation, key: str) -> Row:
    """Return an operation on the record with this key for the batch script."""
    if isinstance(operation, Apply):
        return ["A", key, _change(operation)]
    if isinstance(operation, Claim):
        return ["C", key, operation.token, float(operation.lease), operation.renew]
    if isinstance(operation, Get):
        parts = operation.parts
        if isinstance(parts, Range):
            return ["G", key, False, False, _range(parts)]
        return ["G", key, False, parts] if isinstance(parts, tuple) else ["G", key, parts]
    return ["R", key, operation.token]


_UNGUARDED: Final = Guard()


def _range(wanted: Range) -> Row:
    """Return the first and last name in the form of ``ZRANGEBYLEX``, the limit, and whether the order is reversed."""
    return [
        "-" if wanted.first is None else "[" + wanted.first,
        "+" if wanted.last is None else "[" + wanted.last,
        -1 if wanted.limit is None else wanted.limit,
        wanted.reverse,
    ]


def _change(apply: Apply) -> dict[str, Any]:
    """Return the table that ``operations.A`` in ``batch.lua`` describes."""
    change, guard, fields = apply.change, apply.guard or _UNGUARDED, apply.change.set
    if change.delete:
        mode = "forget" if change.forget else "delete"
    else:
        mode = "replace" if change.replace else "merge"
    table: dict[str, Any] = {
        "write": change.write, "mode": mode, "limit": change.limit, "names": [*fields], "texts": [*fields.values()],
    }  # fmt: skip
    if guard.token is not None:
        table["token"] = guard.token
    if guard.base is not None:
        table["base"] = guard.base
    if guard.version is not None:
        table |= {"version": str(guard.version.number), "writer": guard.version.write}
    if guard.absent:
        table["absent"] = True
    if apply.then == "keep":
        table["keep"] = float(apply.lease)
    if apply.returning:
        table["returning"] = True
    if change.head is not KEEP:
        head = change.head
        table["head"] = head.text
        table["flow"] = False if head.flow is None else head.flow
        table["state"] = False if head.state is None else head.state
    if change.memo is not KEEP:
        table["memo"] = change.memo
    if change.deadline is not KEEP:
        table["deadline"] = False if change.deadline is None else float(change.deadline)
    if change.expiry is not KEEP:
        table["expiry"] = False if change.expiry is None else float(change.expiry)
    if change.tags is not KEEP:
        table["tags"] = "".join([_escaped(tag) + "\n" for tag in change.tags])
    if change.queue is not KEEP:
        table["queue"] = False if change.queue is None else queue_text(change.queue)
    if change.fresh:
        table["fresh"] = True
    # A field that one change both unsets and sets is set.
    unset = [name for name in dict.fromkeys(change.unset) if name not in fields]
    if unset:
        table["unset"] = unset
    if change.parts:
        parts = {name: part for name, part in change.parts.items() if part is not None}
        gone = [name for name, part in change.parts.items() if part is None]
        if parts:
            table |= {"parts": [*parts], "part_texts": [*parts.values()]}
        if gone:
            table["gone_parts"] = gone
    if change.drop is not None:
        table["gone_range"] = _range(change.drop)
    return table


def flow_part(flow: str | None) -> str:
    """Return a flow, or ``None``, as it is in the name of its index of deadlines."""
    return "-" if flow is None else f"={flow}"


def begins(tag: str | None) -> str:
    """Return the beginning of the entries of a tag in the index of tags; empty for the index of records."""
    return "" if tag is None else _escaped(tag) + "\n"


def _escaped(tag: str) -> str:
    return tag.replace("\\", "\\\\").replace("\n", "\\n") if "\\" in tag or "\n" in tag else tag


def _tags(text: str) -> tuple[str, ...]:
    tags = text.split("\n")[:-1]
    if "\\" in text:
        tags = ["\\".join(piece.replace("\\n", "\n") for piece in tag.split("\\\\")) for tag in tags]
    return tuple(tags)


# Results


def result(operation: Operation, reply: list[Any], now: float) -> Result:
    """Return the result of an operation. Raises ``StorageUnavailable`` if the whole batch failed."""
    code = reply[0]
    if isinstance(operation, Apply):
        if code:
            return _refused(operation, reply)
        version = Version(int(reply[1]), reply[2])
        if len(reply) == 4:
            return Applied(version=version, base=reply[3], now=now)
        # The record after the write, even if it has expired.
        after = stored(operation.address, paired(reply[4]), float("-inf"), None)
        if isinstance(after, StepwellError):
            return after
        return Applied(version=version, base=reply[3], now=now, record=after)
    if isinstance(operation, Claim):
        if code:
            return Taken(float(reply[1]) - now) if code == "TAKEN" else _refused(operation, reply)
        fields = paired(reply[1])
        base = fields.get("$b", "")
        found = stored(operation.address, fields, now, None)
        if found is None or type(found) is Stored:
            return Claimed(record=found, base=base, memo=reply[2], now=now)
        return found
    if code == "ERROR":
        return refusal(reply[1], operation.address)
    if isinstance(operation, Get):
        parts = paired(reply[1]) if len(reply) > 1 else None
        wanted = operation.parts
        if parts and isinstance(wanted, Range) and wanted.covers(len(parts)):
            # The script has returned all parts without sorting them.
            parts = {name: parts[name] for name in sorted(parts, reverse=wanted.reverse)}
        return stored(operation.address, paired(code), now, parts)
    return None


def paired(flat: list[str]) -> dict[str, str]:
    """Return a hash from the flat list in which Redis returns it."""
    pairs = iter(flat)
    return dict(zip(pairs, pairs, strict=True))


def stored(
    address: Address, fields: dict[str, str], now: float, parts: dict[str, str] | None
) -> Stored | StepwellError | None:
    """Return a record from its hash, which is changed, or ``None`` if there is none or it has expired."""
    take = fields.pop
    if take("$z", None) is None:
        return None
    try:
        expires_at = None
        if "$e" in fields:
            expires_at = float(take("$e"))
            if expires_at <= now:
                return None
        # The index texts of the head.
        take("$f", None)
        take("$s", None)
        return Stored(
            Version(int(take("$v")), take("$w")),
            take("$b") if "$b" in fields else "",
            float(take("$t")),
            take("$h", None),
            fields,
            _tags(take("$g")) if "$g" in fields else (),
            expires_at,
            float(take("$d")) if "$d" in fields else None,
            parts,
            queue_of(take("$q")) if "$q" in fields else None,
        )
    except (KeyError, ValueError):
        return _damaged(address)


def _damaged(address: Address) -> CorruptRecord:
    return CorruptRecord(address.text, "its version or one of its times", "cannot be read")


def _refused(operation: Operation, reply: list[Any]) -> StepwellError:
    code, address = reply[0], operation.address
    if code in _GUARDS:
        return _GUARDS[code](address.text)
    if code == "LARGE":
        return TooLarge("the record", int(reply[1]), operation.change.limit)  # type: ignore[union-attr]
    if code == "DAMAGED":
        return _damaged(address)
    return refusal(reply[1], address)


#: The errors of conditions that are not met.
_GUARDS: Final[dict[str, Callable[[str], StepwellError]]] = {
    "LEASE": LeaseLost,
    "BASE": RecordReplaced,
    "VERSION": VersionChanged,
    "EXISTS": RecordExists,
}


def failure(message: str, where: str) -> StorageError:
    """Return the error for operations that a script or a server has refused as a whole; nothing was written.

    ``where``: the location of the server.
    """
    code = _codes(message) & _TEMPORARY.keys()
    if code:
        return StorageUnavailable(f"Redis at {where} {_TEMPORARY[code.pop()]} ({message})", sent=False)
    if _lacks_permission(message):
        return StorageUnavailable(
            f"Redis at {where} does not permit its user to do this ({message}); see the ACL line in docs/redis.md",
            sent=False,
            final=True,
        )
    return StorageError(f"Redis at {where} refused a call: {message}")


def refusal(message: str, address: Address) -> StepwellError:
    """Return the error for one operation in a script; raises ``StorageUnavailable`` if retrying may help."""
    codes = _codes(message)
    if "OOM" in codes:
        return StorageFull("Redis has reached its maxmemory and wrote nothing; raise the limit, or let records expire")
    for code in codes & _TEMPORARY.keys():
        raise StorageUnavailable(f"Redis {_TEMPORARY[code]} ({code}); nothing was written", sent=False)
    if "WRONGTYPE" in codes:
        return CorruptRecord(address.text, "its key in Redis", "was overwritten by another program")
    if _lacks_permission(message):
        return StorageError(
            f"Redis does not permit its user to do this with {address.text} ({message}); "
            "see the ACL line in docs/redis.md"
        )
    return StorageError(f"Redis refused an operation on {address.text}: {message}")


def _codes(message: str) -> set[str]:
    # Older servers put the line number in the script before the code, and Redis 6.2 a hyphen.
    return {word.removeprefix("-") for word in message.replace(":", " ").split()}


def _lacks_permission(message: str) -> bool:
    # The last text is the one of Redis 6.2.
    return "NOPERM" in message or "ACL failure" in message or "user executing the script" in message


#: Conditions that may pass, or that another server may not have.
_TEMPORARY: Final = {
    "READONLY": "is a replica, which does not accept writes",
    "MISCONF": "cannot save to disk and refuses writes",
    "NOREPLICAS": "has too few replicas and refuses writes",
    "LOADING": "is loading its data",
    "MASTERDOWN": "has lost its master",
    "CLUSTERDOWN": "is part of a cluster that is down",
    "BUSY": "is running a long script",
    "UNBLOCKED": "has become a replica",
    "FENCED": "has got a later attempt already",
    "MOVED": "has moved these keys to another node",
    "ASK": "is moving these keys to another node",
}
