"""A pressed button: the runner stops its loading animation, unless its handler does so in time.

A handler that can run at once has some seconds for its own answer. A press that has to wait for another update, which
may take minutes, is answered at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from stepwell.errors import StepwellError
from stepwell.fsm import Update
from stepwell.telegram.calls.client import BotClient

__all__ = ["Press"]

logger: logging.Logger = logging.getLogger("stepwell.telegram")

_METHOD = "answerCallbackQuery"
#: Seconds after which a press is answered whose handler has not ended. Telegram accepts no answer after about 15.
HANDLER_TIME = 3.0
#: Seconds after which a press is answered that waits for another update. Most updates are handled faster.
WAITING_TIME = 0.05
#: Seconds for sending the answer.
TIMEOUT = 15.0


class Press:
    """A pressed button, from the receipt of its update. It gets one answer: the handler's own, or an empty one."""

    __slots__ = ("_begun", "_by_handler", "_client", "_query", "_sending", "_timer", "_update")

    def __init__(self, update: Update, query: str, client: BotClient) -> None:
        self._update = update
        self._query = query
        self._client = client
        #: Its handler has begun.
        self._begun = False
        #: The answer of the handler was accepted.
        self._by_handler = False
        #: Sends the empty answer, and returns whether it was accepted.
        self._sending: asyncio.Task[bool] | None = None
        self._timer = self._answer_after(HANDLER_TIME)

    @classmethod
    def of(cls, update: Update, client: BotClient) -> Press | None:
        """Return the press that an update tells of, if any."""
        query = update.callback_id
        return None if query is None else cls(update, query, client)

    def is_answered_by(self, call: Mapping[str, Any]) -> bool:
        """Return whether a call of the handler answers this press."""
        return call.get("method") == _METHOD and call.get("callback_query_id") == self._query

    def waits(self) -> None:
        """Note that the press waits for another update. It is answered soon, unless its handler begins before that."""
        if not self._begun and self._sending is None:
            self._timer.cancel()
            self._timer = self._answer_after(WAITING_TIME)

    def begins(self) -> None:
        """Note that its handler begins, which has some seconds for its own answer."""
        if not self._begun and self._sending is None:
            self._begun = True
            self._timer.cancel()
            self._timer = self._answer_after(HANDLER_TIME)

    def answer(self) -> None:
        """Start sending the empty answer, unless the press has an answer."""
        self._timer.cancel()
        if self._sending is None and not self._by_handler and not self._client.has_answered(self._query):
            self._sending = asyncio.create_task(self._send(), name="stepwell-press")

    async def admits(self, call: Mapping[str, Any]) -> bool:
        """Return whether an answer of the handler is to be sent. If not, the press is answered already."""
        self._timer.cancel()
        if self._client.has_answered(self._query):
            # With ctx.bot. Telegram takes one answer.
            return False
        if self._sending is None or not await asyncio.shield(self._sending):
            self._sending = None
            return True
        if call.get("text") or call.get("url"):
            logger.warning(
                "the handler of update %s answered a pressed button after more than %g s, or after it had waited for "
                "another update, so its text is not shown; answer first and do slow work in a durable run",
                self._update.update_id, HANDLER_TIME,
            )  # fmt: skip
        return False

    def settle(self, *, accepted: bool) -> None:
        """Note what has become of the handler's answer. Instead of a refused one, the empty answer is sent."""
        self._by_handler = accepted
        if not accepted:
            self.answer()

    async def sent(self) -> None:
        """Wait until the empty answer is sent, if it was started."""
        if self._sending is not None:
            await asyncio.shield(self._sending)

    def _answer_after(self, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self.answer)

    async def _send(self) -> bool:
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._client.call(_METHOD, callback_query_id=self._query)
        except (StepwellError, TimeoutError) as error:
            # The press is old, as after a long stop, or the handler has answered it with a client of its own.
            logger.debug("the press of update %s was not answered: %s", self._update.update_id, error)
            return False
        except Exception:
            logger.exception("the press of update %s could not be answered", self._update.update_id)
            return False
        return True
