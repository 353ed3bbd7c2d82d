"""The tree of the architecture page: one line for each package, from its docstring. ``python -m tests.docs.tree``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.docs.page import ROOT

PAGE = ROOT / "docs" / "architecture.md"
SOURCES = ROOT / "src" / "stepwell"
#: The widest name, and the longest line: the tree must fit on one screen.
NAME, LINE = 24, 118

_BLOCK = re.compile(r"(?<=## The tree\n\n```text\n).*?(?=```\n)", re.DOTALL)


def lines() -> Iterator[str]:
    """Yield the line of each package, of each room in one, and of each module beside them."""
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES)
        if len(name.parts) == 1 and not name.name.startswith("__"):
            yield _line(str(name), path.read_text())
        elif name.name == "__init__.py" and 1 < len(name.parts) <= 3:
            depth = len(name.parts) - 2
            yield "  " * depth + _line(f"{name.parent.name}/", path.read_text(), 2 * depth)


def _line(name: str, code: str, indent: int = 0) -> str:
    said = (ast.get_docstring(ast.parse(code)) or "").partition("\n")[0].replace("``", "")
    return f"{name:{NAME - indent}}{said.removesuffix('.')}"


def shown() -> str:
    """Return the tree that the page shows."""
    found = _BLOCK.search(PAGE.read_text())
    assert found is not None, f"{PAGE} has no tree"
    return found[0]


def tree() -> str:
    """Return the tree of the present packages."""
    return "".join(f"{line}\n" for line in lines())


if __name__ == "__main__":
    PAGE.write_text(_BLOCK.sub(lambda _: tree(), PAGE.read_text(), count=1))
