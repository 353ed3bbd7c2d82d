"""Import of optional packages, with an error that says how to install them."""

from __future__ import annotations

import re
from importlib import import_module, metadata
from typing import Any

from stepwell.errors import ExtraTooOld, MissingExtra

__all__ = ["require"]


def require(package: str, extra: str, *, minimum: str | None = None) -> Any:
    """Import and return an optional package. Raises ``MissingExtra`` or ``ExtraTooOld`` with the pip command."""
    if minimum is not None:
        # Check before the import, which may fail in any way for an old version.
        found = _version(package)
        if found is not None and _numbers(found) < _numbers(minimum):
            raise ExtraTooOld(package, found, minimum, extra)
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtra(package, extra) from error


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    release = re.match(r"[0-9.]*", version)
    return [int(part) for part in (release[0] if release else "").split(".") if part]
