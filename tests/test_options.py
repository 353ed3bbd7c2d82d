"""The checks of arguments refuse what is no valid value, without showing secrets."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from stepwell.errors import InvalidOption
from stepwell.options import (
    check,
    check_choice,
    check_function,
    check_instance,
    check_not_async,
    check_number,
    check_text,
    check_whole,
)


async def coroutine_function() -> None:
    pass


class Called:
    async def __call__(self) -> None:
        pass


CASES: list[tuple[Callable[[Any], None], list[Any], list[Any]]] = [
    (lambda given: check_number(given, "{}", above=0), [1, 0.5, inf], [0, -1, nan, True, "1", None]),
    (lambda given: check_number(given, "{}", least=0, optional=True), [0, 1.5, None], [-0.1, nan, "0", [1]]),
    (lambda given: check_number(given, "{}", finite=True), [-1, 1e300], [inf, -inf, nan]),
    (lambda given: check_whole(given, "{}", least=1, most=3), [1, 3], [0, 4, 1.0, True, "1", None]),
    (lambda given: check_whole(given, "{}", optional=True), [None, -5], [1.5, False]),
    (lambda given: check_choice(given, ("a", None), "{}"), ["a", None], ["b", 1, ["a"], {}]),
    (lambda given: check_text(given, "{}"), ["a"], ["", b"a", None, 1]),
    (lambda given: check_text(given, "{}", optional=True), [None, "a"], [""]),
    (lambda given: check_function(given, "{}"), [print, str, lambda: 1], [None, 1]),
    (lambda given: check_instance(given, int | str, "{}"), [1, "a"], [None, 1.5]),
    (lambda given: check_not_async(given, "{}"), [print, str, None], [coroutine_function, Called()]),
]


@pytest.mark.parametrize(("checked", "right", "wrong"), CASES)
def test_a_check_accepts_right_values_and_refuses_wrong_ones(
    checked: Callable[[Any], None], right: list[Any], wrong: list[Any]
) -> None:
    for given in right:
        checked(given)
    for given in wrong:
        with pytest.raises(InvalidOption):
            checked(given)


def test_the_message_has_the_value_or_its_type_and_no_secret() -> None:
    with pytest.raises(InvalidOption, match=r"^limit=5: give \{\"a\": 1\}, not int$"):
        check(False, 'limit={}: give {"a": 1}, not {type}', 5)
    with pytest.raises(InvalidOption, match=r"^got <str of \d+ characters>$"):
        check(False, "got {}", "postgresql://user:secret@server/db")
