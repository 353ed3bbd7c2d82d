"""JSON and type conversion with msgspec. The only module that imports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["MalformedJSON", "WrongType", "convert", "from_json", "set_field", "to_json"]

to_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode
from_json: Callable[[str | bytes], Any] = msgspec.json.Decoder().decode
convert: Callable[..., Any] = msgspec.convert
#: Sets a field of a Struct, frozen or not.
set_field: Callable[[Any, str, Any], None] = msgspec.structs.force_setattr
MalformedJSON = msgspec.DecodeError
WrongType = msgspec.ValidationError
