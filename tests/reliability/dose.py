"""Numbers of repetitions: small in ``make test``, large with ``STEPWELL_DOSE=large``; and the seed of a run."""

from __future__ import annotations

import os
import random

#: The numbers that were used since this was last cleared, by name.
USED: dict[str, int] = {}
LARGE = os.environ.get("STEPWELL_DOSE") == "large"


def dose(name: str, small: int, large: int) -> int:
    """Return the small or the large number, or the value of ``STEPWELL_<NAME>``."""
    number = int(os.environ.get(f"STEPWELL_{name}", large if LARGE else small))
    USED[name] = number
    return number


def seeded() -> random.Random:
    """Return a generator seeded with ``STEPWELL_SEED``, or with a random seed; print the seed."""
    seed = int(os.environ.get("STEPWELL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"STEPWELL_SEED={seed}")
    return random.Random(seed)
