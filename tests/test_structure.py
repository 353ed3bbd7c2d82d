"""The structure of the package: no cycles of imports, not even for types, and one class for each name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import stepwell

SOURCE = Path(stepwell.__file__).parent

#: Names that two classes have, both of them public.
SAME_NAMES = {"Chat"}

#: The most modules of a folder.
MOST_MODULES = 15


@cache
def modules() -> dict[str, ast.Module]:
    """Return the modules of Stepwell by their names, without the name of Stepwell."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts).removesuffix("__init__").removesuffix(".")] = ast.parse(path.read_text())
    return found


def imports(tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    """Yield the modules of Stepwell that a module imports, also for types and in functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "stepwell":
            base = (node.module or "").removeprefix("stepwell").removeprefix(".")
            for name in node.names:
                inner = f"{base}.{name.name}".removeprefix(".")
                yield inner if inner in known else base


def in_cycles(edges: dict[str, set[str]]) -> set[str]:
    """Return the nodes from which a path leads back to themselves."""
    reached = {node: set(targets) for node, targets in edges.items()}
    grown = True
    while grown:
        grown = False
        for targets in reached.values():
            more = set().union(*(reached[target] for target in targets)) - targets
            grown = grown or bool(more)
            targets |= more
    return {node for node, targets in reached.items() if node in targets}


def cycles_of(package: str, known: dict[str, ast.Module]) -> set[str]:
    """Return the modules of a package that are in cycles of imports, by their names in the package."""
    inside = {name for name in known if name == package or name.startswith(f"{package}.")}
    edges = {name: {each for each in imports(known[name], known) if each in inside} - {name} for name in inside}
    return {name.removeprefix(package).removeprefix(".") for name in in_cycles(edges)}


def test_no_package_has_a_cycle_of_imports_not_even_for_types() -> None:
    known = modules()
    packages = sorted({name.partition(".")[0] for name in known if "." in name})
    assert "nodes" in packages
    found = {each: cycles_of(each, known) for each in packages}
    assert {each: cycle for each, cycle in found.items() if cycle} == {}


def test_the_test_above_finds_a_cycle_of_types() -> None:
    one = "if TYPE_CHECKING:\n    from stepwell.nodes.b import B"
    two = "from stepwell.nodes import c"
    three = "def f():\n    from stepwell.nodes.a import A"
    known = {f"nodes.{name}": ast.parse(text) for name, text in {"a": one, "b": two, "c": three, "d": one}.items()}
    assert cycles_of("nodes", known) == {"a", "b", "c"}


def test_each_class_has_a_name_of_its_own() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for home, tree in modules().items():
        # The local Bot API imports nothing else of Stepwell, and pocketflow has the names of PocketFlow.
        if home != "pocketflow" and home.partition(".")[0] != "botapi":
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    homes[node.name].add(home)
    assert {name: found for name, found in homes.items() if len(found) > 1 and name not in SAME_NAMES} == {}


def test_no_folder_has_many_modules() -> None:
    folders = [SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir())]
    counts = {each: len([path for path in each.glob("*.py") if path.stem != "__init__"]) for each in folders}
    assert {str(each): count for each, count in counts.items() if count > MOST_MODULES} == {}
