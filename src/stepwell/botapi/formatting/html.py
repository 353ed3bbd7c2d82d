"""The formatting of HTML, parsed as Telegram does."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stepwell.botapi.errors import Refusal
from stepwell.botapi.formatting.entities import Entity, byte_offset, date_time, unreadable, utf16_length

__all__ = ["parse_html"]

_TAGS = {
    "b": "bold", "strong": "bold", "i": "italic", "em": "italic", "u": "underline", "ins": "underline",
    "s": "strikethrough", "strike": "strikethrough", "del": "strikethrough", "tg-spoiler": "spoiler",
    "span": "spoiler", "code": "code", "pre": "pre", "a": "text_link", "blockquote": "blockquote",
    "tg-emoji": "custom_emoji", "tg-time": "date_time",
}  # fmt: skip
_PLAIN = re.compile(r"[^<&]+")
_NAME = re.compile(r"[^\s>]*")
_SPACE = re.compile(r"\s*")
_ATTRIBUTE = re.compile(r"[^\s=>]*")
_TOKEN = re.compile(r"[A-Za-z0-9.-]*")
#: The only named entities that Telegram knows; others stay as they are.
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}
_ENTITY = re.compile(r"&(?:#x([0-9a-fA-F]{1,6})|#([0-9]{1,7})|(lt|gt|amp|quot)(?![A-Za-z]));?")


@dataclass(slots=True)
class _Open:
    """A tag without its end tag."""

    tag: str
    #: Where it starts in the plain text, in UTF-16 units.
    start: int
    #: The number of parts of the plain text before it.
    parts: int
    given: dict[str, str] = field(default_factory=dict)


def parse_html(text: str) -> tuple[str, list[Entity]]:
    """Return the plain text and its entities."""
    return _Html(text).parse()


class _Html:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.plain: list[str] = []
        self.size = 0
        self.open: list[_Open] = []
        self.entities: list[Entity] = []

    def parse(self) -> tuple[str, list[Entity]]:
        while self.at < len(self.text):
            if plain := _PLAIN.match(self.text, self.at):
                self._add(plain[0])
                self.at = plain.end()
            elif self.text[self.at] == "&":
                self._entity()
            elif self.text.startswith("</", self.at):
                self._end_tag()
            else:
                self._start_tag()
        if self.open:
            raise unreadable(f'Can\'t find end tag corresponding to start tag "{self.open[-1].tag}"')
        return "".join(self.plain), self.entities

    def _add(self, text: str) -> None:
        self.plain.append(text)
        self.size += utf16_length(text)

    def _entity(self) -> None:
        found = _ENTITY.match(self.text, self.at)
        self._add(_decoded(found) if found else "&")
        self.at = found.end() if found else self.at + 1

    def _start_tag(self) -> None:
        begin = self.at
        name = _matched(_NAME, self.text, begin + 1)
        self.at = name.end()
        if self.at >= len(self.text):
            raise self._refused("Unclosed start tag", begin)
        tag = name[0].lower()
        if tag not in _TAGS:
            raise self._refused(f'Unsupported start tag "{tag}"', begin)
        given: dict[str, str] = {}
        while self.text[self.at] != ">":
            self._attribute(tag, begin, given)
        self.at += 1
        if tag == "span" and given.get("class") != "tg-spoiler":
            raise self._refused('Tag "span" must have class "tg-spoiler"', begin)
        self.open.append(_Open(tag, self.size, len(self.plain), given))

    def _attribute(self, tag: str, begin: int, given: dict[str, str]) -> None:
        """Read an attribute, and the spaces around it."""
        unclosed = self._refused(f'Unclosed start tag "{tag}"', begin)
        self._skip(unclosed)
        if self.text[self.at] == ">":
            return
        name = _matched(_ATTRIBUTE, self.text, self.at)
        if not name[0]:
            raise self._refused(f'Empty attribute name in the tag "{tag}"', begin)
        self.at = name.end()
        self._skip(unclosed)
        if self.text[self.at] != "=":
            # An attribute without a value, such as <blockquote expandable>.
            given[name[0]] = ""
            return
        self.at += 1
        self._skip(unclosed)
        quote = self.text[self.at]
        if quote in "\"'":
            end = self.text.find(quote, self.at + 1)
            if end < 0:
                raise unclosed
            given[name[0]] = _ENTITY.sub(_decoded, self.text[self.at + 1 : end])
            self.at = end + 1
        else:
            token = _matched(_TOKEN, self.text, self.at)
            end = token.end()
            if end < len(self.text) and self.text[end] != ">" and not self.text[end].isspace():
                raise self._refused("Unexpected end of name token", self.at)
            given[name[0]] = token[0].lower()
            self.at = end
        if self.at >= len(self.text):
            raise unclosed

    def _skip(self, unclosed: Refusal) -> None:
        self.at = _matched(_SPACE, self.text, self.at).end()
        if self.at >= len(self.text):
            raise unclosed

    def _end_tag(self) -> None:
        begin = self.at
        if not self.open:
            raise self._refused("Unexpected end tag", begin)
        name = _matched(_NAME, self.text, begin + 2)
        end = _matched(_SPACE, self.text, name.end()).end()
        if not self.text.startswith(">", end):
            raise self._refused("Unclosed end tag", begin)
        tag, opened = name[0].lower(), self.open[-1]
        if tag and tag != opened.tag:
            where = byte_offset(self.text, begin)
            raise unreadable(f'Unmatched end tag at byte offset {where}, expected "</{opened.tag}>", found "</{tag}>"')
        self.open.pop()
        self.at = end + 1
        if self.size > opened.start:
            self._mark(opened)

    def _mark(self, opened: _Open) -> None:
        """Add the entity of a tag that has ended."""
        given = opened.given
        entity: Entity = {"type": _TAGS[opened.tag], "offset": opened.start, "length": self.size - opened.start}
        outer = self.open[-1] if self.open else None
        if opened.tag == "a":
            # Without an address, the text is the address.
            entity["url"] = given.get("href") or "".join(self.plain[opened.parts :])
        elif opened.tag == "tg-emoji":
            if not given.get("emoji-id", "").isdigit():
                raise unreadable("Invalid custom emoji identifier specified")
            entity["custom_emoji_id"] = given["emoji-id"]
        elif opened.tag == "tg-time":
            entity |= date_time(given.get("unix", ""), given.get("format", ""))
        elif opened.tag == "blockquote" and "expandable" in given:
            entity["type"] = "expandable_blockquote"
        elif opened.tag == "code" and outer is not None and outer.tag == "pre":
            # <pre><code class="language-python"> is one entity.
            language = given.get("class", "")
            if outer.start == opened.start and language.startswith("language-"):
                outer.given["language"] = language.removeprefix("language-")
            return
        elif opened.tag == "pre" and given.get("language"):
            entity["language"] = given["language"]
        self.entities.append(entity)

    def _refused(self, why: str, at: int) -> Refusal:
        return unreadable(f"{why} at byte offset {byte_offset(self.text, at)}")


def _matched(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    assert found is not None
    return found


def _decoded(found: re.Match[str]) -> str:
    if found[3]:
        return _NAMED[found[3]]
    code = int(found[1], 16) if found[1] else int(found[2])
    return chr(code) if 0 < code < 0x10FFFF and not 0xD800 <= code <= 0xDFFF else found[0]
