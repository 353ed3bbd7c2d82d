"""Splits a text and its entities into pieces of limited length. Lengths and offsets count UTF-16 code units."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

__all__ = ["MAX_CAPTION", "MAX_TEXT", "Entity", "FormattedText", "cut_entities", "split", "units"]

#: A message entity as the Bot API describes it: a dict with ``type``, ``offset`` and ``length``.
Entity: TypeAlias = dict[str, Any]

#: The most units of a message and of a caption.
MAX_TEXT, MAX_CAPTION = 4096, 1024
#: Entities that stay what they are when they are cut in two. Half a mention or half an emoji is something else.
_DIVISIBLE = frozenset({
    "bold", "italic", "underline", "strikethrough", "spoiler", "blockquote", "expandable_blockquote", "code", "pre",
    "text_link", "text_mention",
})  # fmt: skip
#: Where a text is cut, best first. A break in the first half of a piece is used only if there is no other.
_PARAGRAPH, _LINE, _WORD = re.compile(r"\n[^\S\n]*\n\s*"), re.compile(r"\n"), re.compile(r"\s")
#: Characters that belong to the one before them, and the one that joins two.
_JOINER, _SELECTORS, _SKIN_TONES = "\u200d", ("\ufe0e", "\ufe0f", "\u20e3"), ("\U0001f3fb", "\U0001f3ff")
#: The most characters of one emoji.
_LONGEST_EMOJI = 16


class FormattedText(NamedTuple):
    """A text without markup, and its entities."""

    text: str
    entities: list[Entity]


def units(text: str) -> int:
    """Return the length of a text in UTF-16 code units, as Telegram counts."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def split(
    text: str, entities: Iterable[Entity] = (), *, limit: int = MAX_TEXT, first: int | None = None
) -> list[FormattedText]:
    """Split a text into pieces of at most ``limit`` units, the first one of at most ``first``.

    The pieces joined are the text. It is cut after a paragraph, else after a line, else after a word, and outside of
    code if possible. An entity over a cut is closed before it and opened again after it.
    """
    listed = sorted(entities, key=lambda each: (each["offset"], -each["length"]))
    pieces: list[FormattedText] = []
    start, rest, most = 0, text, limit if first is None else first
    while units(rest) > most:
        here = cut_entities(listed, start, start + 2 * most)
        head = rest[: _cut(rest, here, most)]
        size = units(head)
        pieces.append(FormattedText(head, cut_entities(listed, start, start + size)))
        start, rest, most = start + size, rest[len(head) :], limit
    pieces.append(FormattedText(rest, cut_entities(listed, start, start + units(rest))))
    return pieces


def cut_entities(entities: Iterable[Entity], start: int, end: int) -> list[Entity]:
    """Return the entities between two offsets, as far as they are there, with offsets from the first one."""
    cut: list[Entity] = []
    for each in entities:
        begin, stop = max(each["offset"], start), min(each["offset"] + each["length"], end)
        whole = (begin, stop) == (each["offset"], each["offset"] + each["length"])
        if begin < stop and (whole or each.get("type") in _DIVISIBLE):
            cut.append({**each, "offset": begin - start, "length": stop - begin})
    return cut


def _cut(text: str, entities: list[Entity], most: int) -> int:
    """Return how many characters the first piece has."""
    end = _characters(text, most)
    start = _Start(text[: end + 1], end, entities)
    for least in (max(end // 2, 1), 1):
        found = (
            start.last(_PARAGRAPH, least, outside_code=True)
            or start.last(_LINE, least, outside_code=True)
            or start.last_code(least)
            or start.last(_LINE, least)
            or start.last(_WORD, least)
        )
        if found:
            return found
    return start.within_a_word()


def _characters(text: str, most: int) -> int:
    """Return how many characters have at most this many units."""
    encoded = text[:most].encode("utf-16-le", "surrogatepass")
    if len(encoded) <= 2 * most:
        return len(text[:most])
    encoded = encoded[: 2 * most]
    if 0xD8 <= encoded[-1] <= 0xDB:
        # The first half of a character.
        encoded = encoded[:-2]
    return len(encoded.decode("utf-16-le", "surrogatepass"))


class _Start:
    """The start of a text, with the character after it, and where it must not be cut."""

    def __init__(self, text: str, end: int, entities: list[Entity]) -> None:
        self._text = text
        self._end = end
        self._code: list[tuple[int, int]] = []
        #: Entities that are not cut.
        self._whole: list[tuple[int, int]] = []
        encoded = b"" if text.isascii() else text.encode("utf-16-le", "surrogatepass")

        def index(offset: int) -> int:
            return len(encoded[: 2 * offset].decode("utf-16-le", "replace")) if encoded else offset

        for each in entities:
            kind = each.get("type")
            if kind == "pre" or kind not in _DIVISIBLE:
                span = (index(each["offset"]), index(each["offset"] + each["length"]))
                (self._code if kind == "pre" else self._whole).append(span)

    def last(self, breaks: re.Pattern[str], least: int, *, outside_code: bool = False) -> int:
        """Return the end of the last break after at least this many characters; 0 if there is none."""
        for at in reversed([each.end() for each in breaks.finditer(self._text, 0, self._end)]):
            if at < least:
                break
            if not _is_inside(self._whole, at) and not (outside_code and _is_inside(self._code, at)):
                return at
        return 0

    def last_code(self, least: int) -> int:
        """Return where the last block of code begins."""
        return max((start for start, _ in self._code if least <= start < self._end), default=0)

    def within_a_word(self) -> int:
        """Return the last place that is not within an entity or an emoji."""
        at = min((start for start, end in self._whole if 0 < start < self._end < end), default=self._end)
        for place in range(at, max(at - _LONGEST_EMOJI, 1), -1):
            if not _is_joined(*self._text[place - 1 : place + 1].ljust(2, " ")):
                return place
        return at


def _is_inside(spans: list[tuple[int, int]], at: int) -> bool:
    return any(start < at < end for start, end in spans)


def _is_joined(before: str, after: str) -> bool:
    low, high = _SKIN_TONES
    joins = _JOINER in (before, after) or after in _SELECTORS or low <= after <= high
    return joins or unicodedata.combining(after) != 0
