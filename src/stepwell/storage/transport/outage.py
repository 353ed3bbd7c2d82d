"""The log of an outage: one line when it begins, few while it lasts, one when it is over."""

from __future__ import annotations

import logging
import math
from time import monotonic

__all__ = ["OutageLog"]

#: The shortest and the longest interval between warnings about one outage, in seconds.
WARN_EVERY = (60.0, 600.0)
#: Seconds without a failure after which an outage is over.
CALM = 5.0


class OutageLog:
    """Logs the failures of a storage, which fails for many callers at once.

    ``failing`` is the format of a warning, with the error; ``over`` that of the last line, with the seconds.
    """

    def __init__(self, logger: logging.Logger, failing: str, over: str) -> None:
        self._logger = logger
        self._failing = failing
        self._over = over
        #: When the first failure of this outage was; ``None`` without an outage.
        self._since: float | None = None
        self._last = self._warn_at = -math.inf
        self._every = WARN_EVERY[0]

    def failed(self, error: Exception) -> None:
        """Note a failure, and log it if it is the first one or the last warning is long ago."""
        now = self._last = monotonic()
        if self._since is None:
            self._since, self._warn_at, self._every = now, now, WARN_EVERY[0]
        if now >= self._warn_at:
            self._logger.warning(self._failing, error)
            self._warn_at, self._every = now + self._every, min(2 * self._every, WARN_EVERY[1])

    def worked(self) -> None:
        """Note a success, and log the end of an outage."""
        if self._since is not None and monotonic() - self._last >= CALM:
            self._logger.warning(self._over, self._last - self._since)
            self._since = None
