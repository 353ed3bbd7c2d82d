"""Encoding and decoding of large JSON texts in pieces.

An encoder in C holds the GIL for the whole call, even in a thread. Between pieces other threads can run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Any

from stepwell.codec.json import MalformedJSON, from_json, to_json

__all__ = ["PIECE", "dump", "load", "too_deep"]

#: The approximate number of characters that one call encodes or decodes.
PIECE = 32 * 1024

#: Containers with at most this many values are split into their values, down to this many levels.
_FEW, _LEVELS = 64, 4


def dump(value: Any, plain: Callable[[Any, int], Any], left: int, levels: int = _LEVELS) -> bytes:
    """Return the bytes of ``encode(plain(value, left))``; ``left`` is the number of levels that are still allowed.

    Only one piece at a time is converted. Collecting a plain copy of the whole value would stop all threads.
    """
    kind = type(value)
    if left and levels:
        if kind is list:
            return b"[" + _list(value, plain, left - 1, levels) + b"]"
        if kind is tuple:
            return b'{"$tuple":[' + _list(value, plain, left - 1, levels) + b"]}"
        if kind is dict and all(type(key) is str and key[:1] != "$" for key in value):
            return b"{" + _dict(value, plain, left - 1, levels) + b"}"
    return to_json(plain(value, left))


def _list(value: Any, plain: Callable[[Any, int], Any], left: int, levels: int) -> bytes:
    if len(value) <= _FEW:
        return b",".join([dump(item, plain, left, levels - 1) for item in value])
    return b",".join(_chunks(iter(value), lambda chunk: plain(chunk, left + 1)))


def _dict(value: dict[str, Any], plain: Callable[[Any, int], Any], left: int, levels: int) -> bytes:
    if len(value) <= _FEW:
        pairs = value.items()
        return b",".join([to_json(key) + b":" + dump(item, plain, left, levels - 1) for key, item in pairs])
    return b",".join(_chunks(iter(value.items()), lambda chunk: plain(dict(chunk), left + 1)))


def _chunks(items: Any, plain: Callable[[list[Any]], Any]) -> list[bytes]:
    chunks, count = [], 16
    while chunk := list(islice(items, count)):
        text = to_json(plain(chunk))
        chunks.append(text[1:-1])
        count = max(1, min(count * PIECE // len(text), 4 * count, 4096))
    return chunks


def load(text: str, depth: int) -> Any:
    """Return the value of a JSON text. Raises ``RecursionError`` if it is nested deeper than ``depth``."""
    return _load(text, 0, len(text), depth)


def _load(text: str, at: int, end: int, depth: int) -> Any:
    """Decode the value that takes all of ``text[at:end]``."""
    opening = text[at : at + 1]
    if end - at <= 2 * PIECE or opening not in "[{":
        return _decoded(text[at:end], depth)
    if text[end - 1] != ("]" if opening == "[" else "}"):
        raise MalformedJSON("a bracket is not closed")
    loaded: Any = [] if opening == "[" else {}
    add = loaded.extend if opening == "[" else loaded.update
    wrap = "[{}]".format if opening == "[" else "{{{}}}".format
    at, end = at + 1, end - 1
    while True:
        comma = _comma(text, at, end)
        start = at if comma - at <= 4 * PIECE else _last_start(text, at, at + PIECE)
        if start > at or comma - at <= 4 * PIECE:
            piece = text[at : start - 1 if start > at else comma]
            if not piece or piece.isspace():
                raise MalformedJSON("a value is missing")
            add(_decoded(wrap(piece), depth))
        if comma - at > 4 * PIECE:
            # A single large value, or a long string.
            if opening == "[":
                loaded.append(_load(text, start, comma, depth - 1))
            else:
                key = _KEY.match(text, start, comma)
                if key is None:
                    raise MalformedJSON("a key is missing")
                loaded[from_json(key[1])] = _load(text, key.end(), comma, depth - 1)
        if comma == end:
            return loaded
        at = comma + 1


def _decoded(piece: str, depth: int) -> Any:
    if too_deep(piece, depth):
        raise RecursionError
    return from_json(piece)


_STRUCTURE = re.compile(r'\\.|["\[\]{},]', re.DOTALL)
_KEY = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+"):', re.DOTALL)


def _comma(text: str, at: int, end: int) -> int:
    """Return the first comma between two values after one piece from ``at`` on; or the end of the container."""
    quoted, depth = False, 0
    until = at
    # The first piece is only scanned for its quotes and brackets.
    while True:
        begin, until = until, _not_escaped(text, until + PIECE, end)
        piece = text[begin:until]
        brackets, ends_quoted = _brackets(f'"{piece}' if quoted else piece)
        if begin > at and depth - _closed_levels(brackets) <= 0:
            found, quoted, depth = _first_comma(text, begin, until, quoted, depth)
            if found >= 0:
                return found
        else:
            quoted = ends_quoted
            depth += brackets.count(b"[") - brackets.count(b"]")
        if until == end:
            return end


def _first_comma(text: str, at: int, end: int, quoted: bool, depth: int) -> tuple[int, bool, int]:
    for found in _STRUCTURE.finditer(text, at, end):
        char = found[0]
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char == ",":
            if depth == 0:
                return found.start(), quoted, depth
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
    return -1, quoted, depth


def _last_start(text: str, at: int, end: int) -> int:
    """Return the start of the last value that starts before ``end``."""
    start = at
    while True:
        comma = _first_comma(text, start, end, False, 0)[0]
        if comma < 0:
            return start
        start = comma + 1


def _not_escaped(text: str, at: int, end: int) -> int:
    """Return the first position from ``at`` on that is not inside an escape sequence."""
    while at < end and text[at - 1] == "\\":
        at += 1
    return min(at, end)


def too_deep(text: str, limit: int) -> bool:
    """Return whether a JSON text is nested deeper than a limit. Brackets inside strings do not count."""
    if text.count("[") + text.count("{") <= limit:
        return False
    brackets, _ = _brackets(text)
    # Each pass removes the innermost pairs, so there are as many passes as levels. Passes are C calls: a loop over
    # the characters takes 80 ms for a megabyte.
    for _ in range(limit):
        before = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if len(brackets) == before:
            break
    # The remaining brackets are deeper, or unbalanced, which the decoder rejects.
    return b"[]" in brackets or brackets.count(b"[") > limit


def _brackets(text: str) -> tuple[bytes, bool]:
    """Return the brackets outside of strings, all as square ones, and whether the text ends inside a string."""
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    parts = text.split('"')
    brackets = "".join(parts[::2]).encode(errors="replace").translate(_SQUARE, _NO_BRACKETS)
    return brackets, len(parts) % 2 == 0


def _closed_levels(brackets: bytes) -> int:
    """Return an upper bound for the number of levels that these brackets close."""
    for _ in range(300):
        before = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if len(brackets) == before:
            return before - len(brackets.lstrip(b"]"))
    return len(brackets)


_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
