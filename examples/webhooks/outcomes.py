"""What the webhook examples share: which errors are final, and which make Telegram deliver an update again.

An error of a handler and a call that the Bot API refuses would fail again with every delivery, so they are logged and
the update is acknowledged. A busy key, an unavailable storage or Bot API are temporary: the answer is 503.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stepwell.errors import Busy, LeaseLost, StorageError

logger = logging.getLogger(__name__)


class NotSent(Exception):
    """The Bot API did not take a call for now."""


#: Answer 503: Telegram delivers the update again, its changes are made once, and its calls are given again.
TEMPORARY = (Busy, LeaseLost, StorageError, NotSent)


@contextmanager
def logging_final_errors() -> Iterator[None]:
    """Log what a handler raises, without its update, and pass on what is temporary."""
    try:
        yield
    except TEMPORARY:
        raise
    except Exception:
        logger.exception("an update was not handled, and is acknowledged: its handler failed")


def check_sent(call: Mapping[str, Any], status: int) -> None:
    """Log a call that was refused for good, and raise ``NotSent`` for one that may be sent again."""
    if status == 429 or status >= 500:
        raise NotSent(f"{call['method']}: {status}")
    if status >= 400:
        logger.error("%s was refused with status %d, and is not sent again", call["method"], status)
