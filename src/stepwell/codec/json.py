"""JSON, msgpack and type conversion with msgspec. Only this module and ``record``, which is below it, import it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

__all__ = [
    "MalformedJSON",
    "Raw",
    "Struct",
    "WrongType",
    "astuple",
    "convert",
    "decoder",
    "from_json",
    "json_schema",
    "replaced",
    "set_field",
    "struct_defaults",
    "texts_to_json",
    "to_builtins",
    "to_json",
    "to_msgpack",
]

_S = TypeVar("_S", bound=msgspec.Struct)


def _plain(value: Any) -> str:
    # msgspec calls it only for types that it does not encode, so an ordinary text takes no call.
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"objects of type {type(value).__qualname__} are not supported")


to_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode
from_json: Callable[[str | bytes], Any] = msgspec.json.Decoder().decode
#: For the encoded texts of records. These two encode subclasses of ``str`` as plain texts: a record that is copied may
#: have them, such as ``Damage``.
texts_to_json: Callable[[Any], bytes] = msgspec.json.Encoder(enc_hook=_plain).encode
to_msgpack: Callable[[Any], bytes] = msgspec.msgpack.Encoder(enc_hook=_plain).encode
convert: Callable[..., Any] = msgspec.convert
#: Returns dataclasses and Structs as dicts, at any depth.
to_builtins: Callable[[Any], Any] = msgspec.to_builtins
#: Returns the JSON schema of a type.
json_schema: Callable[[Any], dict[str, Any]] = msgspec.json.schema
#: Sets a field of a Struct, frozen or not.
set_field: Callable[[Any, str, Any], None] = msgspec.structs.force_setattr
#: A class with declared fields, and a value in it that stays JSON.
Struct = msgspec.Struct
Raw = msgspec.Raw


class _Replace(Protocol):
    def __call__(self, struct: _S, /, **changes: Any) -> _S: ...


#: Returns a Struct with some fields replaced.
replaced: _Replace = msgspec.structs.replace
#: Returns the values of a Struct in the order of its fields.
astuple: Callable[[Any], tuple[Any, ...]] = msgspec.structs.astuple
MalformedJSON = msgspec.DecodeError
WrongType = msgspec.ValidationError


def decoder(kind: Any) -> Callable[[str | bytes], Any]:
    """Return a function that decodes JSON as one type. It raises ``MalformedJSON``, or ``WrongType``, a subclass.

    Example::

        from stepwell.engine import Struct, decoder, to_json

        class Counter(Struct):
            count: int = 0

        assert decoder(Counter)(to_json(Counter(count=2))).count == 2
    """
    decode: Callable[[str | bytes], Any] = msgspec.json.Decoder(kind).decode
    return decode


def struct_defaults(kind: type) -> dict[str, Callable[[], Any]]:
    """Return a function for the default of each field of a Struct that has one."""
    defaults: dict[str, Callable[[], Any]] = {}
    for field in msgspec.structs.fields(kind):
        if field.default_factory is not msgspec.NODEFAULT:
            defaults[field.name] = field.default_factory
        elif field.default is not msgspec.NODEFAULT:
            defaults[field.name] = partial(_given, field.default)
    return defaults


def _given(value: Any) -> Any:
    return value
