"""Telegram's objects of a framework as stored values. Each class has a name in a table; nothing is imported by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Any

from stepwell.engine import register_shape

__all__ = ["classes_in", "register_classes", "register_enums", "without_enums"]


def classes_in(module: ModuleType, base: type | tuple[type, ...]) -> list[type]:
    """Return the classes of a module that inherit from ``base``."""
    # Some have a second name in the module.
    found = {each for each in vars(module).values() if isinstance(each, type) and issubclass(each, base)}
    return sorted(found, key=lambda cls: cls.__name__)


def register_classes(
    library: str, classes: Iterable[type], pack: Callable[[Any], Any], unpack: Callable[[Any, Any], Any]
) -> None:
    """Store the instances of classes as ``<library>.<class>`` with what ``pack`` returns.

    ``unpack`` is called with the class and the stored parts.
    """
    for cls in classes:
        register_shape(cls, f"{library}.{cls.__name__}", pack, partial(unpack, cls))


def register_enums(library: str, module: ModuleType) -> None:
    """Store the members of a module's Enums, such as ``ParseMode.HTML``, by their values."""
    for cls in classes_in(module, Enum):
        if cls.__module__.startswith(module.__name__):
            register_shape(cls, f"{library}.{cls.__name__}", _value_of, cls)


def _value_of(member: Enum) -> Any:
    return member.value


def without_enums(value: Any) -> Any:
    """Return parts of an object with the values of enum members in place of them."""
    if isinstance(value, Enum):
        return without_enums(value.value)
    if isinstance(value, dict):
        return {name: without_enums(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_enums(each) for each in value]
    return value
