"""The check of a server's clock, for backends with a server."""

from __future__ import annotations

from stepwell.operate.checks.finding import Finding

__all__ = ["check_clock"]

#: Seconds.
MOST_SKEW = 2.0


def check_clock(server: str, theirs: float, ours: float) -> Finding:
    """Compare the clock of a server with that of this machine."""
    skew = theirs - ours
    if abs(skew) <= MOST_SKEW:
        return Finding("clock", "ok", f"the clock of {server} differs by {abs(skew):.1f} s")
    return Finding(
        "clock",
        "warn",
        f"the clock of {server} is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine",
        "synchronise both with NTP; timers and leases use the clock of the server",
    )
