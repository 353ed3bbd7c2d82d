"""Error handling of the webhook examples: which errors are final, and which make Telegram deliver an update again.

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
    """The Bot API refused a call for now."""


#: Answer 503: Telegram delivers the update again, its changes are made once, and its calls are returned again.
TEMPORARY = (Busy, LeaseLost, StorageError, NotSent)


@contextmanager
def logging_final_errors() -> Iterator[None]:
    """Log an exception of a handler, without its update; re-raise a temporary one."""
    try:
        yield
    except TEMPORARY:
        raise
    except Exception:
        logger.exception("the handler of an update failed; the update is acknowledged")


def check_sent(call: Mapping[str, Any], status: int) -> None:
    """Log a call that was refused permanently; raise ``NotSent`` for one that may be sent again."""
    if status == 429 or status >= 500:
        raise NotSent(f"{call['method']}: {status}")
    if status >= 400:
        logger.error("%s was refused with status %d, and is not sent again", call["method"], status)
