"""Encoding of keys, bot names and field names as readable text; different keys have different texts.

The text of a key resembles a Python literal: ``(42,42)``, ``("shop",7,None)``, ``x"00ff"`` for bytes. All keys of a
chat have a common beginning, such as ``(-100,``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from json import JSONDecoder
from typing import Any

from stepwell._secrets import quoted
from stepwell.codec import values
from stepwell.errors import CorruptRecord, InvalidKey, InvalidName, TooLarge
from stepwell.record import Address, Limits, ReservedNamespace

__all__ = [
    "address_of",
    "check_name",
    "decode_key",
    "decode_name",
    "decode_namespace",
    "encode_key",
    "encode_name",
    "encode_namespace",
]

#: Larger integers are written in hex: Python limits decimal digits, and hex is shorter.
_BIG = 1 << 63
#: Characters that are unsafe in terminals and text columns. A fixed list, because ``str.isprintable`` changes between
#: Python versions, and all of them must encode a name alike.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: Control characters, and the characters that end a line or cannot be encoded.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_read_json = JSONDecoder().raw_decode
_ALLOWED = "keys are str, int, bool, None, bytes, and tuples of these"


def address_of(namespace: str, key: Any, limits: Limits) -> Address:
    """Return the address of a key in a bot's or a reserved namespace. Raises ``InvalidKey`` or ``TooLarge``."""
    text = encode_key(key, limits.depth)
    # A character takes at most four bytes, so most keys need no exact count.
    if len(text) * 4 > limits.key and len(text.encode()) > limits.key:
        raise TooLarge("a key", len(text.encode()), limits.key)
    if type(namespace) is str and 0 < len(namespace) * 6 <= limits.key:
        # An encoded character takes six bytes at most.
        encoded = _namespace_text(namespace)
    else:
        encoded = encode_namespace(namespace, limits)
    return Address(encoded, text)


def encode_namespace(name: str, limits: Limits) -> str:
    """Return a bot's name without control characters; a reserved namespace is returned unchanged.

    Raises ``InvalidKey`` or ``TooLarge``.

    Example::

        from stepwell.engine import encode_namespace

        found = await storage.due(encode_namespace("my_bot", storage.limits))
    """
    if type(name) is ReservedNamespace:
        return name
    if not isinstance(name, str) or not name:
        raise InvalidKey(f"a bot's name must be a non-empty str, not {quoted(name)} ({type(name).__name__})")
    text = _namespace_text(str.__str__(name))
    if len(text) * 4 > limits.key and len(text.encode()) > limits.key:
        raise TooLarge("a bot's name", len(text.encode()), limits.key)
    return text


@lru_cache(maxsize=256)
def _namespace_text(name: str) -> str:
    # A process uses few names very often.
    return _quoted(name)[1:-1]


def decode_namespace(text: str) -> str:
    """Return the name that ``encode_namespace`` was given. Raises ``CorruptRecord``.

    Example::

        from stepwell.engine import decode_namespace

        assert [decode_namespace(text) for text in await storage.namespaces()] == []
    """
    if text.startswith('"'):
        return ReservedNamespace(text)
    if "\\" not in text:
        return text
    try:
        name, end = _read_json(f'"{text}"')
    except ValueError as error:
        raise CorruptRecord(text, "its namespace", f"cannot be read ({error})") from error
    if end != len(text) + 2:
        raise CorruptRecord(text, "its namespace", "has extra characters at its end")
    return str(name)


def encode_key(key: Any, depth: int = 64) -> str:
    """Return a key as text. Only keys of equal type and value have the same text.

    Raises ``InvalidKey``.

    Example::

        from stepwell.engine import encode_key

        assert encode_key((42, "a")) == storage.address("my_bot", (42, "a")).key
    """
    kind = type(key)
    if kind is tuple:
        if depth == 0:
            raise InvalidKey("a key is nested too deeply; make it flatter")
        if len(key) == 1:
            return f"({encode_key(key[0], depth - 1)},)"
        # The most common key is a pair of ints.
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
    """Return the key that ``encode_key`` was given. Raises ``CorruptRecord``.

    Example::

        from stepwell.engine import decode_key

        assert decode_key(storage.address("my_bot", (42, 42)).key) == (42, 42)
    """
    try:
        key, end = _parse(text, 0)
        if end != len(text):
            raise ValueError("extra characters at its end")
    except (ValueError, IndexError, RecursionError) as error:
        raise CorruptRecord(text, "its key", f"cannot be read ({error})") from error
    return key


def check_name(what: str, name: object) -> None:
    """Raise ``InvalidName`` if a name has a control character, which separates names in indexes and ends log lines.

    Example::

        from stepwell.engine import check_name

        check_name("the flow", "registration")
    """
    if isinstance(name, str) and (found := _CONTROL.search(name)):
        raise InvalidName(what, str.__str__(name), found.start())


def encode_name(name: Any, limits: Limits) -> str:
    """Return the name of the stored field for a key of the data; an ordinary str is returned unchanged."""
    if type(name) is str and name and name[0] != "$" and not _UNSAFE.search(name):
        return name
    text = values.encode(name, limits).decode()
    return "$" + (_escaped(text) if _UNSAFE.search(text) else text)


def decode_name(text: str) -> Any:
    """Return the key of the data that ``encode_name`` was given.

    Example::

        from stepwell.engine import decode_name

        await storage.set_data("my_bot", 42, {7: "seven"})
        stored = await storage.perform(Get(storage.address("my_bot", 42)))
        assert [decode_name(name) for name in stored.fields] == [7]
    """
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
