"""The public names of the package, and the pages of the reference that describe them."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from pathlib import Path

MARK = re.compile(r"^```\{api\} ([\w.]+)\n```$", re.MULTILINE)
#: Names of a module that are public and not in its __all__.
MORE = {"stepwell": ["PostgresStorage", "RedisStorage"]}
#: The headings in a page.
GROUPS = ("Classes", "Functions", "Values", "Errors")


def names_of(module: str) -> list[str]:
    """Return the public names of a module."""
    found = importlib.import_module(module)
    return [name for name in [*found.__all__, *MORE.get(module, [])] if name != "__version__"]


def modules_of(page: Path) -> list[str]:
    """Return the modules that a page describes."""
    return MARK.findall(page.read_text())


def homes(folder: Path) -> dict[int, tuple[str, str, str]]:
    """Return the page, module and name under which each public object is described, by the identity of the object."""
    found: dict[int, tuple[str, str, str]] = {}
    pages = sorted(folder.glob("*.md"), key=lambda page: (page.stem not in ("errors", "stepwell"), page.stem))
    for page in pages:
        for module in modules_of(page):
            for name in names_of(module):
                value = getattr(importlib.import_module(module), name)
                found.setdefault(id(value), (page.stem, module, name))
    return found


def group_of(value: object) -> str:
    """Return the heading under which a name is described."""
    if inspect.isclass(value):
        return "Errors" if issubclass(value, BaseException) else "Classes"
    # The encoder and the decoder of JSON are methods of another library, without a module.
    return "Functions" if inspect.isroutine(value) and value.__module__ else "Values"


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of all commands by the names of the commands."""
    from stepwell.cli import _parser

    (commands,) = [each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(commands.choices)
