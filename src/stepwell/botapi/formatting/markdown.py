"""The formatting of MarkdownV2 and of the older Markdown, parsed as Telegram does."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from stepwell.botapi.errors import Refusal
from stepwell.botapi.formatting.entities import Entity, byte_offset, date_time, unreadable, utf16_length

__all__ = ["parse_markdown", "parse_markdown_v2"]

_MARKS = {"__": "underline", "||": "spoiler", "*": "bold", "_": "italic", "~": "strikethrough"}
#: For error messages.
_NAMES = {"text_link": "TextUrl", "custom_emoji": "CustomEmoji", "blockquote": "BlockQuote", "pre": "PreCode"}
_RESERVED = "_*[]()~`>#+-=|{}.!"
#: Characters without a meaning. A line end may end a quote.
_PLAIN = re.compile(rf"([^\\\n{re.escape(_RESERVED)}]+)")
_ESCAPED = re.compile(r"\\([\x01-\x7e])")
_PLAIN_V1 = re.compile(r"[^\\_*`\[]+")
_CODE = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
_CODE_BLOCK = re.compile(r"```((?:[^`\\]|\\.|`(?!``))*)```", re.DOTALL)
_URL = re.compile(r"\(((?:[^)\\]|\\.)*)\)", re.DOTALL)
#: The end of the last line of a quote, with the mark of an expandable one.
_LAST_LINE = re.compile(r"(\|\|)?(?:\n(?!>)|\Z)")
_LANGUAGE = re.compile(r"(?:([^\s`]+)(?=\s))?\n?")
#: A text that is a link by itself, as in ``[example.org]``.
_LINK = re.compile(r"\w+://\S+|[\w-]+\.\w\S*")
_EMOJI = re.compile(r"tg://emoji\?id=(\d+)")
_TIME = re.compile(r"tg://time\?unix=(\d+)(?:&format=(\w*))?")


class _Opened(NamedTuple):
    kind: str
    #: Where it starts in the plain text, in UTF-16 units.
    start: int
    #: Where it starts in the source.
    at: int
    #: The number of parts of the plain text before it.
    parts: int = 0


class _Plain:
    """The plain text so far and its entities."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.size = 0
        self.entities: list[Entity] = []

    def add(self, text: str) -> None:
        self.parts.append(text)
        self.size += utf16_length(text)

    def mark(self, kind: str, start: int, **fields: Any) -> None:
        """Add an entity from ``start`` to the end of the text; an empty one is left out."""
        if self.size > start:
            self.entities.append({"type": kind, "offset": start, "length": self.size - start, **fields})

    def add_code(self, inside: str, *, block: bool) -> None:
        start = self.size
        language = None
        if block:
            head = _LANGUAGE.match(inside)
            assert head is not None
            language, inside = head[1], inside[head.end() :]
        self.add(inside)
        self.mark("pre" if block else "code", start, **({"language": language} if language else {}))

    def result(self) -> tuple[str, list[Entity]]:
        return "".join(self.parts), self.entities


def parse_markdown(text: str) -> tuple[str, list[Entity]]:
    """Parse the older Markdown, which has no nested entities."""
    plain, at = _Plain(), 0
    while at < len(text):
        run = _PLAIN_V1.match(text, at)
        if run:
            plain.add(run[0])
            at = run.end()
            continue
        char = text[at]
        if char == "\\" and text[at + 1 : at + 2] in ("_", "*", "`", "["):
            plain.add(text[at + 1])
            at += 2
            continue
        if char == "\\":
            plain.add(char)
            at += 1
            continue
        mark = "```" if text.startswith("```", at) else char
        begin = at + len(mark)
        end = text.find("]" if char == "[" else mark, begin)
        if end < 0:
            raise unreadable(f"Can't find end of the entity starting at byte offset {byte_offset(text, at)}")
        inside, at = text[begin:end], end + len(mark)
        if char == "`":
            plain.add_code(inside, block=mark == "```")
            continue
        start, url = plain.size, inside
        plain.add(inside)
        if char != "[":
            plain.mark(_MARKS[char], start)
            continue
        if text[at : at + 1] == "(":
            end = text.find(")", at)
            end = len(text) if end < 0 else end
            url, at = text[at + 1 : end], end + 1
        if _LINK.fullmatch(url):
            plain.mark("text_link", start, url=url)
    return plain.result()


def parse_markdown_v2(text: str) -> tuple[str, list[Entity]]:
    """Parse MarkdownV2."""
    return _V2(text).parse()


