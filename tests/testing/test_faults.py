from __future__ import annotations

from typing import Any

import pytest

from stepwell.errors import InvalidOption
from stepwell.testing import FaultyStorage


@pytest.mark.parametrize("name", ["before", "after"])
@pytest.mark.parametrize("value", [3, None, "3", [0], [-1], [1.5], [True], ["3"]], ids=repr)
def test_invalid_batch_numbers_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=rf"{name} takes numbers of batches, counted from 1, as in {name}=\[3\]"):
        FaultyStorage(**{name: value})


@pytest.mark.parametrize("value", [-1, float("nan"), "3", None])
def test_an_invalid_patience_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match="patience must be a number of seconds, got"):
        FaultyStorage(patience=value)


@pytest.mark.parametrize("value", [(), [3], {1, 2}, range(1, 100), {3: "why"}], ids=repr)
def test_any_collection_of_numbers_is_accepted(value: Any) -> None:
    FaultyStorage(before=value, after=value, patience=0)
