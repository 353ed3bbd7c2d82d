"""Values of a commit that are encoded already."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Json", "Sealed"]


class Sealed(NamedTuple):
    """A part that was encoded before its commit."""

    text: str


class Json(str):
    """A value that is already JSON text."""

    __slots__ = ()
