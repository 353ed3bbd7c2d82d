"""Message entities: commands, links and formatting, parsed as Telegram does.

Offsets and lengths count UTF-16 code units.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

from stepwell.playground.botapi.refusal import Refusal, bad_request

__all__ = ["find_entities", "parse_text"]

Entity = dict[str, Any]

_FOUND = re.compile(
    r"(?P<url>https?://[^\s<>]+)"
    r"|(?P<email>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?<![\w/])(?P<bot_command>/[A-Za-z0-9_]{1,64}(?:@\w{3,32})?)(?![\w/])"
    r"|(?<!\w)(?P<mention>@\w{3,32})"
    r"|(?<!\w)(?P<hashtag>#\w+)"
)
_TAGS = {
    "b": "bold", "strong": "bold", "i": "italic", "em": "italic", "u": "underline", "ins": "underline",
    "s": "strikethrough", "strike": "strikethrough", "del": "strikethrough", "tg-spoiler": "spoiler",
    "span": "spoiler", "code": "code", "pre": "pre", "a": "text_link", "blockquote": "blockquote",
    "tg-emoji": "custom_emoji",
}  # fmt: skip
_MARKS_V2 = {"*": "bold", "_": "italic", "__": "underline", "~": "strikethrough", "||": "spoiler"}
_MARKS = {"*": "bold", "_": "italic"}


def utf16_length(text: str) -> int:
    """Return the length of a text in UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def find_entities(text: str) -> list[Entity]:
    """Return the entities that Telegram finds without formatting."""
    return [
        {"type": str(match.lastgroup), "offset": utf16_length(text[: match.start()]), "length": utf16_length(match[0])}
        for match in _FOUND.finditer(text)
    ]


def parse_text(text: str, mode: str | None) -> tuple[str, list[Entity]]:
    """Parse ``HTML``, ``MarkdownV2`` or ``Markdown``; return the plain text and its entities."""
    if not mode:
        return text, []
    reader = _READERS.get(mode.lower())
    if reader is None:
        raise bad_request("unsupported parse_mode")
    plain, entities = reader(text)
    return plain, sorted(entities, key=lambda entity: (entity["offset"], -entity["length"]))


def _unreadable(why: str) -> Refusal:
    return bad_request(f"can't parse entities: {why}")


class _Html(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.entities: list[Entity] = []
        self.open: list[tuple[str, Entity]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in _TAGS or (tag == "span" and given.get("class") != "tg-spoiler"):
            raise _unreadable(f'Unsupported start tag "{tag}"')
        entity: Entity = {"type": _TAGS[tag], "offset": utf16_length(self.text)}
        if tag == "a":
            entity["url"] = given.get("href") or ""
        elif tag == "tg-emoji":
            entity["custom_emoji_id"] = given.get("emoji-id") or ""
        elif tag == "blockquote" and "expandable" in given:
            entity["type"] = "expandable_blockquote"
        elif tag == "code" and self.open and self.open[-1][0] == "pre":
            # <pre><code class="language-python"> is one entity.
            self.open[-1][1]["language"] = (given.get("class") or "").removeprefix("language-")
        self.open.append((tag, entity))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1][0] != tag:
            expected = self.open[-1][0] if self.open else "none"
            raise _unreadable(f'Unmatched end tag, expected "</{expected}>", found "</{tag}>"')
        _, entity = self.open.pop()
        entity["length"] = utf16_length(self.text) - entity["offset"]
        inside_pre = tag == "code" and self.open and self.open[-1][0] == "pre"
        if entity["length"] and not inside_pre:
            self.entities.append(entity)

    def handle_data(self, data: str) -> None:
        self.text += data


def _html(text: str) -> tuple[str, list[Entity]]:
    reader = _Html()
    try:
        reader.feed(text)
        reader.close()
    except AssertionError as error:
        # HTMLParser asserts on malformed declarations such as <![x.
        raise _unreadable(str(error)) from None
    if reader.open:
        raise _unreadable(f'Can\'t find end tag corresponding to start tag "{reader.open[-1][0]}"')
    return reader.text, reader.entities


def _markdown(text: str, marks: dict[str, str], *, strict: bool) -> tuple[str, list[Entity]]:
    plain, entities, at = "", [], 0
    open_: list[tuple[str, int]] = []
    while at < len(text):
        here = text[at:]
        if here[0] == "\\" and len(here) > 1 and (strict or here[1] in "_*`["):
            plain, at = plain + here[1], at + 2
            continue
        code = re.match(r"```(?:(\w+)\n)?(.*?)```|`([^`]+)`", here, re.DOTALL)
        if code:
            inside = code[3] if code[3] is not None else code[2]
            entity: Entity = {"type": "code" if code[3] is not None else "pre", "offset": utf16_length(plain)}
            entities.append({**entity, "length": utf16_length(inside), **({"language": code[1]} if code[1] else {})})
            plain, at = plain + inside, at + code.end()
            continue
        link = re.match(r"\[((?:[^\]\\]|\\.)*)\]\(([^)]*)\)", here)
        if link:
            inside, inner = _markdown(link[1], marks, strict=strict)
            start = utf16_length(plain)
            entities += [{**each, "offset": each["offset"] + start} for each in inner]
            entities.append({"type": "text_link", "offset": start, "length": utf16_length(inside), "url": link[2]})
            plain, at = plain + inside, at + link.end()
            continue
        mark = next((each for each in ("__", "||", "*", "_", "~") if each in marks and here.startswith(each)), None)
        if mark is None:
            if strict and here[0] in "[]()~`>#+-=|{}.!":
                raise _unreadable(f"Character '{here[0]}' is reserved and must be escaped with the preceding '\\'")
            plain, at = plain + here[0], at + 1
            continue
        at += len(mark)
        if open_ and open_[-1][0] == mark:
            start = open_.pop()[1]
            if utf16_length(plain) > start:
                entities.append({"type": marks[mark], "offset": start, "length": utf16_length(plain) - start})
        else:
            open_.append((mark, utf16_length(plain)))
    if open_:
        last, start = open_[-1]
        raise _unreadable(f"Can't find end of {marks[last].capitalize()} entity at byte offset {start}")
    return plain, entities


_READERS: dict[str, Callable[[str], tuple[str, list[Entity]]]] = {
    "html": _html,
    "markdownv2": lambda text: _markdown(text, _MARKS_V2, strict=True),
    "markdown": lambda text: _markdown(text, _MARKS, strict=False),
}
