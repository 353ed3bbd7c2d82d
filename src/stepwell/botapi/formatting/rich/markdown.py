"""The Markdown of rich messages: GitHub's, as HTML, with the marks that only Telegram has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

__all__ = ["rich_markdown_to_html"]

#: Their number in a paragraph must be even, or they are text.
_PAIRS = {"==": "mark", "||": "tg-spoiler"}
_MATH = re.compile(r"(?<![\w$])\$(?=[^\s$])([^$\n]*[^\s$])\$(?![\w$])")
_BOX = re.compile(r"\[([ xX])\] ")
_MATH_BLOCK = re.compile(r"\s*\$\$(.+?)\$\$\s*", re.DOTALL)


def rich_markdown_to_html(text: str) -> str:
    """Return a text in Markdown as the HTML of a rich message."""
    reader = _reader()
    tokens = reader.parse(text)
    for at, token in enumerate(tokens):
        if token.type == "inline":
            math = _MATH_BLOCK.fullmatch(token.content)
            if math is not None:
                token.children = [_html(token, f"<tg-math-block>{_escaped(math[1])}</tg-math-block>")]
                continue
            _mark_box(token, in_item=at > 1 and tokens[at - 2].type == "list_item_open")
            _mark_pairs(token)
            _mark_math(token)
        elif token.type == "fence" and token.info.strip() == "math":
            token.type, token.content = "html_block", f"<tg-math-block>{_escaped(token.content)}</tg-math-block>\n"
    html: str = reader.renderer.render(tokens, reader.options, {})
    return html


@cache
def _reader() -> Any:
    # Imported on use: only rich messages in Markdown need it.
    from stepwell.botapi.formatting.rich.package import MarkdownIt

    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def _mark_box(token: Any, *, in_item: bool) -> None:
    """Turn ``[x]`` at the start of a list item into a checkbox."""
    first: Any = token.children[0] if token.children else None
    if not in_item or first is None or first.type != "text":
        return
    box = _BOX.match(first.content)
    if box is not None:
        first.content = first.content[box.end() :]
        checked = "" if box[1] == " " else " checked"
        token.children.insert(0, _html(token, f'<input type="checkbox"{checked}>'))


def _mark_pairs(token: Any) -> None:
    for mark, tag in _PAIRS.items():
        found = sum(child.content.count(mark) for child in token.children if child.type == "text")
        if found and found % 2 == 0:
            tags = iter([f"<{tag}>", f"</{tag}>"] * (found // 2))
            _split(token, re.compile(re.escape(mark)), tags)


def _mark_math(token: Any) -> None:
    texts = [child.content for child in token.children if child.type == "text"]
    found = [match[1] for text in texts for match in _MATH.finditer(text)]
    _split(token, _MATH, iter([f"<tg-math>{_escaped(each)}</tg-math>" for each in found]))


def _split(token: Any, pattern: re.Pattern[str], html: Iterator[str]) -> None:
    """Replace each match in the texts of a paragraph with the next piece of HTML."""
    children: list[Any] = []
    for child in token.children:
        if child.type != "text":
            children.append(child)
            continue
        at = 0
        for found in pattern.finditer(child.content):
            children += [child.copy(content=child.content[at : found.start()]), _html(token, next(html))]
            at = found.end()
        children.append(child.copy(content=child.content[at:]))
    token.children = children


def _html(token: Any, content: str) -> Any:
    return type(token)("html_inline", "", 0, content=content)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
