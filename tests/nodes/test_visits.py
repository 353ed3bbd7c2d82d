"""Visit counts as they are stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepwell.nodes.run.table import packed, unpacked


def test_equal_neighbours_share_one_entry_and_trailing_zeros_are_left_out() -> None:
    assert packed([1, 1, 1, 2, 0, 0]) == [[1, 3], [2, 1]]
    assert packed([0, 0]) == []
    assert unpacked([[1, 3], [2, 1]], 6) == [1, 1, 1, 2]
    assert unpacked([], 6) == []


@given(st.lists(st.integers(0, 3), max_size=40))
def test_packed_counts_can_be_unpacked(counts: list[int]) -> None:
    found = unpacked(packed(counts), len(counts))
    assert found + [0] * (len(counts) - len(found)) == counts
