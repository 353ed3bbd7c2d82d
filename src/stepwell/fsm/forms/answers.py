"""Answers to the questions of a form: which text fits the type of a field, and which choices it has."""

from __future__ import annotations

import datetime as dt
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from stepwell._secrets import quoted
from stepwell.codec.json import WrongType, convert
from stepwell.errors import FieldError, InvalidOption
from stepwell.fsm.flows import typed

__all__ = ["Choice", "Question", "fields_of", "questions_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A value that is offered as a button."""

    #: Names it in button data and string ids.
    key: str
    value: Any
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A field of a model, and how its answer is read."""

    name: str
    #: The type of the answer: the declared type without ``None`` and annotations.
    kind: Any
    #: A text is passed on unread if the type is unknown here, because the model reads it.
    reads_itself: bool
    #: Returns the value of a skipped answer; ``None`` if the field is required.
    default: Callable[[], Any] | None
    choices: tuple[Choice, ...]

    def read(self, text: str) -> tuple[Any, str | None]:
        """Return the value of a text, and ``None``; or the text, and the id of the string about the problem."""
        parse, bad = _READERS.get(self.kind, (None, "bad_value"))
        if parse is None:
            if self.reads_itself:
                return text, None
            parse = self._convert
        try:
            return parse(text), None
        except (ValueError, ArithmeticError):
            return text, bad

    def _convert(self, text: str) -> Any:
        try:
            return convert(text, self.kind, strict=False)
        except WrongType as error:
            raise ValueError(str(error)) from error


def fields_of(model: Any) -> dict[str, typed.DataField]:
    """Return the fields of a model by name. Raises ``InvalidOption`` for another type."""
    if not typed.is_data_type(model) or issubclass(model, dict):
        raise InvalidOption(f"Form() takes a dataclass, msgspec Struct or pydantic model, got {quoted(model)}")
    return typed.fields_of(model)


def questions_of(model: type, names: tuple[str, ...] | None, parsed: Mapping[str, object]) -> tuple[Question, ...]:
    """Return the questions for these fields of a model, or for all. Fields in ``parsed`` may have any type."""
    fields = fields_of(model)
    asked = tuple(fields) if names is None else names
    if not asked:
        raise InvalidOption(f"{model.__name__} has no fields to ask for")
    missing = [name for name, field in fields.items() if field.required and name not in asked]
    if missing:
        raise InvalidOption(f"{model.__name__}.{missing[0]} has no default, so the form must ask for it")
    return tuple(_question(model, name, fields[name], name in parsed) for name in asked)


def _question(model: type, name: str, field: typed.DataField, parsed: bool) -> Question:
    kind, nullable = _bare(field.type)
    reads_itself = hasattr(model, "model_fields")
    if not parsed and (_is_compound(kind) or not (reads_itself or kind in _READERS or _is_readable(kind))):
        raise InvalidOption(
            f"{model.__name__}.{name} is a {kind}, which cannot be read from a text; "
            f"pass a function of the text: parse={{{quoted(name)}: ...}}"
        )
    default: Callable[[], Any] | None = None
    if not field.required:
        default = _default(model, name)
        try:
            typed.check_field("form", model, name, default())
        except FieldError as error:
            raise InvalidOption(
                f"the default of {model.__name__}.{name} does not fit its type: {error.problem}"
            ) from error
    elif nullable:
        default = _nothing
    choices = () if parsed else tuple(_choices(kind))
    keys = [choice.key for choice in choices]
    for key in keys:
        if keys.count(key) > 1:
            raise InvalidOption(
                f"{model.__name__}.{name} has two choices with the text {quoted(key)}; give each its own text"
            )
    return Question(name=name, kind=kind, reads_itself=reads_itself, default=default, choices=choices)


def _bare(kind: Any) -> tuple[Any, bool]:
    """Return a type without ``None`` and annotations, and whether ``None`` is allowed."""
    nullable = False
    while True:
        origin = typing.get_origin(kind)
        if origin is typing.Annotated:
            kind = typing.get_args(kind)[0]
        elif origin in (typing.Union, types.UnionType):
            members = [each for each in typing.get_args(kind) if each is not type(None)]
            nullable = nullable or len(members) < len(typing.get_args(kind))
            if len(members) != 1:
                return kind, nullable
            kind = members[0]
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        else:
            return kind, nullable


def _default(model: type, name: str) -> Callable[[], Any]:
    return lambda: typed.default_of(model, name)


def _nothing() -> None:
    return None


def _is_compound(kind: Any) -> bool:
    plain = typing.get_origin(kind) or kind
    return typed.is_data_type(plain) or plain in (list, tuple, dict, set, frozenset, bytes)


def _is_readable(kind: Any) -> bool:
    """Return whether msgspec supports the type."""
    try:
        convert("", kind, strict=False)
    except WrongType:
        return True
    except TypeError:
        return False
    return True


def _choices(kind: Any) -> typing.Iterator[Choice]:
    if kind is bool:
        yield Choice(key="yes", value=True, label="Yes")
        yield Choice(key="no", value=False, label="No")
    elif typing.get_origin(kind) is typing.Literal:
        for value in typing.get_args(kind):
            if value is not None:
                yield Choice(key=str(value), value=value, label=str(value))
    elif isinstance(kind, type) and issubclass(kind, Enum):
        for member in kind:
            yield Choice(key=member.name, value=member, label=member.name.replace("_", " ").capitalize())


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _decimal(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError(text)
    return number


def _timedelta(text: str) -> dt.timedelta:
    try:
        found: dt.timedelta = convert(text, dt.timedelta, strict=False)
    except WrongType as error:
        raise ValueError(str(error)) from error
    return found


#: How a text is read, and the id of the string for a text that cannot be.
_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    str: (str, "bad_value"),
    int: (int, "bad_int"),
    float: (_number, "bad_number"),
    Decimal: (_decimal, "bad_number"),
    dt.date: (dt.date.fromisoformat, "bad_date"),
    dt.datetime: (dt.datetime.fromisoformat, "bad_datetime"),
    dt.time: (dt.time.fromisoformat, "bad_time"),
    dt.timedelta: (_timedelta, "bad_value"),
    UUID: (UUID, "bad_value"),
}
