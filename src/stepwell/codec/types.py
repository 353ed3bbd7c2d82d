"""Classes of the user's that may be stored: only registered ones, under a name that is theirs to choose.

Stored bytes carry that name, never a module: nothing is imported because of what a record says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum, Flag
from typing import Any, TypeVar, overload

from stepwell.errors import InvalidOption, StoredDataError, UnknownType

__all__ = ["PACKERS", "ensure_registered", "record_type", "unpack"]

T = TypeVar("T", bound=type)

#: Class to a function that gives (tag, registered name, plain parts).
PACKERS: dict[type, Callable[[Any], tuple[str, str, Any]]] = {}
_UNPACKERS: dict[tuple[str, str], Callable[[Any], Any]] = {}
_OWNERS: dict[tuple[str, str], type] = {}


@overload
def record_type(cls: T) -> T: ...
@overload
def record_type(*, name: str) -> Callable[[T], T]: ...
def record_type(cls: Any = None, *, name: str | None = None) -> Any:
    """Let instances of a class be stored: an Enum, a dataclass, a msgspec Struct or a pydantic model.

    ``@record_type`` registers it under its own name, ``@record_type(name="cart")`` under one that
    stays when the class is renamed. A later release may add fields that have defaults and drop fields.
    """
    if cls is None:
        return lambda decorated: _registered(decorated, name)
    return _registered(cls, name)


def ensure_registered(cls: type, name: str) -> None:
    """Register a class under this name unless it has one; a TypedDict needs none, its values are plain dicts."""
    if cls not in PACKERS and not issubclass(cls, dict):
        _registered(cls, name)


def _registered(cls: Any, name: str | None) -> Any:
    if not isinstance(cls, type):
        raise InvalidOption(f"record_type decorates a class, not {cls!r}; a name goes in as record_type(name=...)")
    name = name or cls.__name__
    tag = "$record"
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    if issubclass(cls, Enum):
        tag, pack, unpack = "$enum", _pack_enum, lambda stored: _unpack_enum(cls, stored)
    elif dataclasses.is_dataclass(cls):
        fields = dataclasses.fields(cls)
        names = [field.name for field in fields]
        pack = lambda value: {n: getattr(value, n) for n in names}  # noqa: E731
        unpack = lambda stored: _unpack_dataclass(cls, fields, stored)  # noqa: E731
    elif hasattr(cls, "__struct_fields__"):
        pack = lambda value: {n: getattr(value, n) for n in cls.__struct_fields__}  # noqa: E731
        unpack = lambda stored: cls(**{n: stored[n] for n in cls.__struct_fields__ if n in stored})  # noqa: E731
    elif hasattr(cls, "model_construct"):
        pack, unpack = _pack_model, lambda stored: cls.model_construct(_fields_set=set(stored), **stored)
    else:
        raise InvalidOption(
            f"{cls.__qualname__} cannot be registered: record_type takes Enums, dataclasses, msgspec Structs "
            "and pydantic models; make it one of these, or store the plain values it holds"
        )
    _own(tag, name, cls)
    PACKERS[cls] = lambda value: (tag, name, pack(value))
    _UNPACKERS[tag, name] = unpack
    return cls


def unpack(tag: str, name: str, stored: Any) -> Any:
    """An instance of the class registered under a name."""
    unpacker = _UNPACKERS.get((tag, name))
    if unpacker is None:
        raise UnknownType(name)
    try:
        return unpacker(stored)
    except (TypeError, ValueError, LookupError) as error:
        raise StoredDataError(
            f"a stored {name!r} does not fit its class any more ({error}); "
            "give new fields a default, and keep the names of enum members"
        ) from error


def _own(tag: str, name: str, cls: type) -> None:
    owner = _OWNERS.get((tag, name))
    same = owner is None or (owner.__module__, owner.__qualname__) == (cls.__module__, cls.__qualname__)
    if not same and owner is not None:
        raise InvalidOption(
            f"the name {name!r} is already registered for {owner.__module__}.{owner.__qualname__}; "
            f"give {cls.__module__}.{cls.__qualname__} another one with @record_type(name=...)"
        )
    _OWNERS[tag, name] = cls


def _pack_enum(member: Enum) -> Any:
    # A combination of flags has no single name that every Python version agrees on.
    return member.value if isinstance(member, Flag) else member.name


def _unpack_enum(cls: type[Enum], stored: Any) -> Enum:
    return cls(stored) if issubclass(cls, Flag) else cls[stored]


def _unpack_dataclass(cls: type, fields: tuple[dataclasses.Field[Any], ...], stored: dict[str, Any]) -> Any:
    value = cls(**{field.name: stored[field.name] for field in fields if field.init and field.name in stored})
    for field in fields:
        if field.name in stored and (not field.init or getattr(value, field.name) is not stored[field.name]):
            # What __post_init__ made of the stored values is not what was stored.
            object.__setattr__(value, field.name, stored[field.name])
    return value


def _pack_model(model: Any) -> dict[str, Any]:
    # Only its fields: __dict__ also holds cached properties.
    fields = {name: model.__dict__[name] for name in type(model).model_fields if name in model.__dict__}
    return {**fields, **(model.__pydantic_extra__ or {})}
