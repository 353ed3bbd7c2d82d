from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from stepwell import Limits, MemoryStorage, open_storage
from stepwell.errors import InvalidOption, UnknownScheme


def test_a_url_makes_the_storage_of_its_scheme() -> None:
    assert isinstance(open_storage("memory://"), MemoryStorage)
    assert isinstance(open_storage("MEMORY://", sweep_every=None), MemoryStorage)


def test_an_unknown_scheme_is_an_error_that_lists_the_known_ones() -> None:
    for url in ("mongodb://localhost", "bot.db", ""):
        with pytest.raises(UnknownScheme, match="memory"):
            open_storage(url)


def test_an_unknown_option_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(InvalidOption, match=r"MemoryStorage has no option tll; it has clock"):
        open_storage("memory://", tll=3)
    with pytest.raises(InvalidOption, match="sweep_every"):
        open_storage("memory://", sweep_every=0)


def test_a_third_party_backend_joins_through_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "mine"

        def load(self) -> Any:
            return MemoryStorage

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Point()] if group == "stepwell.storage" else [])
    assert isinstance(open_storage("mine://somewhere"), MemoryStorage)
    with pytest.raises(UnknownScheme, match="mine"):
        open_storage("other://somewhere")


def test_a_backend_that_takes_any_option_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Open(MemoryStorage):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)

    class Point:
        name = "open"

        def load(self) -> Any:
            return Open

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Point()])
    assert isinstance(open_storage("open://", sweep_every=None), Open)


def test_what_is_no_url_is_an_error_that_shows_one() -> None:
    with pytest.raises(InvalidOption, match=r"sqlite:///bot\.db"):
        open_storage(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["memory://x", "memory://?sweep_every=3", "memory:x"])
def test_memory_is_told_nothing_by_its_url(url: str) -> None:
    with pytest.raises(InvalidOption, match="memory://"):
        open_storage(url)


def test_limits_are_whole_numbers() -> None:
    for wrong in (0, -1, "x", 1.5, True):
        with pytest.raises(ValueError, match="record"):
            Limits(record=wrong)  # type: ignore[arg-type]
