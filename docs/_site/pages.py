"""A Sphinx extension: makes pages that are written for GitHub right for the site too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

#: The first line of a snippet that is a file: the language and title="bot.py".
TITLED = re.compile(r"^```(\w+) title=\"([^\"]+)\"$", re.MULTILINE)
#: The first line of a snippet with words for tests/test_docs.py after its language.
MARKED = re.compile(r"^```(\w+) run$", re.MULTILINE)
#: A pattern in a toctree.
GLOB = re.compile(r"^\S+\*\n", re.MULTILINE)
#: A link to a folder or a file outside docs/.
OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)\)")


def source(app: Sphinx, docname: str, text: list[str]) -> None:
    """Give snippets their captions, and leave out patterns of sections without pages and links to folders."""
    page = Path(app.srcdir) / docname

    def linked(match: re.Match[str]) -> str:
        target = (page.parent / match[2]).resolve()
        return match[1] if target.is_dir() else match[0]

    def matched(match: re.Match[str]) -> str:
        return match[0] if any(page.parent.glob(match[0].strip() + ".md")) else ""

    found = TITLED.sub(r"```{code-block} \1\n:caption: \2\n", text[0])
    found = MARKED.sub(r"```\1", found)
    found = GLOB.sub(matched, found)
    text[0] = OUTSIDE.sub(linked, found)


def finished(app: Sphinx, error: Exception | None) -> None:
    """Copy llms.txt to the root of the site, with links to its pages."""
    if error is None and app.builder.name == "html":
        text = (Path(app.srcdir) / "llms.txt").read_text()
        (Path(app.outdir) / "llms.txt").write_text(re.sub(r"\.md\)", ".html)", text))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("source-read", source)
    app.connect("build-finished", finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
