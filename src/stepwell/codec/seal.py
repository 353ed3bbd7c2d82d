"""The stored form of values: a checksum of eight hex digits, a space, and JSON.

The checksum covers the address and the field name too, so that a value stored under another key is detected. Each
field has its own checksum, because a merge changes single fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

from stepwell._secrets import quoted
from stepwell.codec import values
from stepwell.codec.json import MalformedJSON, Raw, Struct, decoder
from stepwell.codec.keys import decode_name, encode_name
from stepwell.errors import CorruptRecord, EncodeError, KeyMissing, StoredDataError, TooLarge
from stepwell.record import NO_HEAD, Address, Damage, Head, Limits, OpenedHead, Place, Stored

__all__ = ["ENCRYPTED", "Seal"]

#: The first characters of an encrypted text: a mark that no checksum begins with, and the number of the format.
ENCRYPTED: Final = "~1"


class Seal:
    """Encodes and decodes the values of one address.

    Example::

        seal = storage.seal(storage.address("my_bot", 42))
        assert seal.data(seal.fields({"name": "Ann"})) == {"name": "Ann"}
    """

    __slots__ = ("_limits", "_seed", "address", "limit")

    def __init__(self, address: Address, limits: Limits, limit: int) -> None:
        self.address: Address = address
        #: The maximum size of all fields and parts together, and so of each of them.
        self.limit: int = limit
        self._limits = limits
        namespace, key = address
        self._seed = crc32(f"{namespace}\n{key}\n".encode())

    def fields(self, data: Mapping[Any, Any], large: bool = False) -> dict[str, str]:
        """Return the data as sealed fields. Raises ``EncodeError`` or ``TooLarge``.

        ``large``: encode in pieces, for calls in a thread.
        """
        if not isinstance(data, Mapping):
            raise EncodeError("$", type(data).__qualname__, "is not a mapping; data must be a dict of fields")
        fields = {}
        for key, value in data.items():
            name = self.name(key)
            fields[name] = self.field(name, value, large)
        return fields

    def name(self, key: Any) -> str:
        """Return the name of the stored field for a key of the data. Raises ``EncodeError``."""
        try:
            return encode_name(key, self._limits)
        except EncodeError as error:
            raise EncodeError(f"$(key {quoted(key)})", error.type_name, error.why) from None

    def field(self, name: str, value: Any, large: bool = False) -> str:
        """Seal one field of the data."""
        kind = type(value)
        if kind is str or kind is bool or value is None or (kind is int and _SMALL > value > -_SMALL):
            # JSON-safe, so no recursive check is needed.
            try:
                return self.seal_body("f", name, values.to_json(value))
            except UnicodeEncodeError:
                pass  # fall back to encode(), which raises a readable error
        path = "$" + values.step(decode_name(name))
        return self.seal_body("f", name, values.encode(value, self._limits, path, large=large))

    def data(self, fields: Mapping[str, str]) -> dict[Any, Any]:
        """Return the data of sealed fields. Raises ``CorruptRecord`` or ``UnknownType``."""
        depth = self._limits.depth
        data = {}
        for name, text in fields.items():
            body = self.body("f", name, text)
            try:
                data[decode_name(name)] = values.decode(body, depth)
            except values.DecodeError as error:
                raise CorruptRecord(self.address.text, f"the field {quoted(name)}", str(error)) from error
            except StoredDataError as error:
                error.add_note(f"in the field {quoted(name)} of the record at {self.address.text}")
                raise
        return data

    def head(self, opened: OpenedHead) -> Head:
        """Seal a head as JSON. Raises ``EncodeError`` for a flow or state that is no text."""
        place = opened.place
        flow, state = place.flow, place.state
        if not ((flow is None or type(flow) is str) and (state is None or type(state) is str)):
            kind = type(state if flow is None or type(flow) is str else flow)
            raise EncodeError("$head", kind.__qualname__, "cannot name a flow or state; names must be str or None")
        try:
            if not (opened.extension or opened.timers or opened.indexed):
                body = _place_json(place)
            else:
                body = values.to_json([flow, state, place.revision, dict(opened.timers), opened.indexed])
                if opened.extension:
                    body = b"%b,%b]" % (body[:-1], opened.extension.encode())
        except UnicodeEncodeError:
            # A readable error.
            values.encode([flow, state], self._limits, "$head")
            raise
        flow, state = opened.indexed or (flow, state)
        return Head(flow=flow, state=state, text=self.seal_body("h", "", body))

    def open_head(self, text: str | None) -> OpenedHead:
        """Return what ``head`` was given. Raises ``CorruptRecord``."""
        if text is None:
            return NO_HEAD
        body = self.body("h", "", text)
        try:
            if "{" not in body:
                return _opened_plain(body)
            return _opened(body)
        except MalformedJSON as error:
            raise CorruptRecord(self.address.text, _NAMES["h"], f"has an unknown format ({error})") from error

    def seal(self, kind: str, name: str, value: Any, large: bool = False) -> str:
        """Seal a value beside the data, such as the memo or a part."""
        return self.seal_body(kind, name, values.encode(value, self._limits, f"${name}", large=large))

    def json(self, value: Any, limit: int) -> str:
        """Return the JSON of a value, without a checksum. Raises ``EncodeError`` or ``TooLarge``."""
        text = values.encode(value, self._limits)
        if len(text) > limit:
            raise TooLarge("the value", len(text), limit)
        return text.decode()

    def value(self, kind: str, name: str, text: str) -> Any:
        """Return the value that ``seal`` was given. Raises ``CorruptRecord``."""
        body = self.body(kind, name, text)
        try:
            return values.decode(body, self._limits.depth)
        except values.DecodeError as error:
            raise CorruptRecord(self.address.text, _NAMES.get(kind, "a part"), str(error)) from error

    def seal_body(self, kind: str, name: str, body: bytes) -> str:
        """Seal the JSON of a value. Raises ``TooLarge``."""
        if len(body) > self.limit:
            raise TooLarge(f"the value of {quoted(name)}", len(body), self.limit)
        check = crc32(body, crc32(f"{kind}{name}\n".encode(), self._seed))
        return f"{check:08x} {body.decode()}"

    def body(self, kind: str, name: str, text: str) -> str:
        """Return the JSON of a sealed value, checked and not decoded. Raises ``CorruptRecord`` or ``TooLarge``."""
        if len(text) > self.limit + 9:
            raise TooLarge(f"the stored value of {quoted(name)} at {self.address.text}", len(text), self.limit)
        body = text[9:]
        try:
            check = crc32(body.encode(), crc32(f"{kind}{name}\n".encode(), self._seed))
        except UnicodeEncodeError:
            check = -1
        if text[:9] != f"{check:08x} ":
            if isinstance(text, Damage):
                raise text.error or CorruptRecord(self.address.text, text.what, text.why)
            self.check_key(kind, name, text)
            raise CorruptRecord(self.address.text, _what(kind, name), "does not match its checksum")
        return body

    def check_key(self, kind: str, name: str, text: str) -> None:
        """Raise ``KeyMissing`` if a stored text needs a key that the reader does not have. It is not decoded."""
        if text.startswith(ENCRYPTED):
            raise KeyMissing(self.address.text, _what(kind, name), text[2:8])
        if isinstance(text, Damage) and isinstance(text.error, KeyMissing):
            raise text.error

    def check_keys(self, stored: Stored) -> None:
        """Raise ``KeyMissing`` if a text of a record needs a key that the reader does not have."""
        if stored.head is not None:
            self.check_key("h", "", stored.head)
        for kind, texts in (("f", stored.fields), ("p", stored.parts or {})):
            for name, text in texts.items():
                self.check_key(kind, name, text)


def _what(kind: str, name: str) -> str:
    """Return how errors name a text."""
    return f"the field {quoted(name)}" if kind == "f" else _NAMES.get(kind, f"the part {quoted(name)}")


@lru_cache(maxsize=1024)
def _place_json(place: Place) -> bytes:
    """Return the JSON of a place. A bot has few different ones, so they are cached."""
    texts = place.flow, place.state
    return values.to_json(texts if place.revision is None else (*texts, place.revision))


class _Head(Struct, array_like=True, frozen=True):
    """The stored form of a head."""

    flow: str | None
    state: str | None
    revision: int | None = None
    timers: dict[str, float] = {}  # noqa: RUF012 msgspec copies it
    indexed: tuple[str | None, str | None] | None = None
    extension: Raw = Raw()


_decode_head = decoder(_Head)


def _opened(body: str) -> OpenedHead:
    head: _Head = _decode_head(body)
    return OpenedHead(
        place=Place(flow=head.flow, state=head.state, revision=head.revision),
        timers=head.timers,
        extension=bytes(head.extension).decode(),
        indexed=head.indexed,
    )


@lru_cache(maxsize=1024)
def _opened_plain(body: str) -> OpenedHead:
    """Return a head without timers and extension."""
    return _opened(body)


#: Integers with a smaller absolute value need no tag.
_SMALL = 1 << 53
_NAMES = {"f": "a field", "h": "its flow and state", "m": "its memo of handled updates"}
