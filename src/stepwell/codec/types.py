"""The registry of user classes whose instances can be stored.

Stored values contain the registered name of a class, never a module: decoding a record imports nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, Flag
from typing import Any, TypeVar, overload

from stepwell._secrets import quoted
from stepwell.codec.json import set_field
from stepwell.errors import InvalidOption, StoredDataError, UnknownType
from stepwell.options import check_text

__all__ = [
    "PACKERS",
    "class_of",
    "ensure_registered",
    "is_registered",
    "packed",
    "record_type",
    "register_shape",
    "unpack",
]

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T", bound=type)

#: For each class, a function that returns the tag, the registered name and the plain parts of an instance.
PACKERS: dict[type, Callable[[Any], tuple[str, str, Any]]] = {}
_UNPACKERS: dict[tuple[str, str], Callable[[Any], Any]] = {}
_OWNERS: dict[tuple[str, str], type] = {}
#: The names that ``ensure_registered`` has given to a class.
_AUTOMATIC: dict[type, set[str]] = {}
#: The names that no class has any more, and that are read as another one.
_guessed: set[str] = set()
#: The classes that are stored under a name that was chosen for them.
_NAMED: set[type] = set()


@overload
def record_type(cls: T) -> T: ...
@overload
def record_type(*, name: str) -> Callable[[T], T]: ...
def record_type(cls: Any = None, *, name: str | None = None) -> Any:
    """Register a class whose instances can be stored: an Enum, a dataclass, a msgspec Struct or a pydantic model.

    ``@record_type`` registers it under its own name, ``@record_type(name="cart")`` under a name that stays when the
    class is renamed. Later versions of the class may add fields with defaults, and remove fields.

    Example::

        @record_type(name="cart")
        @dataclass
        class Cart:
            items: list[str]
    """
    if cls is None:
        return lambda decorated: _registered(decorated, name)
    return _registered(cls, name)


def ensure_registered(cls: type, name: str) -> None:
    """Register a class for a form, a flow or a bot that uses it. A TypedDict is a plain dict and is ignored.

    A class that several of them use has several names. Values with any of these names are read. The stored name is
    that of ``record_type``, else the alphabetically first one, so it does not depend on the order of the calls.
    """
    if issubclass(cls, dict):
        return
    names = _AUTOMATIC.get(cls, set())
    if name in names or (cls in PACKERS and not _is_free(_tag_of(cls), name, cls)):
        return
    _register(cls, name, writes=cls not in _NAMED and name == min({name, *names}))
    _AUTOMATIC[cls] = {name, *names}


def _registered(cls: Any, name: str | None) -> Any:
    if not isinstance(cls, type):
        raise InvalidOption(f"record_type decorates a class, not {quoted(cls)}; pass a name as record_type(name=...)")
    check_text(name, "record_type(name={}): the name must be a non-empty str", optional=True)
    _register(cls, name or cls.__name__, writes=True)
    _NAMED.add(cls)
    return cls


def _register(cls: type, name: str, *, writes: bool) -> None:
    """Read values with this name as instances of a class, and with ``writes`` store its instances under it."""
    shape = next((kind(cls) for accepts, kind in _KINDS if accepts(cls)), None)
    if shape is None:
        raise InvalidOption(
            f"{cls.__qualname__} cannot be registered: record_type supports Enums, dataclasses, msgspec Structs "
            "and pydantic models; make it one of these, or store its plain values"
        )
    tag = _tag_of(cls)
    _own(tag, name, cls)
    if writes:
        PACKERS[cls] = lambda value: (tag, name, shape.pack(value))
    _UNPACKERS[tag, name] = shape.unpack


def register_shape(cls: type, name: str, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
    """Register a class of the library with functions to pack and unpack its instances.

    Example::

        from stepwell.engine import register_shape

        class Point:
            def __init__(self, x, y):
                self.x, self.y = x, y

        register_shape(Point, "geometry.Point", lambda point: [point.x, point.y], lambda stored: Point(*stored))
        await storage.set_data("my_bot", 42, {"here": Point(1, 2)})
        assert (await storage.get_data("my_bot", 42))["here"].y == 2
    """
    if not isinstance(cls, type):
        raise InvalidOption(f"register_shape takes a class, not {quoted(cls)}")
    _own("$record", name, cls)
    PACKERS[cls] = lambda value: ("$record", name, pack(value))
    _UNPACKERS["$record", name] = unpack
    _NAMED.add(cls)


def is_registered(cls: type) -> bool:
    """Return whether objects of this class can be stored, because it is registered.

    Example::

        from stepwell.engine import is_registered

        assert not is_registered(object)
    """
    return cls in PACKERS


def packed(value: Any) -> Any:
    """Return what is stored for an object of a registered class; any other value unchanged.

    Example::

        from stepwell.engine import packed

        assert packed([1, 2]) == [1, 2]
    """
    packer = PACKERS.get(type(value))
    return value if packer is None else packer(value)


def unpack(tag: str, name: str, stored: Any) -> Any:
    """Return an instance of the class that is registered under a name."""
    unpacker = _UNPACKERS.get((tag, name)) or _UNPACKERS.get((tag, _present_name(tag, name)))
    if unpacker is None:
        raise UnknownType(name)
    try:
        return unpacker(stored)
    except StoredDataError:
        raise
    except Exception as error:
        if (tag, name) not in _UNPACKERS:
            # It is of another class than the one that it was read as.
            raise UnknownType(name) from None
        # The original message may contain stored data, so it is left out.
        raise StoredDataError(
            f"a stored {quoted(name)} no longer fits its class ({type(error).__name__}); "
            "give new fields a default, and keep the names of enum members"
        ) from error


def class_of(tag: str, name: str) -> type | None:
    """Return the class that is registered under a name in this process, if any.

    Example::

        from stepwell.engine import class_of

        assert class_of("$record", "unknown") is None
    """
    return _OWNERS.get((tag, name)) or _OWNERS.get((tag, _present_name(tag, name)))


def _present_name(tag: str, name: str) -> str:
    """Return a name of the class that a form, a flow or a bot has registered as ``name``, and that others use too.

    It may have been removed since. The class has the same name, unless several classes have it. A warning says which
    class was chosen, because it may be another one.
    """
    prefix, _, last = name.rpartition(".")
    if not prefix:
        return name
    found = {
        (cls.__module__, cls.__qualname__): min(names)
        for cls, names in _AUTOMATIC.items()
        if cls.__name__ == last and _tag_of(cls) == tag
    }
    if len(found) != 1:
        return name
    (owner, present) = found.popitem()
    if name not in _guessed:
        _guessed.add(name)
        logger.warning(
            "no flow, form or bot registers %r; it is read as %s. If this is another class, give both a name with "
            "@record_type(name=...)",
            name, ".".join(owner),
        )  # fmt: skip
    return present


def _tag_of(cls: type) -> str:
    return "$enum" if issubclass(cls, Enum) else "$record"


def _is_free(tag: str, name: str, cls: type) -> bool:
    owner = _OWNERS.get((tag, name))
    return owner is None or (owner.__module__, owner.__qualname__) == (cls.__module__, cls.__qualname__)


def _own(tag: str, name: str, cls: type) -> None:
    if not _is_free(tag, name, cls):
        owner = _OWNERS[tag, name]
        raise InvalidOption(
            f"the name {quoted(name)} is already registered for {owner.__module__}.{owner.__qualname__}; "
            f"give {cls.__module__}.{cls.__qualname__} another one with @record_type(name=...)"
        )
    _OWNERS[tag, name] = cls


class _Shape(ABC):
    """Packs and unpacks the instances of one class, without calling a constructor of the user."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls

    @abstractmethod
    def pack(self, value: Any) -> Any:
        """Return plain parts. Raises ``AttributeError`` if a field has no value."""

    @abstractmethod
    def unpack(self, stored: Any) -> Any:
        """Return an equal instance, with defaults for fields that were added later."""


