"""The outcome of one update: handled and answered, failed permanently, or to be retried."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from stepwell.errors import BotUnavailable, Conflict, StorageError
from stepwell.fsm import Router, Update
from stepwell.storage.outage import OutageLog
from stepwell.telegram.sending import Sender

__all__ = ["TEMPORARY", "handle", "log_of_outages", "process", "sender_for_timers"]

logger: logging.Logger = logging.getLogger("stepwell.telegram")

#: Errors that the update did not cause. It is handled again later, and its changes are made once.
TEMPORARY = (Conflict, StorageError, BotUnavailable)


def log_of_outages() -> OutageLog:
    """Return the log of a runner for failures of its storage, which concern all updates."""
    return OutageLog(logger, "updates wait for the storage: %s", "updates are handled again, after %.0f s")


async def handle(router: Router, update: Update) -> list[dict[str, Any]]:
    """Handle an update, and return the calls to make.

    Raises only ``TEMPORARY`` errors. Any other error would recur with every delivery, so it is logged, without
    the update's content, and the update counts as handled.
    """
    try:
        return await router.handle(update)
    except TEMPORARY:
        raise
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        # SystemExit is included: the update stays in the inbox, so it would end every later start too. A handler may
        # raise CancelledError itself.
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        logger.exception("the handler of update %s failed (key %s)", update.update_id, _key_of(router, update))
        return []


async def process(router: Router, sender: Sender, update: Update) -> None:
    """Handle an update and send its answers. Raises only ``TEMPORARY`` errors: retry the update then."""
    calls = await handle(router, update)
    if router.send is None:
        await sender.send_all(calls)


@contextlib.contextmanager
def sender_for_timers(router: Router, sender: Sender) -> Iterator[None]:
    """Send the answers of timers and jobs with this sender, unless the machine has its own."""
    fsm = router.fsm
    assert fsm is not None
    if fsm.send is not None:
        yield
        return
    fsm.send = sender.send
    try:
        yield
    finally:
        fsm.send = None


def _key_of(router: Router, update: Update) -> Any:
    try:
        return None if router.fsm is None else router.fsm.key.extract(update)
    except Exception:  # noqa: BLE001 - the key strategy of the bot may have failed
        return None
