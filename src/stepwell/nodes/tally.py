"""Counts as a short text: a run of four hundred nodes must not write four hundred numbers per node."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

__all__ = ["pack", "unpack"]


def pack(counts: Iterable[int]) -> str:
    """``[1, 1, 1, 2, 0, 0]`` is ``"1x3,2"``: equal neighbours together, without the zeros at the end."""
    runs = [(count, len(list(group))) for count, group in groupby(counts)]
    if runs and runs[-1][0] == 0:
        runs.pop()
    return ",".join(f"{count}x{times}" if times > 1 else str(count) for count, times in runs)


def unpack(text: str) -> list[int]:
    """The counts back, without the zeros at the end."""
    counts: list[int] = []
    for part in text.split(",") if text else ():
        count, _, times = part.partition("x")
        counts.extend([int(count)] * int(times or 1))
    return counts