class _EnumShape(_Shape):
    def pack(self, value: Any) -> Any:
        # The name of a combination of flags differs between Python versions.
        return value.value if isinstance(value, Flag) else value.name

    def unpack(self, stored: Any) -> Any:
        return self.cls(stored) if issubclass(self.cls, Flag) else self.cls[stored]


class _DataclassShape(_Shape):
    def __init__(self, cls: Any) -> None:
        super().__init__(cls)
        self.fields = dataclasses.fields(cls)

    def pack(self, value: Any) -> Any:
        return {field.name: getattr(value, field.name) for field in self.fields}

    def unpack(self, stored: Any) -> Any:
        value = self.cls.__new__(self.cls)
        for field in self.fields:
            object.__setattr__(value, field.name, self._value(field, stored))
        return value

    def _value(self, field: dataclasses.Field[Any], stored: dict[str, Any]) -> Any:
        if field.name in stored:
            return stored[field.name]
        if field.default is not dataclasses.MISSING:
            return field.default
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        raise LookupError(field.name)


class _StructShape(_Shape):
    def pack(self, value: Any) -> Any:
        return {name: getattr(value, name) for name in self.cls.__struct_fields__}

    def unpack(self, stored: Any) -> Any:
        known = {name: stored[name] for name in self.cls.__struct_fields__ if name in stored}
        value = self.cls(**known)
        if hasattr(self.cls, "__post_init__"):
            for name, field in known.items():
                # __post_init__ may have changed the stored values.
                set_field(value, name, field)
        return value


