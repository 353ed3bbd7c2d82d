"""Checks of an SQLite file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.engine import counted
from stepwell.operate.checks.finding import Finding

__all__ = ["check"]

#: Bytes.
LEAST_FREE = 100 * 1024 * 1024
LARGE_WAL = 256 * 1024 * 1024


def check(settings: Mapping[str, Any], now: float) -> list[Finding]:
    """Return the findings about an SQLite file."""
    version = settings["version"]
    found = [
        Finding("schema", "ok", f"schema version {settings['schema']}"),
        Finding(
            "server",
            "fail",
            f"SQLite {version} can damage a file that several connections write (WAL-reset bug, fixed in 3.51.3)",
            "install apsw from its wheels: pip install --only-binary apsw -U apsw",
        )
        if settings["wal_reset_bug"]
        else Finding("server", "ok", f"SQLite {version}"),
        Finding("durability", "ok", "synchronous is FULL: an acknowledged write survives power loss")
        if settings["synchronous"] == "FULL"
        else Finding(
            "durability",
            "warn",
            f"synchronous is {settings['synchronous']}: power loss may lose the last writes",
            "remove synchronous from the URL, unless that is acceptable",
        ),
    ]
    if "file_system" not in settings:
        return found
    kind = settings["file_system"] or "unknown"
    if settings["network"]:
        advice = "move the file to a local disk, or use PostgreSQL or Redis"
        found.append(Finding("file system", "fail", f"{kind} is a network file system, whose locks fail", advice))
    elif kind in ("tmpfs", "ramfs"):
        found.append(Finding("file system", "warn", f"{kind} is in memory: a restart of the machine loses all records"))
    else:
        found.append(Finding("file system", "ok", kind))
    free = settings["free_bytes"]
    if free < LEAST_FREE:
        found.append(Finding("disk", "warn", f"only {free >> 20} MB are free", "free some space on the disk"))
    else:
        found.append(Finding("disk", "ok", f"{settings['bytes'] >> 10} KB used, {free >> 20} MB free"))
    if settings["wal_bytes"] > LARGE_WAL:
        what = f"the WAL has {settings['wal_bytes'] >> 20} MB"
        advice = "look for a program that keeps a transaction open on the file"
        found.append(Finding("WAL", "warn", what, advice))
    ignored = settings["wal_ignored"]
    if ignored["commits"]:
        what = (
            f"the WAL was damaged when the file was opened: SQLite ignored "
            f"{counted(ignored['frames'], 'intact frame')} behind the damage, with "
            f"{counted(ignored['commits'], 'commit')}"
        )
        advice = "acknowledged writes are probably lost: check the disk, and restore a backup if you need them"
        found.append(Finding("WAL", "fail", what, advice))
    if settings["others_can_read"]:
        found.append(Finding("permissions", "warn", "other users may read the file", "chmod 600 the file"))
    return found
