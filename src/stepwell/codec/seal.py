"""The stored form of values: a checksum of eight hex digits, a space, and JSON.

The checksum covers the address and the field name too, so that a value stored under another key is detected. Each
field has its own checksum, because a merge changes single fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, Final
from zlib import crc32

from stepwell._secrets import quoted
from stepwell.codec import values
from stepwell.codec.json import MalformedJSON, from_json
from stepwell.codec.keys import decode_name, encode_name
from stepwell.errors import CorruptRecord, EncodeError, KeyMissing, StoredDataError, TooLarge
from stepwell.record import NOWHERE, Address, Damage, Head, Limits, Place, Stored

__all__ = ["ENCRYPTED", "Seal", "flow_index", "flow_of_index"]

#: The first characters of an encrypted text: a mark that no checksum begins with, and the number of the format.
ENCRYPTED: Final = "~1"


class Seal:
    """Encodes and decodes the values of one address."""

    __slots__ = ("_limits", "_seed", "address", "is_run", "limit")

    def __init__(self, address: Address, limits: Limits, limit: int, *, is_run: bool = False) -> None:
        self.address: Address = address
        #: The maximum size of all fields and parts together, and so of each of them.
        self.limit: int = limit
        self._limits = limits
        #: Whether the record is a run of a node flow. Its place has a table instead of waiting flows.
        self.is_run: bool = is_run
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
        """Return the name of the stored field for a key of the data."""
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

    def head(self, place: Place) -> Head:
        """Seal a place. Empty values at its end are left out."""
        flow, state, revision, _, stack, _, _, _, _, _, entered_at = place
        if not ((flow is None or type(flow) is str) and (state is None or type(state) is str)):
            kind = type(state if flow is None or type(flow) is str else flow)
            raise EncodeError("$head", kind.__qualname__, "cannot name a flow or state; names must be str or None")
        if self.is_run:
            flow, state = self.index_texts(place)
        body: bytes | None = None
        if revision is None or type(revision) is int:
            try:
                if not stack:
                    body = _head_json(place[:-1])
                elif len(stack) == 1 and _is_flat(stack[0]):
                    body = values.to_json(_row(place[:-1]))
            except (UnicodeEncodeError, TypeError):
                pass  # fall back to encode(), which raises a readable error if it fails too
        if body is None:
            body = values.encode(_row(place[:-1]), self._limits, "$head")
        if entered_at:
            # Beside the rest, which is the same for many records and cached.
            body = b'{"at":"%b","in":%b}' % (entered_at.encode(), body)
        return _new(Head, (flow, state, self.seal_body("h", "", body)))

    def index_texts(self, place: Place) -> tuple[str | None, str | None]:
        """Return the flow and the state by which indexes find a place.

        A run is found by its revision and by its status, which change less often than its node.
        """
        flow, state, revision, _, stack, *_ = place
        if not self.is_run:
            return flow, state
        status = stack[0].get("status") if stack and type(stack[0]) is dict else None
        if flow is not None and (revision is not None or "@" in flow):
            flow = flow_index(flow, revision)
        return flow, status if type(status) is str else None

    def open_head(self, text: str | None) -> Place:
        """Return the place that ``head`` was given. Raises ``CorruptRecord``."""
        if text is None:
            return NOWHERE
        body = self.body("h", "", text)
        entered_at = ""
        if body[:7] == '{"at":"':
            entered_at, _, body = body[7:-1].partition('","in":')
        try:
            # Only places without waiting flows are cached: the others contain mutable data.
            plain = body.count("[") < 3 and "{" not in body
            place = _cached_place(body) if plain else _place(body, self._limits.depth, self.is_run)
        except values.DecodeError as error:
            raise CorruptRecord(self.address.text, _NAMES["h"], str(error)) from error
        return _new(Place, (*place[:-1], entered_at)) if entered_at else place

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
        """Return the value that ``seal`` was given."""
        body = self.body(kind, name, text)
        try:
            return values.decode(body, self._limits.depth)
        except values.DecodeError as error:
            raise CorruptRecord(self.address.text, _NAMES.get(kind, "a part"), str(error)) from error

    def seal_body(self, kind: str, name: str, body: bytes) -> str:
        """Seal the JSON of a value."""
        if len(body) > self.limit:
            raise TooLarge(f"the value of {quoted(name)}", len(body), self.limit)
        check = crc32(body, crc32(f"{kind}{name}\n".encode(), self._seed))
        return f"{check:08x} {body.decode()}"

    def body(self, kind: str, name: str, text: str) -> str:
        """Return the JSON of a sealed value, checked and not decoded."""
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


def flow_index(flow: str, revision: int | None = None) -> str:
    """Return the text by which indexes find the runs of one revision of a flow: ``name``, or ``name@2``."""
    if "@" in flow:
        flow = flow.replace("@", "@@")
    return flow if revision is None or revision == 1 else f"{flow}@{revision}"


def flow_of_index(text: str) -> tuple[str, int]:
    """Return the flow and the revision that ``flow_index`` was given."""
    # The doubled "@" of a name come in pairs, so an odd number of them ends with the one before the revision.
    head, at, revision = text.rpartition("@")
    if (len(head) - len(head.rstrip("@"))) % 2 or not at:
        return text.replace("@@", "@"), 1
    return head.replace("@@", "@"), int(revision)


@lru_cache(maxsize=1024)
def _head_json(place: tuple[Any, ...]) -> bytes:
    """Return the JSON of a place without waiting flows. A bot has few different ones, so they are cached."""
    return values.to_json(_row(place))


def _is_flat(table: Any) -> bool:
    """Return whether this is a flat and JSON-safe dict, which needs no recursive check."""
    if type(table) is not dict:
        return False
    for key, value in table.items():
        kind = type(value)
        if type(key) is not str or key[:1] == "$" or not (kind in _EXACT or (kind is float and isfinite(value))):
            return False
    return True


def _row(place: tuple[Any, ...]) -> list[Any]:
    row = list(place)
    while len(row) > 2 and not row[-1]:
        row.pop()
    return row


def _place(body: str, depth: int, is_run: bool) -> Place:
    row = values.decode(body, depth)
    if type(row) is not list or not 2 <= len(row) <= 10:
        raise values.DecodeError("has an unknown format")
    row.extend(NOWHERE[len(row) : -1])
    flow, state, revision, history, stack, where, times, expired, outbox, profile = row
    if not (
        _is_position(flow, state, revision, history)
        and type(stack) in _SEQUENCES
        # A run has a table instead of waiting flows.
        and all(type(waiting) is dict if is_run else _is_waiting(waiting) for waiting in stack)
        and type(where) in _SEQUENCES
        and all(part is None or type(part) in (int, str) for part in where)
        and type(times) in _SEQUENCES
        and len(times) in (0, 2)
        and all(at is None or type(at) is float for at in times)
        and type(expired) in _SEQUENCES
        and all(_is_entry(entry) for entry in expired)
        and type(outbox) in _SEQUENCES
        and all(_is_unsent(entry) for entry in outbox)
        and type(profile) is str
    ):
        raise values.DecodeError("has an unknown format")
    # Sequences are decoded as lists.
    return Place(
        flow,
        state,
        revision,
        tuple(history),
        tuple(stack),
        tuple(where),
        tuple(times),
        tuple(map(tuple, expired)),
        tuple(map(tuple, outbox)),
        profile,
    )


def _is_position(flow: Any, state: Any, revision: Any, history: Any) -> bool:
    """Return whether these are a valid flow, state, revision and history."""
    return (
        (flow is None or type(flow) is str)
        and (state is None or type(state) is str)
        and (revision is None or type(revision) is int)
        and type(history) in _SEQUENCES
        and all(type(name) is str for name in history)
    )


def _is_entry(entry: Any) -> bool:
    """Return whether this is an expired conversation: time of expiry, flow, state, and time of its handling."""
    return (
        type(entry) in _SEQUENCES
        and len(entry) == 4
        and type(entry[0]) is type(entry[3]) is float
        and all(name is None or type(name) is str for name in entry[1:3])
    )


def _is_unsent(entry: Any) -> bool:
    """Return whether this is an entry of an outbox: time of the next attempt, number of attempts, and calls."""
    if type(entry) not in _SEQUENCES or len(entry) != 3:
        return False
    due, attempts, calls = entry
    if type(due) is not float or type(attempts) is not int or type(calls) is not str:
        return False
    try:
        found = from_json(calls)
    except MalformedJSON:
        return False
    return type(found) is list and bool(found) and all(type(call) is dict and "method" in call for call in found)


def _is_waiting(waiting: Any) -> bool:
    """Return whether this is a waiting flow: its place, its data, and the field for the result."""
    if type(waiting) not in _SEQUENCES or len(waiting) != 6:
        return False
    flow, state, revision, history, data, into = waiting
    return (
        _is_position(flow, state, revision, history)
        and type(data) is dict
        and (into is None or isinstance(into, str | int | tuple))
    )


@lru_cache(maxsize=1024)
def _cached_place(body: str) -> Place:
    return _place(body, 2, is_run=False)


#: Makes a NamedTuple without a call of its constructor, which is a Python function.
_new = tuple.__new__
#: Integers with a smaller absolute value need no tag.
_SMALL = 1 << 53
_SEQUENCES = frozenset({list, tuple})
_EXACT = frozenset({str, bool, type(None)})
_NAMES = {"f": "a field", "h": "its flow and state", "m": "its memo of handled updates"}
