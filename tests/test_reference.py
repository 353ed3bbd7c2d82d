"""The reference describes every public name, and every public function has a docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from stepwell.fsm import events as fsm_events
from stepwell.fsm.keys import KeyStrategy
from stepwell.nodes.walk.execution import EventKind
from stepwell.storage import urls
from stepwell.storage.postgres import storage as postgres
from stepwell.storage.redis import storage as redis
from stepwell.storage.sqlite import storage as sqlite
from tests.docs.page import ROOT
from tests.test_public_names import NAMES

sys.path.append(str(ROOT / "docs" / "_site"))
import public

REFERENCE = ROOT / "docs" / "reference"
MODULES = sorted({module for page in REFERENCE.glob("*.md") for module in public.modules_of(page)})


def test_the_reference_has_every_public_module() -> None:
    adapters = {f"stepwell.adapters.{path.stem}" for path in (ROOT / "src/stepwell/adapters").iterdir()}
    adapters = {name for name in adapters if hasattr(importlib.import_module(name), "__all__")}
    internal = {f"stepwell.adapters.{name}" for name in ("aiogram_records", "framework", "imports")}
    assert sorted({*NAMES, *adapters, "stepwell.fsm.keys"} - {*MODULES, *internal}) == []


def test_the_index_lists_every_page_of_the_reference() -> None:
    index = (REFERENCE / "index.md").read_text()
    assert [
        page.name for page in REFERENCE.glob("*.md") if page.stem != "index" and f"({page.name})" not in index
    ] == []


def functions(value: type) -> Iterator[tuple[str, object]]:
    """Yield the public methods and properties that a class and its bases in this package define."""
    bases = [base for base in value.__mro__ if base.__module__.startswith("stepwell")]
    for name, member in {name: member for base in reversed(bases) for name, member in vars(base).items()}.items():
        if not name.startswith(("_", "test_")):
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function) or isinstance(member, property):
                yield name, getattr(value, name)


@pytest.mark.parametrize("module", [module for module in MODULES if module != "stepwell.pocketflow"])
def test_every_public_name_and_method_has_a_docstring(module: str) -> None:
    missing = []
    for name in public.names_of(module):
        value = getattr(importlib.import_module(module), name)
        if (inspect.isclass(value) or inspect.isroutine(value)) and not value.__doc__:
            missing.append(name)
        if inspect.isclass(value) and value.__module__.startswith("stepwell"):
            # The methods of strategies are described by their protocol and in docs/keys.md.
            strategy = module == "stepwell.fsm.keys" and value is not KeyStrategy
            known = {"extract", "parts", "tags", "moved"} if strategy else set()
            missing += [
                f"{name}.{method}"
                for method, function in functions(value)
                if not inspect.getdoc(function) and method not in known
            ]
    assert missing == []


#: Errors that the index of the reference explains.
EXPLAINED = {"InvalidOption", "Unsupported", "NotImplementedError", "AssertionError"}


def raised(function: Callable[..., object]) -> set[str]:
    """Return the names of the errors that a function raises itself."""
    found: set[str] = set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    caught = {
        name.id
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler) and handler.type is not None
        for name in ast.walk(handler.type)
        if isinstance(name, ast.Name) and name.id in {"ValueError", "RecursionError"}
    }
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.Raise):
                error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                found |= {error.id} if isinstance(error, ast.Name) and error.id[0].isupper() else set()
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                waiting.append(node)
    return found - caught


def test_every_public_function_names_the_errors_that_it_raises() -> None:
    missing = []
    for _, module, name in public.homes(REFERENCE).values():
        value = getattr(importlib.import_module(module), name)
        if public.group_of(value) == "Values" or not value.__module__.startswith("stepwell"):
            continue
        members = functions(value) if inspect.isclass(value) else [(name, value)]
        for method, member in members:
            function = inspect.unwrap(member.fget if isinstance(member, property) else member)
            # An overridden method without a docstring is described by the one that it overrides.
            doc = function.__doc__
            errors = raised(function) - EXPLAINED if doc else ()
            missing += [f"{name}.{method}: {error}" for error in errors if error not in doc]
    assert missing == []


def test_the_page_of_the_command_line_has_every_command_with_its_options() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    parsers = public.parsers()
    assert len(parsers) > 20
    pages = page + "".join((ROOT / "docs" / name).read_text() for name in ("running.md", "playground.md", "sealed.md"))
    assert [name for name in parsers if f"stepwell {name}" not in pages] == []
    known = {option for parser in parsers.values() for option in parser._option_string_actions}
    assert sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page)) - known) == []


def test_the_page_of_events_has_every_event() -> None:
    page = (REFERENCE / "events.md").read_text()
    unions = [kind for union in get_args(EventKind) for kind in get_args(union)]
    of_conversations = [name for name, value in vars(fsm_events).items() if inspect.isclass(value) and is_event(value)]
    assert [name for name in [*unions, *of_conversations] if f"`{name}`" not in page] == []
    assert len(unions) > 10


def is_event(value: type) -> bool:
    return issubclass(value, fsm_events.FSMEvent) and value is not fsm_events.FSMEvent


def test_the_page_of_urls_has_every_scheme_and_option() -> None:
    page = (REFERENCE / "urls.md").read_text()
    assert [scheme for scheme in urls._OURS if f"`{scheme}:/" not in page] == []
    options = {*sqlite._URL_OPTIONS, *redis.URL_OPTIONS, *postgres.URL_OPTIONS}
    assert [option for option in options if f"`{option}`" not in page] == []


def test_each_object_has_one_home() -> None:
    homes = public.homes(REFERENCE)
    assert len(homes) > 200
    assert {home[0] for home in homes.values()} <= {page.stem for page in REFERENCE.glob("*.md")}


def test_a_page_is_found_by_its_mark(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# Page\n\n```{api} stepwell.log\n```\n")
    assert public.modules_of(tmp_path / "page.md") == ["stepwell.log"]
    assert {home[2] for home in public.homes(tmp_path).values()} == {"Log", "LogEntry"}
