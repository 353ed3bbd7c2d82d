"""Import of optional packages, with an error that says how to install them."""

from __future__ import annotations

import re
import warnings
from importlib import import_module, metadata
from typing import Any

from stepwell.errors import ExtraTooOld, MissingExtra

__all__ = ["require"]


def require(
    package: str, extra: str, *, distribution: str | None = None, minimum: str | None = None, below: str | None = None
) -> Any:
    """Import and return an optional package. Raises ``MissingExtra`` or ``ExtraTooOld`` with the pip command.

    ``distribution``: its name on PyPI, if that differs. ``below``: warn if the version is not below this one.

    Example::

        from stepwell.engine import require

        redis = require("redis.asyncio", "redis", distribution="redis", minimum="6.0")
    """
    name = distribution or package
    found = None if minimum is None and below is None else _version(name)
    if found is not None:
        # Check before the import, which may fail in any way for an old version.
        if minimum is not None and _numbers(found) < _numbers(minimum):
            raise ExtraTooOld(name, found, minimum, extra)
        if below is not None and _numbers(found) >= _numbers(below):
            warnings.warn(
                f"this release of stepwell was tested with {name} {minimum} and newer, below {below}; "
                f"{found} is installed and may not work: upgrade stepwell, or run: pip install '{name}<{below}'",
                UserWarning,
                stacklevel=3,
            )
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtra(name, extra) from error


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    release = re.match(r"[0-9.]*", version)
    return [int(part) for part in (release[0] if release else "").split(".") if part]
