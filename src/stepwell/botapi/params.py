"""The parameters of a call, from JSON or from a form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf, isfinite
from typing import Any, NamedTuple

from stepwell.botapi.errors import bad_request

__all__ = ["MAX_DEPTH", "Params", "Upload", "loads"]

#: The deepest nesting of arrays and objects.
MAX_DEPTH = 64
#: The most messages that one call forwards, copies or deletes.
MAX_MESSAGE_IDS = 100


class Upload(NamedTuple):
    """A file uploaded with a call."""

    name: str
    content: bytes


class Params:
    """Reads parameters by type. Values from a form are text and are converted."""

    def __init__(self, given: Mapping[str, Any], files: Mapping[str, Upload] | None = None) -> None:
        self.given: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self.files: Mapping[str, Upload] = files or {}

    def text(self, name: str, default: str = "") -> str:
        value = self.given.get(name, default)
        return value if isinstance(value, str) else json.dumps(value)

    def number(self, name: str, default: int | None = None) -> int:
        value = self.given.get(name, default)
        try:
            return int(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise bad_request(f"invalid {name} specified") from None

    def fraction(self, name: str, default: float | None = None) -> float:
        try:
            value = float(self.given.get(name, default))  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            value = inf
        if not isfinite(value):
            raise bad_request(f"invalid {name} specified")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        return str(self.given.get(name, default)).lower() in ("true", "1", "yes")

    def numbers(self, *names: str) -> dict[str, int]:
        """Return those of these whole numbers that are given."""
        return {name: self.number(name) for name in names if self.has(name)}

    def fractions(self, *names: str) -> dict[str, float]:
        """Return those of these numbers that are given."""
        return {name: self.fraction(name) for name in names if self.has(name)}

    def strings(self, *names: str) -> dict[str, str]:
        """Return those of these texts that are given and not empty."""
        return {name: self.text(name) for name in names if self.has(name)}

    def has(self, name: str) -> bool:
        """Return whether a parameter is given and not empty."""
        return bool(self.given.get(name, "") != "")

    def required(self, name: str) -> str:
        """Return a text that must not be empty."""
        if not self.has(name):
            raise bad_request(f'parameter "{name}" is required')
        return self.text(name)

    def message_ids(self) -> list[int]:
        """Return ``message_ids``: 1 to 100 numbers."""
        values = self.json("message_ids", list)
        if not values:
            raise bad_request("message identifiers are not specified")
        if len(values) > MAX_MESSAGE_IDS:
            raise bad_request("too many message identifiers specified")
        try:
            return [int(value) for value in values]
        except (TypeError, ValueError, OverflowError):
            raise bad_request("can't parse message identifier as Number") from None

    def json(self, name: str, kind: type[Any], title: str = "") -> Any:
        """Return an object or a list; ``None`` if it is missing. ``title`` is its name in error messages."""
        value = self.given.get(name)
        if isinstance(value, str) and kind is not str:
            if not value:
                return None
            try:
                value = loads(value)
            except ValueError:
                raise bad_request(f"can't parse {title or name} JSON object") from None
        if value is not None and not isinstance(value, kind):
            raise bad_request(f"can't parse {name}: expected {'an Array' if kind is list else 'an Object'}")
        return value

    def objects(self, name: str) -> list[dict[str, Any]]:
        """Return a list of objects; empty if it is missing."""
        return self._all_of(name, dict, "an Array of Object")

    def texts(self, name: str) -> list[str] | None:
        """Return a list of strings; ``None`` if it is missing."""
        return None if self.json(name, list) is None else self._all_of(name, str, "an Array of String")

    def _all_of(self, name: str, kind: type[Any], what: str) -> list[Any]:
        values: list[Any] = self.json(name, list) or []
        if not all(isinstance(value, kind) for value in values):
            raise bad_request(f"can't parse {name}: expected {what}")
        return values

    def chat_id(self, name: str = "chat_id") -> int | str:
        value = self.given.get(name)
        if value is None or value == "":
            raise bad_request(f"{name} is empty")
        text = str(value)
        return text if text.startswith("@") else self.number(name)


# Copied in web/strict_json.py, because botapi imports nothing else of Stepwell. Change both.
def loads(text: str | bytes) -> Any:
    """Decode JSON. Raises ``ValueError`` for deep nesting, lone surrogates, and numbers that are not finite."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, str):
                # Raises UnicodeEncodeError, which is a ValueError.
                each.encode()
            elif isinstance(each, float) and not isfinite(each):
                raise ValueError("a number is not finite")
            elif isinstance(each, dict):
                inner += [*each, *each.values()]
            elif isinstance(each, list):
                inner += each
        if not inner:
            return value
        level = inner
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
