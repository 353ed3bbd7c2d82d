from __future__ import annotations

import textwrap
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples import file_storage
from stepwell import Limits, MemoryStorage, State, open_storage
from stepwell.errors import InvalidOption, MissingExtra, UnknownScheme


def test_a_url_makes_the_storage_of_its_scheme() -> None:
    assert isinstance(open_storage("memory://"), MemoryStorage)
    assert isinstance(open_storage("MEMORY://", sweep_every=None), MemoryStorage)


def test_an_unknown_scheme_is_an_error_that_lists_the_known_ones() -> None:
    for url in ("mongodb://localhost", "bot.db", ""):
        with pytest.raises(UnknownScheme, match="memory"):
            open_storage(url)
    with pytest.raises(UnknownScheme, match=r"has no scheme; write it like sqlite:///bot\.db; supported are"):
        open_storage("bot.db")


def test_an_unknown_option_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(InvalidOption, match=r"MemoryStorage has no option tll; it has clock"):
        open_storage("memory://", tll=3)
    with pytest.raises(InvalidOption, match="sweep_every"):
        open_storage("memory://", sweep_every=0)


def test_a_third_party_backend_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "mine"

        def load(self) -> Any:
            return MemoryStorage

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Point()] if group == "stepwell.storage" else [])
    assert isinstance(open_storage("mine://somewhere"), MemoryStorage)
    with pytest.raises(UnknownScheme, match="mine"):
        open_storage("other://somewhere")


def test_a_backend_with_arbitrary_options_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Open(MemoryStorage):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)

    class Point:
        name = "open"

        def load(self) -> Any:
            return Open

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Point()])
    assert isinstance(open_storage("open://", sweep_every=None), Open)


def test_an_unknown_option_of_a_backend_that_passes_them_on_is_the_same_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _install(monkeypatch, "files", "examples.file_storage:FileStorage")
    with pytest.raises(InvalidOption, match=r"^FileStorage has no option ttl; it has clock, ids, limits$"):
        open_storage(f"files:///{tmp_path}", ttl=3)
    with pytest.raises(InvalidOption, match=r"^Plain has no option ids; it has "):
        _install(monkeypatch, "plain", f"{__name__}:Plain")
        open_storage("plain://", ids=str)


def test_a_type_error_of_the_backend_itself_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, "careless", f"{__name__}:Careless")
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        open_storage("careless://", sweep_every=None)


class Plain(MemoryStorage):
    @classmethod
    def from_url(cls, url: str) -> Plain:  # type: ignore[override]
        return cls()


class Careless(MemoryStorage):
    @classmethod
    def from_url(cls, url: str, **options: Any) -> Careless:
        return cls(colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("tests.storage.test_urls:Missing", "AttributeError"),
        ("no_such_module:Storage", "ModuleNotFoundError"),
        ("tests.storage.test_urls:_install", "not a subclass of Storage"),
    ],
)
@pytest.mark.parametrize("package", ["broken-package", None])
def test_an_entry_point_that_cannot_be_loaded_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, value: str, why: str, package: str | None
) -> None:
    _install(monkeypatch, "broken", value, package)
    with pytest.raises(InvalidOption, match=f"{package or 'a package'} names {value} in .*'stepwell.storage' .*{why}"):
        open_storage("broken://somewhere")


def test_a_backend_without_its_driver_raises_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "driverless"

        def load(self) -> Any:
            raise MissingExtra("driver", "extra")

    monkeypatch.setattr(metadata, "entry_points", lambda group: [Point()])
    with pytest.raises(MissingExtra):
        open_storage("driverless://")


async def test_the_entry_point_of_the_example_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = textwrap.dedent(file_storage.__doc__.partition("::\n\n")[2])  # type: ignore[union-attr]
    ((name, value),) = tomllib.loads(shown)["project"]["entry-points"]["stepwell.storage"].items()
    _install(monkeypatch, name, f"examples.{value}")
    monkeypatch.chdir(tmp_path)
    for url, folder in ((f"files:///{tmp_path}/a%20b", tmp_path / "a b"), ("files:///state", tmp_path / "state")):
        async with open_storage(url) as storage:
            await storage.set_state("bot", 1, State("f", "s"))
        assert len(list(folder.iterdir())) == 1
    for url in ("files://state", "files:///", "files:///state?ttl=3"):
        with pytest.raises(InvalidOption, match="files:///state"):
            open_storage(url)


def _install(monkeypatch: pytest.MonkeyPatch, name: str, value: str, package: str | None = None) -> None:
    """Add an entry point, as an installed package would."""
    point = metadata.EntryPoint(name, value, "stepwell.storage")
    if package is not None:
        vars(point).update(dist=SimpleNamespace(name=package))
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == "stepwell.storage" else [])


def test_an_invalid_url_is_an_error_that_shows_an_example() -> None:
    with pytest.raises(InvalidOption, match=r"sqlite:///bot\.db"):
        open_storage(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["memory://x", "memory://?sweep_every=3", "memory:x"])
def test_a_memory_url_takes_no_path_or_query(url: str) -> None:
    with pytest.raises(InvalidOption, match="memory://"):
        open_storage(url)


def test_limits_are_whole_numbers() -> None:
    for wrong in (0, -1, "x", 1.5, True):
        with pytest.raises(ValueError, match="record"):
            Limits(record=wrong)  # type: ignore[arg-type]
