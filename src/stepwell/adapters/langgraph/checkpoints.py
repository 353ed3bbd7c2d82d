"""The compact form of a checkpoint without its values, for checkpoints that JSON represents exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata

__all__ = ["is_small", "packed", "unpacked"]

_INT64: Final = 1 << 63
#: Longer strings have a part of their own, so that a constant one is not written with each checkpoint.
_SHORT: Final = 64
#: The keys of a checkpoint.
_KEYS: Final = frozenset({"v", "id", "ts", "channel_values", "channel_versions", "versions_seen", "updated_channels"})
_TEXTS: Final = frozenset({str})
#: Stands for the channels with the newest version.
_NEWEST: Final = 1
_EXACT: Final = frozenset({str, bool, type(None)})


def packed(checkpoint: Checkpoint, metadata: CheckpointMetadata) -> list[Any] | None:
    """Return a checkpoint without its id and values; ``None`` if JSON does not represent it and its metadata exactly.

    Each version is stored once, and referred to by its index.
    """
    if checkpoint.keys() != _KEYS:
        return None
    versions: Any = checkpoint["channel_versions"]
    seen: Any = checkpoint["versions_seen"]
    updated, ts = checkpoint["updated_channels"], checkpoint["ts"]
    if not (type(checkpoint["v"]) is int and isinstance(versions, dict) and (updated is None or type(updated) is list)):
        return None
    texts = [ts, *versions, *versions.values(), *seen]
    if updated:
        texts += updated
    for its in seen.values():
        if not isinstance(its, dict):
            return None
        texts += its
        texts += its.values()
    if not _TEXTS.issuperset(map(type, texts)):
        return None
    for value in metadata.values():
        if type(value) is not str and not _is_exact(value):
            return None
    table: dict[Any, int] = {}
    indexes: dict[str, int] = {}
    seen_indexes: dict[str, dict[str, int]] = {}
    for channel, version in versions.items():
        indexes[channel] = table.setdefault(version, len(table))
    for node, its in seen.items():
        seen_indexes[node] = node_indexes = {}
        for channel, version in its.items():
            node_indexes[channel] = table.setdefault(version, len(table))
    changed = _NEWEST if updated == _newest(versions) else updated
    return [checkpoint["v"], ts, [*table], indexes, seen_indexes, changed]


def unpacked(row: Sequence[Any]) -> dict[str, Any]:
    """Return what ``packed`` was given."""
    v, ts, table, versions, seen, updated = row
    versions = {channel: table[each] for channel, each in versions.items()}
    return {
        "v": v,
        "ts": ts,
        "channel_versions": versions,
        "versions_seen": {node: {channel: table[each] for channel, each in its.items()} for node, its in seen.items()},
        "updated_channels": _newest(versions) if updated == _NEWEST else updated,
    }


def _newest(versions: Mapping[str, Any]) -> list[str]:
    """Return the channels with the newest version, which are usually those that the last step has changed."""
    last = max(versions.values(), default=None)
    newest = []
    for channel, version in versions.items():
        if version == last:
            newest.append(channel)
    newest.sort()
    return newest


def _is_exact(value: Any) -> bool:
    if type(value) is int:
        return bool(-_INT64 <= value < _INT64)
    if isinstance(value, dict):
        return _TEXTS.issuperset(map(type, value)) and _TEXTS.issuperset(map(type, value.values()))
    return type(value) in _EXACT or is_small(value)


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
