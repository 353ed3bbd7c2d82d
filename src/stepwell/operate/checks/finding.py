"""The result of one check of a storage."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Finding", "Level"]

Level = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """One line of ``stepwell doctor``."""

    #: The name of the check.
    check: str
    level: Level
    #: What was found.
    what: str
    #: What to do; empty if all is well.
    advice: str = ""
