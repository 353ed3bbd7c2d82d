"""The times in ``Extension.entered_at``: when the present state and the states of the history were entered.

They are one text, newest first: the time in whole seconds since 1970, then the seconds back to each earlier one. Adding
a time is a text operation that costs the same for 1 and for 16 states.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["HISTORY", "entry_times", "packed_times", "with_entry"]

#: How many previous states a record keeps, for ``back()`` and for operators.
HISTORY = 16


def with_entry(entered_at: str, now: float) -> str:
    """Return the times after another state was entered; ``entered_at`` is empty if no earlier time is known."""
    at = int(now)
    last, _, rest = entered_at.partition(" ")
    if not last.isdecimal():
        return str(at)
    text = f"{at} {at - int(last)} {rest}" if rest else f"{at} {at - int(last)}"
    return text if text.count(" ") <= HISTORY else text[: text.rindex(" ")]


def entry_times(entered_at: str, count: int) -> list[float | None]:
    """Return the times of the last ``count`` states, the newest last; ``None`` where a time is not known."""
    times: list[float | None] = []
    try:
        parts = [int(part) for part in entered_at.split()][:count]
    except ValueError:
        parts = []
    at = 0
    for part in parts:
        at = at - part if times else part
        times.append(float(at))
    return [None] * (count - len(times)) + times[::-1]


def packed_times(times: Sequence[float | None]) -> str:
    """Return times, the newest last, as one text. Times before an unknown one are left out."""
    text = ""
    known = list(times)
    while known and None in known:
        known.pop(0)
    for at in known:
        assert at is not None
        text = with_entry(text, at)
    return text
