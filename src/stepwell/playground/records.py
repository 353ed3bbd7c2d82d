"""The records that the page shows, with their path and the changes of the last write."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Records", "Shown"]

#: The most records that are kept; older ones are looked up again when needed.
MAX_RECORDS = 200


@dataclass(slots=True)
class Shown:
    """One record with its history."""

    record: dict[str, Any] | None
    #: The changes of the last write: ``flow``, ``state``, ``deadline``; below, the names of changed data fields.
    changed: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    #: Its states in order; kept when the record is deleted.
    path: list[str] = field(default_factory=list)
    #: The flow of the path.
    flow: str | None = None
    #: The number of writes seen.
    writes: int = 0
    #: The record as it is stored, ``{}`` for no record. It is not sent to the page.
    snapshot: dict[str, Any] = field(default_factory=dict)
    #: Whether the bot's present process has reported it, so that its version can be compared. It is not sent either.
    is_current: bool = True


class Records:
    """The reported records, by bot and key."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], Shown] = {}

    def get(self, bot: str, key: str) -> Shown | None:
        """Return the record that the page shows; ``None`` if it is not known."""
        return self._shown.get((bot, key))

    def found(self, bot: str, key: str, record: dict[str, Any] | None, snapshot: dict[str, Any]) -> None:
        """Add a record that was read, without marking changes. A version older than the known one is ignored."""
        known = self._shown.get((bot, key))
        if known is not None and known.record == record:
            known.is_current = True
        elif known is None or not (known.is_current and _is_older(record, known.record)):
            self._keep(bot, key, _moved(Shown(record, snapshot=snapshot), known))

    def written(self, bot: str, key: str, record: dict[str, Any] | None, snapshot: dict[str, Any]) -> Shown:
        """Add a record that was written, and mark what changed."""
        known = self._shown.get((bot, key), Shown(None))
        new = _moved(Shown(record, snapshot=snapshot), known)
        before, after = known.record or {}, record or {}
        new.changed = [name for name in ("flow", "state", "deadline") if before.get(name) != after.get(name)]
        data, was = after.get("data", {}), before.get("data", {})
        new.fields = [
            name for name in {**was, **data} if name not in was or name not in data or was[name] != data[name]
        ]
        new.writes = known.writes + 1
        self._keep(bot, key, new)
        return new

    def unmark(self, bot: str, key: str) -> None:
        """Unmark the changes of the last write, because another update is handled."""
        known = self._shown.get((bot, key))
        if known is not None:
            known.changed, known.fields = [], []

    def forget_versions(self) -> None:
        """Let the next version of each record replace the known one, also an older version."""
        for known in self._shown.values():
            known.is_current = False

    def json(self) -> dict[str, Any]:
        """Return all records for the page, by ``bot`` and ``key``."""
        return {f"{bot}\n{key}": _json(each) for (bot, key), each in self._shown.items()}

    def _keep(self, bot: str, key: str, new: Shown) -> None:
        self._shown.pop((bot, key), None)
        self._shown[bot, key] = new
        while len(self._shown) > MAX_RECORDS:
            del self._shown[next(iter(self._shown))]


def _json(shown: Shown) -> dict[str, Any]:
    return {name: value for name, value in asdict(shown).items() if name not in ("snapshot", "is_current")}


def _is_older(record: dict[str, Any] | None, known: dict[str, Any] | None) -> bool:
    """Return whether a record was read before the known one; ``False`` if one of them is deleted or has no version."""
    number, known_number = _number(record), _number(known)
    return number is not None and known_number is not None and number < known_number


def _number(record: dict[str, Any] | None) -> int | None:
    """Return the number of a version; ``None`` if there is none, as in a damaged record."""
    number, _, write = ("" if record is None else str(record["version"])).partition(".")
    return int(number) if write and number.isdecimal() else None


def _moved(new: Shown, known: Shown | None) -> Shown:
    record = new.record
    if record is None:
        if known is not None:
            new.path, new.flow, new.writes = known.path, known.flow, known.writes
        return new
    new.flow = record["flow"]
    new.path = [*record["history"], *([record["state"]] if record["state"] is not None else [])]
    return new
