"""Merging of values that two processes changed: a change of each side is kept if they do not concern the same thing."""

from __future__ import annotations

from typing import Any, Final

from stepwell.engine import packed

__all__ = ["MISSING", "merge", "replace"]

#: There is no such value.
MISSING: Final = object()


def merge(base: Any, mine: Any, theirs: Any) -> Any:
    """Return ``theirs`` with the changes from ``base`` to ``mine``.

    Dicts are merged by key, at all depths, and sets by member. If both sides changed another value, ``mine`` is
    returned.
    """
    if _same(mine, base):
        return theirs
    if _same(theirs, base):
        return mine
    if type(mine) is dict and type(theirs) is dict:
        old = base if type(base) is dict else {}
        keys = [*theirs, *(key for key in mine if key not in theirs)]
        values = {key: merge(*(side.get(key, MISSING) for side in (old, mine, theirs))) for key in keys}
        return {key: value for key, value in values.items() if value is not MISSING}
    if type(mine) is set and type(theirs) is set:
        old_members: set[Any] = base if type(base) is set else set()
        return (theirs - (old_members - mine)) | (mine - old_members)
    # A change wins over a deletion.
    return theirs if mine is MISSING else mine


def replace(value: Any, new: Any) -> Any:
    """Return ``new``; if both are dicts, lists or sets, change ``value`` to it and return that.

    A running handler may have a reference to the value or to a part of it.
    """
    if type(value) is not type(new) or type(new) not in (dict, list, set):
        return new
    if type(new) is dict:
        kept = {key: replace(value[key], item) if key in value else item for key, item in new.items()}
        value.clear()
        value.update(kept)
    elif type(new) is list:
        value[:] = new
    else:
        value.clear()
        value.update(new)
    return value


def _same(one: Any, other: Any) -> bool:
    if one is other or type(one) is not type(other):
        return one is other
    # Telegram's objects are equal if their ids are, so they are compared by what is stored.
    if type(one) is dict:
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(packed(one) == packed(other))
