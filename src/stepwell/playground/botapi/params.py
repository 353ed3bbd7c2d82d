"""The parameters of a call: JSON or form, read as what they are asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from stepwell.playground.botapi.refusal import bad_request

__all__ = ["Params", "Upload"]


class Upload(NamedTuple):
    """A file that came with a call."""

    name: str
    content: bytes


class Params:
    """In a form everything is text; in JSON it need not be. Both read the same."""

    def __init__(self, given: Mapping[str, Any], files: Mapping[str, Upload] | None = None) -> None:
        self.given = {name: value for name, value in given.items() if value is not None}
        self.files = files or {}

    def text(self, name: str, default: str = "") -> str:
        value = self.given.get(name, default)
        return value if isinstance(value, str) else json.dumps(value)

    def number(self, name: str, default: int | None = None) -> int:
        value = self.given.get(name, default)
        try:
            return int(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise bad_request(f"invalid {name} specified") from None

    def flag(self, name: str) -> bool:
        return str(self.given.get(name, "")).lower() in ("true", "1", "yes")

    def json(self, name: str, kind: type[Any]) -> Any:
        """An object or a list; ``None`` where it was not given."""
        value = self.given.get(name)
        if isinstance(value, str) and kind is not str:
            if not value:
                return None
            try:
                value = json.loads(value)
            except ValueError:
                raise bad_request(f"can't parse {name} JSON object") from None
        if value is not None and not isinstance(value, kind):
            raise bad_request(f"can't parse {name}: expected {'an Array' if kind is list else 'an Object'}")
        return value

    def chat_id(self, name: str = "chat_id") -> int | str:
        value = self.given.get(name)
        if value is None or value == "":
            raise bad_request(f"{name} is empty")
        text = str(value)
        return text if text.startswith("@") else self.number(name)
