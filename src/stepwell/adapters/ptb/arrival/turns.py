"""Turns in python-telegram-bot: what no handler of an application takes becomes part of a turn."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from telegram import Update
from telegram.ext import BaseHandler

from stepwell.adapters.framework.retry import TEMPORARY
from stepwell.adapters.framework.turns import AttachedTurns
from stepwell.adapters.ptb.calls import client_of
from stepwell.adapters.ptb.objects import AnyApplication
from stepwell.errors import UsageError
from stepwell.options import check_instance
from stepwell.turns import Turns

__all__ = ["ApplicationTurns", "ControlQueue", "add_turns", "turns_of"]

logger: logging.Logger = logging.getLogger(__name__)

#: The group of handlers behind which turns get their updates: the default one.
GROUP = 0


class _Untaken(BaseHandler[Update, Any, None]):
    """The last handler of its group, which gets what the others do not take."""

    def __init__(self) -> None:
        super().__init__(self._note)
        #: The ids of such updates whose handlers have not ended.
        self.ids: set[int] = set()

    def check_update(self, update: object) -> bool:
        return isinstance(update, Update)

    async def _note(self, update: Update, context: Any) -> None:
        self.ids.add(update.update_id)


class ApplicationTurns:
    """The turns of one application."""

    def __init__(self, turns: Turns) -> None:
        self._attached = AttachedTurns(turns)
        self._last = _Untaken()
        #: The stops that were done when they arrived, and that handlers get too.
        self._done: set[int] = set()

    async def start(self, application: AnyApplication) -> None:
        """Run the turns."""
        await self._attached.start(client_of(application.bot))

    async def stop(self) -> None:
        """Leave the turns that still run after a while to the next process."""
        await self._attached.stop()

    async def arrives(self, update: object) -> bool:
        """Do what an update tells that has arrived, before those that wait. Return whether no handler gets it."""
        if not isinstance(update, Update):
            return False
        raw = _as_json(update)
        if not self._attached.is_control(raw):
            return False
        try:
            if await self._attached.control(raw):
                return True
        except Exception:
            logger.exception("update %d is handled after the others", update.update_id)
        else:
            self._done.add(update.update_id)
        return False

    async def process(
        self, application: AnyApplication, update: Update, process: Callable[[], Awaitable[Exception | None]]
    ) -> Exception | None:
        """Let the handlers of an update run, and take it if none of them does.

        Return the error if it was not stored; it was passed to the error handlers.
        """
        await self.start(application)
        raw = _as_json(update)
        try:
            acts = update.update_id not in self._done and self._attached.is_control(raw)
            if acts and await self._attached.control(raw):
                return None
            self._put_last(application)
            error = await process()
            if error is None and update.update_id in self._last.ids:
                await self._attached.admit(raw)
            return error
        except TEMPORARY as error:
            await application.process_error(update=update, error=error)
            return error
        finally:
            self._done.discard(update.update_id)
            self._last.ids.discard(update.update_id)

    def _put_last(self, application: AnyApplication) -> None:
        """Put the handler behind those that were added since."""
        handlers = application.handlers.get(GROUP)
        if handlers is None or self._last not in handlers:
            application.add_handler(self._last, GROUP)
        elif handlers[-1] is not self._last:
            handlers.remove(self._last)
            handlers.append(self._last)


class ControlQueue:
    """The queue of an updater. Stops and answers to questions do not wait in it."""

    def __init__(self, queue: Any, arrives: Callable[[object], Awaitable[bool]]) -> None:
        #: The queue for all other updates.
        self.queue: Any = queue
        self._arrives = arrives

    async def put(self, update: object) -> None:
        if not await self._arrives(update):
            await self.queue.put(update)


def add_turns(application: AnyApplication, turns: Turns) -> None:
    """Let an application have turns."""
    check_instance(turns, Turns, "attach_turns(application, turns) takes Turns, got {}")
    if application in _turns:
        raise UsageError("turns are attached to this application already")
    added = _turns[application] = ApplicationTurns(turns)
    updater = application.updater
    if updater is not None:
        queue: Any = ControlQueue(updater.update_queue, added.arrives)
        updater.update_queue = queue


def turns_of(application: AnyApplication) -> ApplicationTurns | None:
    """Return the turns of an application, if they were attached."""
    return _turns.get(application)


def _as_json(update: Update) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(update.to_json())
    return found


_turns: WeakKeyDictionary[AnyApplication, ApplicationTurns] = WeakKeyDictionary()
