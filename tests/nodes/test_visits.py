"""Counts as a short text."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from stepwell.nodes.engine.run_format import VisitCounts, unpack


def packed(counts: list[int]) -> str:
    """The same text, made from all counts at once."""
    runs = [(count, len(list(same))) for count, same in groupby(counts)]
    if runs and runs[-1][0] == 0:
        runs.pop()
    return ",".join(f"{count}x{times}" if times > 1 else str(count) for count, times in runs)


def test_equal_neighbours_are_together_and_zeros_at_the_end_left_out() -> None:
    tally = VisitCounts(6)
    assert tally.text == ""
    for index, count in enumerate([1, 1, 1, 2]):
        tally[index] = count
    assert tally.text == "1x3,2"
    assert unpack("1x3,2", 6) == [1, 1, 1, 2]
    assert unpack("", 6) == []


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 3), st.booleans()), max_size=40))
def test_the_text_is_that_of_the_counts_whatever_changes_between_two_looks(
    changes: list[tuple[int, int, bool]],
) -> None:
    tally, counts = VisitCounts(8), [0] * 8
    for index, count, look in changes:
        tally[index] = counts[index] = count
        assert tally[index] == count
        if look:
            assert tally.text == packed(counts)
    assert tally.text == packed(counts)
    assert tally.copy() == counts
    unpacked = unpack(tally.text, 8)
    assert unpacked == counts[: len(unpacked)]
