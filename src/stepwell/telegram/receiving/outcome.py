"""The outcome of one update: handled and answered, failed permanently, or to be retried."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from stepwell import _portal
from stepwell.errors import BotUnavailable, Busy, Conflict, RecordReplaced, StorageError
from stepwell.fsm import Router, Update
from stepwell.fsm.admin import forgotten_places
from stepwell.fsm.refusals import Origin, sending
from stepwell.storage.transport.outage import OutageLog
from stepwell.telegram.calls.client import BotClient
from stepwell.telegram.receiving.aside import keep_failed
from stepwell.telegram.receiving.press import Press
from stepwell.telegram.sending.sender import Sender

__all__ = ["TEMPORARY", "Unfinished", "chat_of", "line_of", "log_of_outages", "sender_for_timers"]

logger: logging.Logger = logging.getLogger("stepwell.telegram")

#: Errors that the update did not cause. It is handled again later, and its changes are made once.
TEMPORARY = (Conflict, StorageError, BotUnavailable)
#: How often a handler is called whose commit is refused. A handler that blocks the event loop for longer than its lease
#: loses the lease each time.
ATTEMPTS = 3


def log_of_outages() -> OutageLog:
    """Return the log of a runner for failures of its storage, which concern all updates."""
    return OutageLog(logger, "updates wait for the storage: %s", "updates are handled again, after %.0f s")


class Unfinished:
    """An update until it is handled and answered, which may take several attempts."""

    __slots__ = ("_attempts", "_conflicts", "_origin", "calls", "press", "update")

    def __init__(self, update: Update, client: BotClient) -> None:
        self.update: Update = update
        #: The pressed button, if the update tells of one.
        self.press: Press | None = Press.of(update, client)
        #: The calls that are not sent yet; ``None`` until the update is handled.
        self.calls: deque[dict[str, Any]] | None = None
        #: The origin of the calls, if there are any.
        self._origin: Origin | None = None
        #: How often it was handled, and how often the storage refused the commit.
        self._attempts = self._conflicts = 0

    async def process(
        self, router: Router, sender: Sender, on_claim: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Handle the update and send its answers, or continue where the last attempt failed.

        ``on_claim``: awaited once the conversation is claimed, before its handler.

        Raises only ``TEMPORARY`` errors: call it again then. Any other error would recur with every attempt, so it is
        logged, without the update's content, and the update is finished.
        """
        places: set[str] = set()
        temporary: tuple[BaseException, bool] | None = None

        def is_temporary(error: BaseException) -> bool:
            nonlocal temporary
            if temporary is None or temporary[0] is not error:
                temporary = error, self._is_temporary(error, places)
            return temporary[1]

        async def begin() -> None:
            if self.press is not None:
                self.press.begins()
            if on_claim is not None:
                await on_claim()

        collecting = forgotten_places.set(places)
        try:
            if self.calls is None:
                self._attempts += 1
                on_wait = None if self.press is None else self.press.waits
                calls, conversation = await router._collect(self.update, begin, is_temporary, self._attempts, on_wait)
                self.calls, self._origin = deque(calls), conversation.origin if calls else None
            press = self.press
            if press is not None and not any(map(press.is_answered_by, self.calls)):
                press.answer()
            while self.calls:
                assert self._origin is not None
                call = self.calls[0]
                answers = press is not None and press.is_answered_by(call)
                if press is None or not answers or await press.admits(call):
                    with sending(self._origin):
                        if router.send is None:
                            accepted = await sender.send(call)
                        else:
                            accepted = await _portal.call_function(router.send, call)
                    if press is not None and answers:
                        press.settle(accepted=accepted is not False)
                self.calls.popleft()
            if press is not None:
                await press.sent()
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # SystemExit is included: the update stays in the inbox, so it would end every later start too. A handler
            # may raise CancelledError itself.
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            if is_temporary(error):
                raise
            key = _key_of(router, self.update)
            logger.exception("the handler of update %s failed (key %s)", self.update.update_id, key)
            if router.fsm is not None and self.calls is None:
                await keep_failed(router.fsm, self.update, error)
            self.calls = deque()
            if self.press is not None:
                self.press.answer()
                await self.press.sent()
        finally:
            forgotten_places.reset(collecting)
            # The frames of its traceback refer to it.
            temporary = None

    def _is_temporary(self, error: BaseException, forgotten: set[str]) -> bool:
        """Return whether another attempt may succeed. ``forgotten``: the records that the handler has deleted."""
        if isinstance(error, StorageError):
            # The outage may be the reason for earlier conflicts.
            self._conflicts = 0
            return True
        if isinstance(error, BotUnavailable):
            # Before the answers are sent, a client of the handler has raised it.
            return self.calls is not None
        if not isinstance(error, Conflict) or isinstance(error, Busy):
            return isinstance(error, Conflict)
        if isinstance(error, RecordReplaced) and error.place in forgotten:
            error.add_note("fsm.forget() was called in this handler; do not change the conversation after it")
            return False
        self._conflicts += 1
        return self._conflicts < ATTEMPTS


def line_of(router: Router, update: Update) -> Any:
    """Return the updates that an update waits for: those of its chat, or none if it stops or decides something."""
    return ("control", update.update_id) if router.is_control(update) else chat_of(update)


def chat_of(update: Update) -> Any:
    """Return the chat whose updates are handled one after the other: its id, else the user, else the update alone."""
    if update.chat is not None:
        return update.chat.id
    return ("user", update.user.id) if update.user is not None else ("update", update.update_id)


@contextlib.contextmanager
def sender_for_timers(router: Router, sender: Sender) -> Iterator[None]:
    """Send the answers of timers and jobs with this sender, and give its client to handlers.

    A machine that has its own keeps them.
    """
    fsm = router.fsm
    assert fsm is not None
    send, client = fsm.send, fsm.client
    fsm.send, fsm.client = send or sender.send, client or sender.client
    try:
        yield
    finally:
        fsm.send, fsm.client = send, client


def _key_of(router: Router, update: Update) -> Any:
    try:
        return None if router.fsm is None else router.fsm.key.extract(update)
    except Exception:  # noqa: BLE001 - the key strategy of the bot may have failed
        return None
