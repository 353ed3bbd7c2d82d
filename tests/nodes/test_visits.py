"""Visit counts as a short text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepwell.nodes.run.table import packed, unpack


def test_equal_neighbours_share_one_entry_and_trailing_zeros_are_left_out() -> None:
    assert packed([1, 1, 1, 2, 0, 0]) == "1x3,2"
    assert packed([0, 0]) == ""
    assert unpack("1x3,2", 6) == [1, 1, 1, 2]
    assert unpack("", 6) == []


@given(st.lists(st.integers(0, 3), max_size=40))
def test_packed_counts_can_be_unpacked(counts: list[int]) -> None:
    unpacked = unpack(packed(counts), len(counts))
    assert unpacked + [0] * (len(counts) - len(unpacked)) == counts
