"""Keys, bot names and field names to text and back: injective, readable, exact.

A key's text looks like what a person would write: ``(42,42)``, ``("shop",7,None)``, ``x"00ff"`` for
bytes. Parts come in order, so that ``(-100,`` is the beginning of all keys of one chat.
"""

from __future__ import annotations

import re
from functools import lru_cache
from json import JSONDecoder
from typing import Any

from stepwell.codec import values
from stepwell.errors import CorruptRecord, InvalidKey, TooLarge
from stepwell.record import Address, Limits, ReservedNamespace

__all__ = [
    "address_of",
    "decode_key",
    "decode_name",
    "decode_namespace",
    "encode_key",
    "encode_name",
    "encode_namespace",
]

#: Beyond it Python may refuse decimal digits, and hex is shorter anyway.
_BIG = 1 << 63
#: What must not reach a terminal or a text column as it is. A fixed list: Unicode's own notion of printable grows
#: from one Python to the next, and a name must be written alike by all of them.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_read_json = JSONDecoder().raw_decode
_ALLOWED = "keys are str, int, bool, None, bytes, and tuples of these"


def address_of(namespace: str, key: Any, limits: Limits) -> Address:
    """The address of a key in a bot's (or a reserved) namespace, or ``InvalidKey`` / ``TooLarge``."""
    text = encode_key(key, limits.depth)
    # Four bytes is the most a character takes: most keys need no counting.
    if len(text) * 4 > limits.key and len(text.encode()) > limits.key:
        raise TooLarge("a key", len(text.encode()), limits.key)
    if type(namespace) is str and 0 < len(namespace) * 6 <= limits.key:
        # An encoded character takes six bytes at most.
        encoded = _namespace_text(namespace)
    else:
        encoded = encode_namespace(namespace, limits)
    return tuple.__new__(Address, (encoded, text))


def encode_namespace(name: str, limits: Limits) -> str:
    """A bot's name as text without control characters; a reserved namespace stays what it is."""
    if type(name) is ReservedNamespace:
        return name
    if not isinstance(name, str) or not name:
        raise InvalidKey(f"a bot's name is a non-empty str, not {name!r} ({type(name).__name__})")
    text = _namespace_text(str.__str__(name))
    if len(text) * 4 > limits.key and len(text.encode()) > limits.key:
        raise TooLarge("a bot's name", len(text.encode()), limits.key)
    return text


@lru_cache(maxsize=256)
def _namespace_text(name: str) -> str:
    # A process has a few bots and asks for their names all the time.
    return _quoted(name)[1:-1]


def decode_namespace(text: str) -> str:
    """The name that ``encode_namespace`` was given."""
    if text.startswith('"'):
        return ReservedNamespace(text)
    if "\\" not in text:
        return text
    try:
        name, end = _read_json(f'"{text}"')
    except ValueError as error:
        raise CorruptRecord(text, "its namespace", f"cannot be read ({error})") from error
    if end != len(text) + 2:
        raise CorruptRecord(text, "its namespace", "goes on after its end")
    return str(name)


def encode_key(key: Any, depth: int = 64) -> str:
    """A key as text. Keys of equal type and value have the same text, all others never."""
    kind = type(key)
    if kind is tuple:
        if depth == 0:
            raise InvalidKey("a key is nested too deeply; make it flatter")
        if len(key) == 1:
            return f"({encode_key(key[0], depth - 1)},)"
        # An int is the usual part, and its own text; two of them are the usual key.
        if len(key) == 2 and type(key[0]) is type(key[1]) is int and -_BIG < key[0] < _BIG and -_BIG < key[1] < _BIG:
            return f"({key[0]},{key[1]})"
        parts = [
            str(part) if type(part) is int and -_BIG < part < _BIG else encode_key(part, depth - 1) for part in key
        ]
        return f"({','.join(parts)})"
    if kind is int:
        return str(key) if -_BIG < key < _BIG else hex(key)
    if kind is str:
        return _quoted(key)
    if key is None or kind is bool:
        return str(key)
    if kind is bytes:
        return f'x"{key.hex()}"'
    raise InvalidKey(f"a key cannot contain {kind.__module__}.{kind.__qualname__}: {_ALLOWED}")


def decode_key(text: str) -> Any:
    """The key that ``encode_key`` was given."""
    try:
        key, end = _parse(text, 0)
        if end != len(text):
            raise ValueError("it goes on after its end")
    except (ValueError, IndexError, RecursionError) as error:
        raise CorruptRecord(text, "its key", f"cannot be read ({error})") from error
    return key


def encode_name(name: Any, limits: Limits) -> str:
    """A top-level key of the data as the name of a stored field: itself if it is an ordinary str."""
    if type(name) is str and name and name[0] != "$" and not _UNSAFE.search(name):
        return name
    text = values.encode(name, limits).decode()
    return "$" + (_escaped(text) if _UNSAFE.search(text) else text)


def decode_name(text: str) -> Any:
    """The data's key that ``encode_name`` was given."""
    if text[:1] != "$":
        if not text:
            raise values.DecodeError("its name is empty")
        return text
    name = values.decode(text[1:])
    try:
        hash(name)
    except TypeError as error:
        raise values.DecodeError("its name cannot be a key") from error
    return name


def _quoted(text: str) -> str:
    try:
        quoted = values.quote(text)
    except UnicodeEncodeError:
        raise InvalidKey("a key or a bot's name contains a lone surrogate, which no storage can keep") from None
    return _escaped(quoted) if _UNSAFE.search(quoted) else quoted


def _escaped(text: str) -> str:
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _parse(text: str, at: int) -> tuple[Any, int]:
    char = text[at]
    if char == "(":
        parts = []
        at += 1
        while text[at] != ")":
            part, at = _parse(text, at)
            parts.append(part)
            if text[at] == ",":
                at += 1
        return tuple(parts), at + 1
    if char == '"':
        return _read_json(text, at)
    if char == "x":
        end = text.index('"', at + 2)
        return bytes.fromhex(text[at + 2 : end]), end + 1
    for word, value in (("None", None), ("True", True), ("False", False)):
        if text.startswith(word, at):
            return value, at + len(word)
    end = at + 1
    while end < len(text) and text[end] not in ",)":
        end += 1
    return int(text[at:end], 0), end
