"""Values that must fit a type: their check where the class is known, and by its JSON schema where it is not."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from stepwell._secrets import displayed, quoted
from stepwell.codec.json import WrongType, convert, json_schema, to_builtins
from stepwell.codec.types import ensure_registered
from stepwell.errors import InvalidOption

__all__ = ["Accepted", "problem_in"]

#: The kinds of JSON values by their name in a schema.
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list, tuple),
    "object": (dict,),
}
#: Their classes, which need no registration to be stored.
_PLAIN: Final = tuple({kind for kinds in _KINDS.values() for kind in kinds})
_LIMITS: Final[Mapping[str, tuple[str, Callable[[Any, Any], bool]]]] = {
    "minimum": (">=", operator.ge),
    "maximum": ("<=", operator.le),
    "exclusiveMinimum": (">", operator.gt),
    "exclusiveMaximum": ("<", operator.lt),
}
_SIZES: Final[Mapping[type, tuple[str, str]]] = {
    str: ("minLength", "maxLength"),
    list: ("minItems", "maxItems"),
    dict: ("minProperties", "maxProperties"),
}
#: Schemas may refer to themselves.
_DEPTH: Final = 64


class Accepted:
    """A type that values must fit: a dataclass, Struct, TypedDict, pydantic model, Enum, Literal, or a plain type.

    Values are stored as plain JSON values. ``name``: that of the owner, as a part of the name under which a class is
    registered. Raises ``InvalidOption`` for a type without a JSON schema.
    """

    def __init__(self, kind: Any, name: str) -> None:
        self._kind = kind
        self._model = hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")
        try:
            self.schema: dict[str, Any] = kind.model_json_schema() if self._model else json_schema(kind)
        except (TypeError, NameError) as error:
            # The text of the error has what was passed.
            why = displayed(str(error))
            raise InvalidOption(
                f"accepts={quoted(kind)} has no JSON schema ({why}); give a dataclass, a msgspec Struct, a "
                "TypedDict, a pydantic model, an Enum, a Literal, or a plain type such as bool or list[str]"
            ) from (error if why == str(error) else None)
        if isinstance(kind, type) and (self._model or not issubclass(kind, _PLAIN)):
            # A node may put the value into the shared state.
            ensure_registered(kind, f"{name}.{kind.__name__}")

    def plain(self, value: Any) -> Any:
        """Return a value as it is stored; raise ``ValueError`` with the problem if it does not fit."""
        if self._model:
            return self._validated(value).model_dump(mode="json")
        return to_builtins(self.value(value))

    def value(self, plain: Any) -> Any:
        """Return a stored value as the type; raise ``ValueError`` with the problem if it does not fit."""
        if self._model:
            return self._validated(plain)
        try:
            return convert(to_builtins(plain), self._kind)
        except (WrongType, TypeError) as error:
            raise ValueError(str(error)) from None

    def _validated(self, value: Any) -> Any:
        try:
            return self._kind.model_validate(value)
        except ValueError as error:
            problems: Any = getattr(error, "errors", None)
            if problems is None:
                raise
            # The text of the error has the value.
            rows = problems(include_input=False, include_url=False, include_context=False)
            texts = [f"{row['msg']}{_at('$', *row['loc'])}" for row in rows]
            raise ValueError("; ".join(texts)) from None


def _at(*path: Any) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path[1:])
    return f" - at `${text}`" if text else ""


def problem_in(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return why a value does not fit a JSON schema, or ``None``.

    It knows what the schemas of msgspec and pydantic consist of. Other keywords are not checked.
    """
    return _problem(value, schema, schema, "", _DEPTH)


def _problem(value: Any, schema: Any, root: Mapping[str, Any], path: str, depth: int) -> str | None:
    if not isinstance(schema, Mapping) or not depth:
        return None
    at = f" - at `${path}`" if path else ""
    if "$ref" in schema:
        found: Any = root
        for step in str(schema["$ref"]).removeprefix("#/").split("/"):
            found = found.get(step, {}) if isinstance(found, Mapping) else {}
        return _problem(value, found, root, path, depth - 1)
    for part in schema.get("allOf", ()):
        if problem := _problem(value, part, root, path, depth - 1):
            return problem
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        problems = [_problem(value, choice, root, path, depth - 1) for choice in choices]
        if None not in problems:
            # The one about an inner value says more than that of another kind of value.
            return max([problem for problem in problems if problem], key=lambda problem: "`$" in problem)
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if allowed is not None and not any(each == value and type(each) is type(value) for each in allowed):
        return f"Expected one of {', '.join(map(quoted, allowed))}{at}"
    kinds = schema.get("type")
    names = kinds if isinstance(kinds, list) else [kinds] if kinds else []
    if names and not any(_is(value, name) for name in names):
        return f"Expected {' or '.join(map(str, names))}, got {_name_of(value)}{at}"
    return _bounds(value, schema, at) or _inside(value, schema, root, path, depth)


def _bounds(value: Any, schema: Mapping[str, Any], at: str) -> str | None:
    """Return which bound of a number or a length a value exceeds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        for name, (sign, fits) in _LIMITS.items():
            if name in schema and not fits(value, schema[name]):
                return f"Expected a number {sign} {schema[name]}{at}"
    least, most = next((names for kind, names in _SIZES.items() if isinstance(value, kind)), ("", ""))
    if least in schema and len(value) < schema[least]:
        return f"Expected a length of at least {schema[least]}{at}"
    if most in schema and len(value) > schema[most]:
        return f"Expected a length of at most {schema[most]}{at}"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        return f"Expected a text that matches {quoted(schema['pattern'])}{at}"
    return None


def _inside(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], path: str, depth: int) -> str | None:
    """Return the problem of a field or an item of a value."""
    if isinstance(value, dict):
        declared = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                return f"Object missing required field `{name}`" + (f" - at `${path}`" if path else "")
        others = schema.get("additionalProperties", True)
        for name, inside in value.items():
            if name not in declared and others is False:
                return f"Object contains unknown field `{name}`" + (f" - at `${path}`" if path else "")
            if problem := _problem(inside, declared.get(name, others), root, f"{path}.{name}", depth - 1):
                return problem
    if isinstance(value, list | tuple):
        first = schema.get("prefixItems", ())
        for index, inside in enumerate(value):
            item = first[index] if index < len(first) else schema.get("items", True)
            if item is False:
                return f"Expected {len(first)} items, got {len(value)}" + (f" - at `${path}`" if path else "")
            if problem := _problem(inside, item, root, f"{path}[{index}]", depth - 1):
                return problem
    return None


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS.get(name, (object,)))


def _name_of(value: Any) -> str:
    return next((name for name in _KINDS if _is(value, name)), type(value).__name__)
