"""JSON and type conversion with msgspec. The only module that imports it."""

from __future__ import annotations

import msgspec

__all__ = ["MalformedJSON", "WrongType", "convert", "from_json", "set_field", "to_json"]

to_json = msgspec.json.Encoder().encode
from_json = msgspec.json.Decoder().decode
convert = msgspec.convert
#: Sets a field of a Struct, frozen or not.
set_field = msgspec.structs.force_setattr
MalformedJSON = msgspec.DecodeError
WrongType = msgspec.ValidationError
