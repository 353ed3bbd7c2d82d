"""Stepwell's conversations in the handlers of a framework: one claim and one commit for each update."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from stepwell.adapters.framework.retry import retry_until_free
from stepwell.errors import BotApiError, DuplicateUpdate, UnknownFlowError
from stepwell.fsm import FSM, Context, Filter
from stepwell.fsm.engine import Conversation, report_refusal, sending

__all__ = ["UpdateConversation", "check_flows", "collect_albums"]

logger: logging.Logger = logging.getLogger(__name__)


class UpdateConversation:
    """The conversation of an update, for ``async with``. Its calls are collected, and the adapter makes them.

    The block gets the context, or ``None`` if the update was handled before. If it raises, nothing is written.
    """

    def __init__(self, fsm: Any, update: Any) -> None:
        self._fsm = fsm
        self._update = update
        self._conversation: Conversation | None = None
        self._ctx: Context | None = None
        #: After the block, the calls to make. The first delivery of an update may have ended before it made its calls.
        self.calls: list[dict[str, Any]] = []
        #: The error of a handler that the framework has caught. Nothing is then written.
        self.failed: Exception | None = None

    async def __aenter__(self) -> Context | None:
        try:
            self._ctx = await retry_until_free(self._enter)
        except DuplicateUpdate as duplicate:
            self.calls = list(duplicate.calls)
        return self._ctx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._conversation is None or self._ctx is None:
            return
        error = error or self.failed
        calls = self._ctx.calls if error is None else []
        await self._conversation.__aexit__(None if error is None else type(error), error, trace)
        self.calls = calls

    @classmethod
    def of_album(cls, conversation: Conversation, ctx: Context[Any]) -> UpdateConversation:
        """Return the conversation of an album, which the machine has entered and leaves."""
        found = cls(ctx._fsm, ctx.update)
        found._conversation, found._ctx = conversation, ctx
        return found

    def add_to_album(self, raw: dict[str, Any]) -> bool:
        """Add the update, given as JSON, to its album. Return ``False`` if it has none, or no handler waits for it."""
        return self._conversation is not None and self._conversation.add_to_album(raw)

    async def keep_refused(self, call: dict[str, Any], error: BotApiError) -> None:
        """Keep a call that was refused for good, and emit ``AnswerRefused``."""
        assert self._conversation is not None
        with sending(self._conversation.origin):
            await report_refusal(logger, call, error)

    async def rollback(self, error: Exception) -> None:
        """Discard the changes of a handler that has raised, and keep the claim."""
        if self._conversation is not None:
            await self._conversation.rollback(error)

    async def _enter(self) -> Context:
        enters = self._fsm.duplicates.choice == "enter"
        self._conversation = Conversation(self._fsm, self._update, collects=True, enters=enters)
        return await self._conversation.__aenter__()


def collect_albums(filters: Iterable[Filter]) -> bool:
    """Return whether a filter waits for albums."""
    return any(each._collects_albums for each in filters)


def check_flows(fsm: FSM, filters: Iterable[Filter]) -> None:
    """Raise ``UnknownFlowError`` if a filter names a flow that a machine does not have."""
    for each in filters:
        for name in sorted(each.flows):
            if name not in fsm.flows:
                raise UnknownFlowError(name, fsm.flows)
