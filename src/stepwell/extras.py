"""Optional packages: one way to import them, one error that says how to get them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from stepwell.errors import MissingExtra

__all__ = ["require"]


def require(package: str, extra: str) -> Any:
    """An optional package, or ``MissingExtra`` with the line to type."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtra(package, extra) from error
