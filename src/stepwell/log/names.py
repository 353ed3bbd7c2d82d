"""The names of entries, which are parts of the record of a log, and the tags of the record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stepwell.record import Range, ReservedNamespace

__all__ = ["LAST", "entries", "log_tag", "name_of", "names_of", "number_of"]

#: Digits of a number. Names with the same number of digits are in the order of their numbers.
_DIGITS = 16
#: Greater than every character that may follow a number.
_END = "~"
#: Greater than the names of all entries. Other parts of the same record, as of a turn, begin with a letter.
_BEHIND = ":"
#: The last entry.
LAST: Final = Range(last=_BEHIND, limit=1, reverse=True)


def name_of(number: int) -> str:
    """Return the name of an entry that is not the first one of its write."""
    return f"{number:0{_DIGITS}}"


def names_of(first: int, count: int, write: str) -> Iterable[str]:
    """Return the names of the entries of a write.

    The first one has the id of the write, by which a writer finds out whether the write was applied.
    """
    yield f"{name_of(first)}-{write}"
    yield from map(name_of, range(first + 1, first + count))


def number_of(name: str) -> int:
    """Return the number of an entry."""
    return int(name[:_DIGITS])


def entries(after: int, before: int | None = None, *, limit: int | None = None, reverse: bool = False) -> Range:
    """Return the range of the entries with a number above ``after`` and below ``before``."""
    last = _BEHIND if before is None else name_of(max(before - 1, 0)) + _END
    return Range(name_of(after + 1) if after > 0 else None, last, limit, reverse)


def log_tag(namespace: str, tag: str) -> str:
    """Return the stored form of a tag. All logs have one index, so it has the name of the bot too.

    Example::

        from stepwell.engine import log_tag

        assert log_tag("my_bot", "user:42") == "user:42 my_bot"
    """
    return tag if isinstance(namespace, ReservedNamespace) else f"{tag} {namespace}"