class _V2:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.plain = _Plain()
        self.open: list[_Opened] = []
        #: Whether a block quote is open.
        self.quoted = False

    def parse(self) -> tuple[str, list[Entity]]:
        while self.at < len(self.text):
            plain = _PLAIN.match(self.text, self.at) or _ESCAPED.match(self.text, self.at)
            if plain:
                self.plain.add(plain[1])
                self.at = plain.end()
            elif not (self._quote() or self._code() or self._link() or self._mark()):
                self._character()
        if self._inside() == "blockquote":
            self._close("blockquote")
        if self.open:
            raise self._endless(self.open[-1])
        return self.plain.result()

    def _quote(self) -> bool:
        """Start a block quote, or continue one; end it before a line without ``>``."""
        text, at = self.text, self.at
        if text[at] == ">" and self._at_line_start():
            self.at += 1
            if not self.quoted:
                self.quoted = True
                self._start("blockquote", at)
            return True
        if not self.quoted:
            return False
        last = _LAST_LINE.match(text, at)
        if last is None or (last[1] and self._inside() != "blockquote"):
            return False
        if self._inside() != "blockquote":
            raise self._endless(self.open[-1])
        self.quoted = False
        # The mark || at the end of the last line makes the quote expandable.
        self._close("expandable_blockquote" if last[1] else "blockquote")
        self.plain.add(text[at + len(last[1] or "") : last.end()])
        self.at = last.end()
        return True

    def _at_line_start(self) -> bool:
        line = self.text[self.text.rfind("\n", 0, self.at) + 1 : self.at]
        # An empty bold entity separates two quotes.
        return line in ("", "**")

    def _code(self) -> bool:
        if self.text[self.at] != "`":
            return False
        block = self.text.startswith("```", self.at)
        code = (_CODE_BLOCK if block else _CODE).match(self.text, self.at)
        if code is None:
            raise self._endless(_Opened("pre" if block else "code", 0, self.at))
        self.plain.add_code(_ESCAPED.sub(r"\1", code[1]), block=block)
        self.at = code.end()
        return True

    def _link(self) -> bool:
        text, at = self.text, self.at
        if text[at] == "[" or text.startswith("![", at):
            self._start("text_link" if text[at] == "[" else "custom_emoji", at)
            self.at += 1 if text[at] == "[" else 2
            return True
        if text[at] != "]" or self._inside() not in ("text_link", "custom_emoji"):
            return False
        url = _URL.match(text, at + 1)
        if url is None and text[at + 1 : at + 2] == "(":
            raise unreadable(f"Can't find end of a URL at byte offset {byte_offset(text, at + 2)}")
        if self._inside() == "custom_emoji":
            target = _ESCAPED.sub(r"\1", url[1]) if url else ""
            emoji, moment = _EMOJI.fullmatch(target), _TIME.fullmatch(target)
            if moment is not None:
                self._close("date_time", **date_time(moment[1], moment[2] or ""))
            elif emoji is None:
                raise unreadable("Custom emoji entity must contain a tg://emoji URL")
            else:
                self._close("custom_emoji", custom_emoji_id=emoji[1])
        else:
            address = _ESCAPED.sub(r"\1", url[1]) if url else "".join(self.plain.parts[self.open[-1].parts :])
            if _LINK.fullmatch(address):
                self._close("text_link", url=address)
            else:
                self.open.pop()
        self.at = url.end() if url else at + 1
        return True

    def _mark(self) -> bool:
        mark = next((each for each in _MARKS if self.text.startswith(each, self.at)), None)
        if mark is None:
            return False
        if self._inside() == _MARKS[mark]:
            self._close(_MARKS[mark])
        else:
            self._start(_MARKS[mark], self.at)
        self.at += len(mark)
        return True

    def _character(self) -> None:
        char = self.text[self.at]
        if char in _RESERVED:
            raise unreadable(f"Character '{char}' is reserved and must be escaped with the preceding '\\'")
        self.plain.add(char)
        self.at += 1

    def _inside(self) -> str | None:
        return self.open[-1].kind if self.open else None

    def _start(self, kind: str, at: int) -> None:
        self.open.append(_Opened(kind, self.plain.size, at, len(self.plain.parts)))

    def _close(self, kind: str, **fields: Any) -> None:
        self.plain.mark(kind, self.open.pop().start, **fields)

    def _endless(self, opened: _Opened) -> Refusal:
        name = _NAMES.get(opened.kind, opened.kind.capitalize())
        return unreadable(f"Can't find end of {name} entity at byte offset {byte_offset(self.text, opened.at)}")
