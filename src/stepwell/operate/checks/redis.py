"""Checks of Redis and Valkey servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepwell.engine import counted
from stepwell.operate.checks.clock import check_clock
from stepwell.operate.checks.finding import Finding

__all__ = ["check"]

#: The first release of each series that fixes CVE-2025-49844 (remote code execution through Lua).
_FIXED = {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2}
_FIXED_VALKEY = {(7, 2): 11, (8, 0): 6, (8, 1): 4}

#: Seconds that the Sentinels need to agree on a new master, and the replica to become it.
_ELECTION = 3


def check(settings: Mapping[str, Any], now: float) -> list[Finding]:
    """Return the findings about each master."""
    found: list[Finding] = []
    for location, node in settings["nodes"].items():
        needed = settings.get("wait_for", 1) if settings["durability"] == "wait" else 0
        found += _check_node(location, node, needed, now)
    sentinels = settings.get("sentinels")
    if sentinels:
        found += _check_sentinels(sentinels, settings)
    return found


def _check_sentinels(sentinels: Mapping[str, Mapping[str, str]], settings: Mapping[str, Any]) -> Iterator[Finding]:
    """Return the findings about the Sentinels, and about what their failovers need."""
    for location, known in sentinels.items():
        problem = known.get("problem")
        if problem is None:
            yield Finding("sentinel", "ok", f"{location} can take part in a failover")
        else:
            yield Finding("sentinel", "fail", f"{location}: {problem}", "start it, or fix its address in the URL")
    counts = [int(known["num-other-sentinels"]) + 1 for known in sentinels.values() if "num-other-sentinels" in known]
    if counts and max(counts) < 3:
        yield Finding(
            "sentinels",
            "warn",
            f"there are {max(counts)} Sentinels: without one of them no failover may start",
            "run at least three of them on different machines",
        )
    times = [
        int(known["down-after-milliseconds"]) for known in sentinels.values() if "down-after-milliseconds" in known
    ]
    longest, patience = max(times, default=0) / 1000 + _ELECTION, settings["patience"]
    if longest > patience:
        yield Finding(
            "patience",
            "warn",
            f"a failover takes about {longest:g} s, and calls wait for {patience:g} s only",
            f"set patience={longest:g} in the URL, or lower down-after-milliseconds of the Sentinels",
        )
    for location, node in settings["nodes"].items():
        if "redis_version" in node and "min_slaves_good_slaves" not in node:
            yield Finding(
                "split brain",
                "warn",
                f"{location} accepts writes without replicas, so a former master loses them after a partition",
                "CONFIG SET min-replicas-to-write 1 on all servers, and set it in redis.conf",
            )


def _check_node(location: str, node: Mapping[str, Any], needed: int, now: float) -> Iterator[Finding]:
    if "redis_version" not in node:
        yield Finding(
            "server", "warn", f"{location} does not permit INFO", "add +info to the ACL of the user, for doctor"
        )
        return
    yield _version(location, node)
    if "now" in node:
        yield check_clock(location, node["now"], now)
    policy = node.get("maxmemory_policy", "")
    if policy != "noeviction":
        yield Finding(
            "eviction",
            "fail",
            f"{location} may evict records and claims: maxmemory-policy is {policy or 'unknown'}",
            "CONFIG SET maxmemory-policy noeviction, and set it in redis.conf",
        )
    else:
        yield Finding("eviction", "ok", f"{location} evicts nothing")
    evicted = int(node.get("evicted_keys", 0))
    if evicted:
        advice = "some of them may have been records: compare with a backup"
        yield Finding("evicted", "fail", f"{location} has evicted {counted(evicted, 'key')} since its start", advice)
    if node.get("aof_enabled") == "1":
        yield Finding("persistence", "ok", f"{location} has an append-only file")
    else:
        yield Finding(
            "persistence",
            "warn",
            f"{location} has no append-only file: a restart loses the writes since its last snapshot",
            "CONFIG SET appendonly yes, and set it in redis.conf",
        )
    for name in ("rdb_last_bgsave_status", "aof_last_write_status"):
        if node.get(name, "ok") != "ok":
            yield Finding("persistence", "fail", f"{location}: {name} is {node[name]}", "look at the log and the disk")
    yield _replicas(location, node, needed)


def _version(location: str, node: Mapping[str, Any]) -> Finding:
    valkey = node.get("valkey_version")
    text = valkey or node["redis_version"]
    name = f"{'Valkey' if valkey else 'Redis'} {text} at {location}"
    try:
        major, minor, patch = map(int, text.split(".")[:3])
    except ValueError:
        return Finding("server", "ok", name)
    if (major, minor) < (6, 2):
        return Finding("server", "fail", f"{name} is too old", "use Redis 6.2 or newer, or Valkey")
    fixed = (_FIXED_VALKEY if valkey else _FIXED).get((major, minor))
    series_ended = not valkey and (major, minor) == (7, 0)
    if series_ended or (fixed is not None and patch < fixed):
        return Finding(
            "server",
            "warn",
            f"{name} has CVE-2025-49844 (remote code execution through Lua)",
            f"install {major}.{minor}.{fixed} or newer" if fixed is not None else "install a newer release",
        )
    return Finding("server", "ok", name)


def _replicas(location: str, node: Mapping[str, Any], needed: int) -> Finding:
    """Return the finding about the replicas. ``needed``: how many must have a write before it is acknowledged."""
    replicas = int(node.get("connected_slaves", 0))
    if replicas < needed:
        return Finding(
            "replicas",
            "fail",
            f"{location} has {replicas} of {needed} replicas, so no write is acknowledged with durability=wait",
            "connect a replica, or change durability and wait_for in the URL",
        )
    if replicas and not needed:
        return Finding(
            "replicas",
            "warn",
            f"{location} has {replicas} replicas: a failover may lose acknowledged writes",
            "add durability=wait to the URL, unless that is acceptable",
        )
    return Finding("replicas", "ok", f"{location} has {replicas} replicas")
