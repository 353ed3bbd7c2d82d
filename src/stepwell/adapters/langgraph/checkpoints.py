"""The compact form of a checkpoint without its values, for checkpoints that JSON represents exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata

__all__ = ["is_plain", "is_small", "packed", "unpacked"]

_INT64: Final = 1 << 63
#: Longer strings have a part of their own, so that a constant one is not written with each checkpoint.
_SHORT: Final = 64
#: The keys of a checkpoint.
_KEYS: Final = frozenset({"v", "id", "ts", "channel_values", "channel_versions", "versions_seen", "updated_channels"})
_TEXTS: Final = frozenset({str})
#: Stands for the channels with the newest version.
_NEWEST: Final = 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_EXACT: Final = frozenset({str, bool, type(None)})


def is_plain(checkpoint: Checkpoint, metadata: CheckpointMetadata) -> bool:
    """Return whether JSON represents a checkpoint without its values exactly."""
    if checkpoint.keys() != _KEYS:
        return False
    seen, updated = checkpoint["versions_seen"], checkpoint["updated_channels"]
    return (
        type(checkpoint["v"]) is int
        and type(checkpoint["ts"]) is str
        and (updated is None or (type(updated) is list and _TEXTS.issuperset(map(type, updated))))
        and _has_texts(checkpoint["channel_versions"])
        and _TEXTS.issuperset(map(type, seen))
        and all(map(_has_texts, seen.values()))
        and all(map(_is_exact, metadata.values()))
    )


def packed(checkpoint: Checkpoint) -> list[Any]:
    """Return a checkpoint without its id and values. Each version is stored once, and referred to by its index."""
    table: dict[Any, int] = {}
    versions = {channel: table.setdefault(each, len(table)) for channel, each in checkpoint["channel_versions"].items()}
    seen = {
        node: {channel: table.setdefault(each, len(table)) for channel, each in its.items()}
        for node, its in checkpoint["versions_seen"].items()
    }
    ts, updated = checkpoint["ts"], checkpoint["updated_channels"]
    micros = _micros(ts)
    return [
        checkpoint["v"],
        micros if _time(micros) == ts else ts,
        [*table],
        versions,
        seen,
        _NEWEST if updated == _newest(checkpoint["channel_versions"]) else updated,
    ]


def unpacked(row: Sequence[Any]) -> dict[str, Any]:
    """Return what ``packed`` was given."""
    v, ts, table, versions, seen, updated = row
    versions = {channel: table[each] for channel, each in versions.items()}
    return {
        "v": v,
        "ts": _time(ts) if type(ts) is int else ts,
        "channel_versions": versions,
        "versions_seen": {node: {channel: table[each] for channel, each in its.items()} for node, its in seen.items()},
        "updated_channels": _newest(versions) if updated == _NEWEST else updated,
    }


def _newest(versions: Mapping[str, Any]) -> list[str]:
    """Return the channels with the newest version, which are usually those that the last step has changed."""
    last = max(versions.values(), default=None)
    return sorted([channel for channel, version in versions.items() if version == last])


def _micros(ts: str) -> int:
    """Return the microseconds since 1970 of a time, or 0 if it is none."""
    try:
        return (datetime.fromisoformat(ts) - _EPOCH) // _MICROSECOND
    except (ValueError, TypeError):
        return 0


def _time(micros: int) -> str:
    return (_EPOCH + micros * _MICROSECOND).isoformat()


def _has_texts(value: Any) -> bool:
    """Return whether this is a dict of texts."""
    if not isinstance(value, dict):
        return False
    return _TEXTS.issuperset(map(type, value)) and _TEXTS.issuperset(map(type, value.values()))


def _is_exact(value: Any) -> bool:
    return type(value) in _EXACT or is_small(value) or _has_texts(value)


def is_small(value: Any) -> bool:
    """Return whether JSON represents a value exactly, and shorter than a part of its own."""
    kind = type(value)
    if value is None or kind is bool:
        return True
    if kind is str:
        return bool(len(value) <= _SHORT and value.isascii())
    if kind is int:
        return bool(-_INT64 <= value < _INT64)
    return kind is float and math.isfinite(value)
