"""Counts with a short text: a run of four hundred nodes must not write four hundred numbers per node."""

from __future__ import annotations

__all__ = ["Tally", "unpack"]


class Tally:
    """Counts that only grow, and their text, of which only what comes after a change is made again.

    ``[1, 1, 1, 2, 0, 0]`` is ``"1x3,2"``: equal neighbours together, without the zeros at the end.
    """

    def __init__(self, length: int) -> None:
        self._counts = [0] * length
        #: Each count and how often it is repeated, up to ``_known``; what comes after has changed, or is zero.
        self._runs: list[tuple[int, int]] = []
        self._known = 0
        #: Behind the last count that is not zero.
        self._end = 0

    def __getitem__(self, index: int) -> int:
        return self._counts[index]

    def __setitem__(self, index: int, count: int) -> None:
        assert count > 0
        self._counts[index] = count
        self._end = max(self._end, index + 1)
        runs = self._runs
        while self._known > index:
            known, times = runs.pop()
            self._known -= times
            if self._known < index:
                runs.append((known, index - self._known))
                self._known = index

    def copy(self) -> list[int]:
        """The counts."""
        return self._counts.copy()

    @property
    def text(self) -> str:
        """The counts as a text."""
        runs = self._runs
        for count in self._counts[self._known : self._end]:
            if runs and runs[-1][0] == count:
                runs[-1] = count, runs[-1][1] + 1
            else:
                runs.append((count, 1))
        self._known = self._end
        return ",".join([f"{count}x{times}" if times > 1 else str(count) for count, times in runs])


def unpack(text: str, length: int) -> list[int]:
    """The counts of a text, without the zeros at the end; ``ValueError`` if it is no text of so many counts."""
    counts: list[int] = []
    for part in text.split(",") if text else ():
        count, repeated, times = part.partition("x")
        repeat = int(times) if repeated else 1
        if not 0 < repeat <= length - len(counts) or int(count) < 0:
            raise ValueError("not a tally of this length")
        counts.extend([int(count)] * repeat)
    return counts
