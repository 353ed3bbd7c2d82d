"""Ranges of parts: their options, and their place among sorted names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.storage import Range

names = st.text(st.sampled_from("ab\0\U0010ffff"), max_size=3)


@given(
    st.builds(Range, st.none() | names, st.none() | names, st.none() | st.integers(0, 5), st.booleans()), st.sets(names)
)
def test_a_range_selects_the_names_between_its_ends(wanted: Range, found: set[str]) -> None:
    within = sorted(
        name
        for name in found
        if (wanted.first is None or name >= wanted.first) and (wanted.last is None or name <= wanted.last)
    )
    if wanted.limit is not None:
        within = within[-wanted.limit :] if wanted.reverse and wanted.limit else within[: wanted.limit]
    assert sorted(found)[wanted.span(sorted(found))] == within


@pytest.mark.parametrize(
    "options",
    [{"first": 1}, {"last": b"a"}, {"limit": -1}, {"limit": 1.0}, {"limit": True}, {"limit": 1 << 63}],
    ids=str,
)
def test_invalid_ranges_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match="Range"):
        Range(**options)
