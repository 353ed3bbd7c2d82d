"""Typed data: check each field when it is written, and build the whole object on request.

A pydantic model validates its own fields. It is recognised by its attributes, so that pydantic is not imported here.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast

from stepwell._secrets import quoted
from stepwell.codec.json import struct_defaults
from stepwell.codec.values import conform
from stepwell.errors import FieldError, IncompleteData

__all__ = ["DataField", "build", "check_field", "check_fields", "default_of", "fields_of", "is_data_type"]

T = TypeVar("T")

_EXACT = frozenset({str, int, bool, float})


@dataclasses.dataclass(frozen=True, slots=True)
class DataField:
    """A field of a data type."""

    type: Any
    required: bool


def is_data_type(kind: object) -> bool:
    """Return whether a flow's ``data=`` accepts this type."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind)
        or hasattr(kind, "__struct_fields__")
        or _is_typed_dict(kind)
        or _is_pydantic(kind)
    )


def check_fields(flow: str, kind: type | None, fields: Mapping[Any, Any]) -> None:
    """Check fields that are written, each by itself. Raises ``FieldError`` for the first that does not fit."""
    if kind is not None:
        for name, value in fields.items():
            check_field(flow, kind, name, value)


def check_field(flow: str, kind: type, name: object, value: object) -> None:
    """Check one field that is written against the data type of its flow, without converting its value."""
    declared = fields_of(kind)
    field = declared.get(name) if isinstance(name, str) else None
    if field is None:
        if not _takes_any_field(kind):
            expected = f"one of {', '.join(declared) or 'no fields'}"
            raise FieldError(flow, name, expected, f"{kind.__name__} has no such field")
        return
    if _is_pydantic(kind):
        problem = _problem_in_pydantic(kind, str(name), value)
    elif type(value) is field.type and field.type in _EXACT:
        return
    else:
        _, problem = conform(value, field.type)
    if problem is not None:
        raise FieldError(flow, name, _type_name(field.type), problem)


def build(kind: type[T], data: Mapping[Any, Any]) -> T:
    """Return the data as one object of that type. Raises ``IncompleteData`` with every missing or wrong field."""
    if not is_data_type(kind):
        raise TypeError(f"data_as() takes a dataclass, msgspec Struct, TypedDict or pydantic model, got {quoted(kind)}")
    make: Any = kind
    declared = fields_of(make)
    missing = [name for name, field in declared.items() if field.required and name not in data]
    if _is_pydantic(kind):
        return cast(T, _build_pydantic(make, data, missing))
    wrong: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, field in declared.items():
        if name in data:
            values[name], problem = conform(data[name], field.type)
            if problem is not None:
                wrong[name] = problem
    if missing or wrong:
        raise IncompleteData(kind.__name__, missing, wrong)
    # Calling a TypedDict gives a plain dict.
    return cast(T, make(**values))


@lru_cache(maxsize=512)
def fields_of(kind: Any) -> dict[str, DataField]:
    """Return the fields of a data type by name, in their order."""
    if _is_pydantic(kind):
        return {
            name: DataField(field.annotation, bool(field.is_required())) for name, field in kind.model_fields.items()
        }
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"the annotations of {kind.__name__} cannot be resolved ({error}); define the missing name at module level"
        ) from error
    if _is_typed_dict(kind):
        required: frozenset[str] = kind.__required_keys__
        return {name: _typed_dict_field(hint, name in required) for name, hint in hints.items()}
    return {
        name: DataField(hints.get(name, Any), parameter.default is parameter.empty)
        for name, parameter in inspect.signature(kind).parameters.items()
    }


def default_of(kind: Any, name: str) -> Any:
    """Return a new default of a field that has one."""
    if _is_pydantic(kind):
        return kind.model_fields[name].get_default(call_default_factory=True)
    if not dataclasses.is_dataclass(kind):
        return struct_defaults(kind)[name]()
    (field,) = (each for each in dataclasses.fields(kind) if each.name == name)
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _typed_dict_field(hint: Any, required: bool) -> DataField:
    # With postponed annotations Python 3.11 ignores these qualifiers in __required_keys__.
    while (qualifier := getattr(typing.get_origin(hint), "_name", None)) in ("Required", "NotRequired", "ReadOnly"):
        required = {"Required": True, "NotRequired": False}.get(str(qualifier), required)
        (hint,) = typing.get_args(hint)
    return DataField(hint, required)


def _is_typed_dict(kind: type) -> bool:
    return issubclass(kind, dict) and hasattr(kind, "__required_keys__") and hasattr(kind, "__total__")


def _is_pydantic(kind: type) -> bool:
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_fields")


def _takes_any_field(kind: type) -> bool:
    return _is_pydantic(kind) and getattr(kind, "model_config", {}).get("extra") == "allow"


def _problem_in_pydantic(kind: Any, name: str, value: object) -> str | None:
    # Only this field is passed, so errors about missing fields are ignored.
    try:
        kind.model_validate({_alias(kind, name): value}, strict=True)
    except ValueError as error:
        return _pydantic_problems(kind, error).get(name)
    except (AttributeError, KeyError, TypeError):
        # A validator of the whole model read a field that is not set yet.
        return None
    return None


def _build_pydantic(kind: Any, data: Mapping[Any, Any], missing: list[str]) -> Any:
    try:
        return kind.model_validate({_alias(kind, name): value for name, value in data.items()})
    except ValueError as error:
        problems = _pydantic_problems(kind, error)
        wrong = {name: problem for name, problem in problems.items() if name not in missing}
        raise IncompleteData(kind.__name__, missing, wrong) from error


def _alias(kind: Any, name: Any) -> Any:
    field = kind.model_fields.get(name)
    alias = field.validation_alias if field is not None else None
    return alias if isinstance(alias, str) else name


def _pydantic_problems(kind: Any, error: ValueError) -> dict[str, str]:
    listed: Any = getattr(error, "errors", None)
    if not callable(listed):
        return {kind.__name__: str(error)}
    names = {_alias(kind, name): name for name in kind.model_fields}
    problems: dict[str, str] = {}
    for each in listed():
        # An error without a location is about the whole model.
        location = each["loc"][0] if each["loc"] else kind.__name__
        problems.setdefault(str(names.get(location, location)), str(each["msg"]))
    return problems


def _type_name(kind: Any) -> str:
    if isinstance(kind, type) and not typing.get_args(kind):
        return kind.__name__
    return str(kind).replace("typing.", "")
