"""The local links of a page."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FENCED = re.compile(r"^( *)(```+|~~~+).*?^ *\2`*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(.+?)\1")
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def without_code(text: str) -> str:
    """Return the text of a page without its fenced blocks."""
    return FENCED.sub("", text)


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of the headings of a page."""
    seen: Counter[str] = Counter()
    found = set()
    for match in HEADING.finditer(without_code(page.read_text())):
        name = slug(match[1])
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)


def links(text: str) -> Iterator[str]:
    """Yield the local links of a page."""
    plain = CODE.sub("code", without_code(text))
    for match in LINK.finditer(plain):
        if not re.match(r"[a-z]+:", match[1]):
            yield match[1]


def broken(page: Path) -> list[str]:
    """Return the local links of a page that lead nowhere."""
    found = []
    for link in links(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found
