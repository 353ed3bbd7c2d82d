"""Checks of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.engine import counted
from stepwell.operate.checks.clock import check_clock
from stepwell.operate.checks.finding import Finding

__all__ = ["check"]

#: The oldest release that the storage supports.
OLDEST = 140_000


def check(settings: Mapping[str, Any], now: float) -> list[Finding]:
    """Return the findings about a PostgreSQL server."""
    version = f"PostgreSQL {settings['server_version']}"
    found = [
        Finding("schema", "ok", f"schema version {settings['schema']}"),
        Finding("server", "ok", version)
        if int(settings["server_version_num"]) >= OLDEST
        else Finding("server", "fail", f"{version} is too old", "use PostgreSQL 14 or newer"),
        check_clock("the server", settings["now"], now),
    ]
    if settings["in_recovery"]:
        found.append(Finding("server", "fail", "the server is a standby and cannot write", "connect to the primary"))
    for name, lost in (("fsync", "a crash can damage the database"), ("full_page_writes", "a crash can damage pages")):
        if settings[name] != "on":
            found.append(Finding("durability", "fail", f"{name} is {settings[name]}: {lost}", f"set {name} = on"))
    found.append(_commits(settings))
    if settings["partitions_wanted"] or settings["partitions"]:
        found.append(_partitions(settings["partitions"], settings["partitions_wanted"], settings["schema_name"]))
    if settings["servers"]:
        found.append(_servers(settings["servers"]))
    if settings["pooled"] and settings["prepared_statements"]:
        advice = "add prepared_statements=false to the URL, or connect to PostgreSQL directly"
        found.append(Finding("pooler", "fail", "a pooler such as PgBouncer is before the server", advice))
    elif settings["pooled"]:
        found.append(Finding("pooler", "ok", "a pooler is before the server, and prepared statements are off"))
    else:
        found.append(Finding("pooler", "ok", "no pooler is before the server"))
    return found


def _commits(settings: Mapping[str, Any]) -> Finding:
    commit, standbys = settings["synchronous_commit"], settings["synchronous_standby_names"]
    if standbys and commit == "local":
        return Finding(
            "durability",
            "warn",
            "synchronous_commit is local: a write is acknowledged before the synchronous standby has it",
            "set synchronous_commit = on, unless a failover may lose the last writes",
        )
    if settings["replicas"] and not standbys:
        return Finding(
            "durability",
            "warn",
            f"{settings['replicas']} standbys replicate asynchronously: a failover may lose acknowledged writes",
            "set synchronous_standby_names, unless that is acceptable",
        )
    kept = "; Stepwell's own writes wait for the disk all the same" if commit == "off" else ""
    return Finding("durability", "ok", f"synchronous_commit is {commit}{kept}")


def _partitions(count: int, wanted: int, schema: str) -> Finding:
    what = f"the tables have {counted(count, 'partition')}" if count else "the tables have no partitions"
    if wanted and wanted != count:
        advice = f"run: select {schema}.partition({wanted}), or remove partitions={wanted} from the URL"  # noqa: S608
        return Finding("partitions", "warn", f"{what}, and the URL says {wanted}", advice)
    return Finding("partitions", "ok", what)


def _servers(servers: Mapping[str, str]) -> Finding:
    """Check the servers of a URL with several."""
    text = "; ".join(f"{server} {role}" for server, role in servers.items())
    if any(role.startswith("was replaced") for role in servers.values()):
        advice = "stop the server that was replaced, and start it again as a standby: it accepts writes, which are lost"
        return Finding("servers", "fail", text, advice)
    if list(servers.values()).count("accepts writes") > 1:
        advice = "if these are not addresses of one server, stop the one that was replaced: its writes are lost"
        return Finding("servers", "warn", text, advice)
    if not {*servers.values()} <= {"accepts writes", "is a standby"}:
        return Finding("servers", "warn", text, "start the missing servers: they are needed when the primary fails")
    return Finding("servers", "ok", text)
