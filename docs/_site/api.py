"""A Sphinx extension: the reference of a module, made from its ``__all__``.

A page has a snippet with the language ``{api}`` and the name of a module. It becomes the description of its names.
A name that another page describes becomes a link to that page, so that each name is described once.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import os
from pathlib import Path
from typing import Any

from docutils import nodes
from public import GROUPS, MARK, group_of, homes, names_of, parsers
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

#: What annotations can name.
KINDS = ("class", "exception", "function", "data")
#: It becomes the help of all commands.
COMMANDS = "```{commands}\n```\n"
#: The environment of the build, and the names in it.
_names: dict[str, Any] = {}


def described(module: str, page: str, level: str, where: dict[int, tuple[str, str, str]]) -> str:
    """Return the description of a module as Markdown, with headings of a level."""
    groups: dict[str, list[str]] = {group: [] for group in GROUPS}
    elsewhere: list[str] = []
    for name in names_of(module):
        value = getattr(importlib.import_module(module), name)
        home = where[id(value)]
        if home[:2] != (page, module):
            elsewhere.append(f"{{py:obj}}`{name} <{home[1]}.{home[2]}>`")
            continue
        groups[group_of(value)].append(f"```{{eval-rst}}\n{directive(module, name, value)}```\n")
    parts = [f"{level} {group}\n\n" + "\n".join(found) for group, found in groups.items() if found]
    if len(parts) == 1:
        parts = [parts[0].partition("\n\n")[2]]
    if elsewhere:
        parts.append(f"{level} Described elsewhere\n\n" + ", ".join(elsewhere) + "\n")
    return "\n".join(parts)


def directive(module: str, name: str, value: object) -> str:
    """Return the directive of autodoc for one name."""
    head = f".. currentmodule:: {module}\n\n.. highlight:: python\n\n"
    if inspect.ismodule(value):
        return f"{head}.. automodule:: {value.__name__}\n   :no-index:\n"
    if inspect.isbuiltin(value) and value.__module__ and not value.__module__.startswith("stepwell"):
        # Its docstring has the markup of the other package.
        package = value.__module__.partition(".")[0]
        return f"{head}.. py:function:: {name}(...)\n\n   The function ``{value.__qualname__}`` of {package}.\n"
    if not inspect.isclass(value):
        kind = "autofunction" if inspect.isroutine(value) else "autodata"
        return f"{head}.. {kind}:: {name}\n"
    kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
    # Members of the classes of other packages, such as those of Exception, are described there.
    foreign = {base.__name__ for base in value.__mro__ if not base.__module__.startswith("stepwell")}
    options = ["members:", f"inherited-members: {', '.join(sorted(foreign))}", "show-inheritance:"]
    return f"{head}.. {kind}:: {name}\n" + "".join(f"   :{option}\n" for option in options)


def source(app: Sphinx, docname: str, text: list[str]) -> None:
    """Put the descriptions of modules into a page of the reference."""
    if docname.startswith("reference/") and MARK.search(text[0]):
        folder = Path(app.srcdir) / "reference"
        where = homes(folder)
        level = "###" if "\n## " in text[0] else "##"
        text[0] = MARK.sub(lambda match: described(match[1], docname.partition("/")[2], level, where), text[0])


def commands(app: Sphinx, docname: str, text: list[str]) -> None:
    """Put the help of all commands into a page."""
    if COMMANDS in text[0]:
        os.environ["COLUMNS"] = "84"
        found = [f"## {name}\n\n```text\n{parser.format_help()}```\n" for name, parser in parsers().items()]
        text[0] = text[0].replace(COMMANDS, "\n".join(found))


def skipped(app: Sphinx, what: str, name: str, *_: object) -> bool | None:
    """Leave out the tests of the contract."""
    return True if name.startswith("test_") or name == "pytestmark" else None


def undocumented(app: Sphinx, what: str, name: str, *others: Any) -> None:
    """Leave out the docstrings that Python gives to the fields of a named tuple."""
    lines: list[str] = others[-1]
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def resolved(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Node) -> nodes.Node | None:
    """Find the page of a class by its name: annotations name the module that defines it, the reference another."""
    if node.get("refdomain") != "py":
        return None
    domain = env.domains["py"]
    # A method is named with its class, as in NodeFlow.submit.
    parts = 2 if node["reftype"] in ("meth", "attr") else 1
    found = _by_name(env).get(".".join(node["reftarget"].removeprefix("~").split(".")[-parts:]))
    if found is None:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", found, node, content)


def _by_name(env: BuildEnvironment) -> dict[str, str]:
    """Return the full names of the described objects by their last part or two; the first wins."""
    if _names.get("of") is not env:
        _names["of"], _names["names"] = env, {}
        for full, entry in env.domains["py"].objects.items():
            name = full.rpartition(".")[2]
            # Attributes have names such as type, which annotations use for the builtin.
            if entry.objtype in KINDS and not hasattr(builtins, name):
                _names["names"].setdefault(name, full)
            _names["names"].setdefault(".".join(full.split(".")[-2:]), full)
    return _names["names"]


def shortened(app: Sphinx, env: BuildEnvironment) -> None:
    """Leave methods out of the contents of pages: the sidebar of each page is made from all of them."""
    for contents in env.tocs.values():
        for entry in contents.findall(nodes.list_item):
            link = next(entry.findall(nodes.reference), None)
            if link is not None and link.get("anchorname", "").startswith("#stepwell."):
                entry[:] = entry[:1]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("source-read", source, priority=400)
    app.connect("source-read", commands, priority=400)
    app.connect("autodoc-skip-member", skipped)
    app.connect("autodoc-process-docstring", undocumented)
    app.connect("missing-reference", resolved)
    app.connect("env-updated", shortened)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