class _ModelShape(_Shape):
    """A pydantic model, detected by its attributes."""

    def pack(self, value: Any) -> Any:
        # __dict__ also contains cached properties.
        fields = {name: value.__dict__[name] for name in self.cls.model_fields}
        rest = {
            "set": None if value.model_fields_set == set(fields) else set(value.model_fields_set),
            "extra": value.__pydantic_extra__ or None,
            "private": value.__pydantic_private__ or None,
        }
        rest = {name: each for name, each in rest.items() if each is not None}
        return (fields, rest) if rest else fields

    def unpack(self, stored: Any) -> Any:
        fields, rest = stored if isinstance(stored, tuple) else (stored, {})
        values = {}
        for name, field in self.cls.model_fields.items():
            if name not in fields and field.is_required():
                raise LookupError(name)
            values[name] = fields[name] if name in fields else field.get_default(call_default_factory=True)
        model = self.cls.__new__(self.cls)
        model.__setstate__(
            {
                "__dict__": values,
                "__pydantic_fields_set__": rest.get("set", set(fields)),
                "__pydantic_extra__": self._extra(rest),
                "__pydantic_private__": self._private(rest),
            }
        )
        return model

    def _extra(self, rest: dict[str, Any]) -> dict[str, Any] | None:
        return rest.get("extra", {}) if self.cls.model_config.get("extra") == "allow" else None

    def _private(self, rest: dict[str, Any]) -> dict[str, Any] | None:
        declared = self.cls.__private_attributes__
        if not declared:
            return None
        # An attribute without a default may be missing.
        defaults = {name: attribute.get_default() for name, attribute in declared.items()}
        given = {name: value for name, value in defaults.items() if type(value).__name__ != "PydanticUndefinedType"}
        return {**given, **rest.get("private", {})}


_KINDS: list[tuple[Callable[[Any], bool], type[_Shape]]] = [
    (lambda cls: issubclass(cls, Enum), _EnumShape),
    (dataclasses.is_dataclass, _DataclassShape),
    (lambda cls: hasattr(cls, "__struct_fields__"), _StructShape),
    (lambda cls: hasattr(cls, "__pydantic_validator__"), _ModelShape),
]
