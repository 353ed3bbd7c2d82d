"""Checks of the settings of each backend, without its driver."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stepwell.operate.checks import postgres, redis, sqlite
from stepwell.operate.checks.finding import Finding

__all__ = ["check_encryption", "check_settings"]

_CHECKS = {"sqlite": sqlite.check, "redis": redis.check, "postgres": postgres.check}


def check_settings(settings: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about the settings of a storage."""
    check = _CHECKS.get(settings["backend"])
    return [] if check is None else check(settings, time.time())


def check_encryption(settings: Mapping[str, Any]) -> Finding:
    """Return the finding about the keys of an encrypted storage."""
    newest, *older = settings["sealed"]
    text = f"records are encrypted with the key {newest}" + (f"; older keys: {', '.join(older)}" if older else "")
    if not settings["allow_plaintext"]:
        return Finding("encryption", "ok", text)
    advice = "run stepwell rotate-keys, and remove allow_plaintext a day later"
    return Finding("encryption", "warn", f"{text}; plaintext is accepted too", advice)
