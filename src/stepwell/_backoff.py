"""Growing pauses between retries."""

from __future__ import annotations

import random

__all__ = ["backoff", "jittered"]

#: Doublings after which a pause does not grow; more would overflow a float.
_MOST_DOUBLINGS = 64


def backoff(failures: int, first: float, longest: float) -> float:
    """Return the pause in seconds after a number of failures in a row: the first one doubles up to the longest.

    Example::

        from stepwell.engine import backoff

        assert [backoff(failures, 0.5, 5.0) for failures in (1, 2, 3, 9)] == [0.5, 1.0, 2.0, 5.0]
    """
    return min(first * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS), longest)


def jittered(seconds: float) -> float:
    """Return a random pause of half to all of these seconds, so that clients do not retry at the same moment."""
    return seconds * random.uniform(0.5, 1.0)
