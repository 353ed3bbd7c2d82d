"""How much of each fault: a little in ``make test``, a lot with ``STEPWELL_DOSE=large``; and the run's seed."""

from __future__ import annotations

import os
import random

LARGE = os.environ.get("STEPWELL_DOSE") == "large"


def dose(name: str, small: int, large: int) -> int:
    """The small or the large number, or the one given as ``STEPWELL_<NAME>``."""
    return int(os.environ.get(f"STEPWELL_{name}", large if LARGE else small))


def seeded() -> random.Random:
    """Randomness from ``STEPWELL_SEED``, or from a seed that is printed."""
    seed = int(os.environ.get("STEPWELL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"STEPWELL_SEED={seed}")
    return random.Random(seed)
