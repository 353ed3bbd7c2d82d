"""Sends the Bot API calls that handlers collect."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stepwell.errors import BotApiError, BotUnavailable, InvalidOption
from stepwell.fsm.refusals import report_refusal
from stepwell.options import check_function, check_instance
from stepwell.telegram.calls.client import BotClient
from stepwell.texts import fit, make_call

__all__ = ["Sender"]

logger: logging.Logger = logging.getLogger(__name__)

#: Gets the call and the error. It may be a coroutine function.
OnSendError = Callable[[dict[str, Any], BotApiError | InvalidOption], Any]


class Sender:
    """Sends calls with a client, for ``Router(fsm, send=sender.send)`` and ``FSM(..., send=sender.send)``.

    A text that is too long is sent as several messages, and one whose formatting is refused as it is, without markup.
    A call that is refused permanently is logged and passed to ``on_send_error(call, error)``; nothing is raised. The
    error is ``BotBlocked`` if the bot can no longer write to the chat, and ``InvalidOption`` for a call that cannot be
    sent, such as one with a missing file.

    Example::

        async with BotClient(find_token()) as bot:
            sender = Sender(bot, on_send_error=lambda call, error: print(call, error))
            router = Router(fsm, send=sender.send)
    """

    def __init__(self, client: BotClient, *, on_send_error: OnSendError | None = None) -> None:
        check_function(on_send_error, "on_send_error takes a function of the call and the error, got {}", optional=True)
        self.client: BotClient = client
        self.on_send_error: OnSendError | None = on_send_error

    async def send(self, call: Mapping[str, Any]) -> bool:
        """Send a call: ``{"method": "sendMessage", "chat_id": 42, "text": "Hello"}``. Return whether it was accepted.

        Raises ``BotUnavailable`` if the call was not accepted yet and can be sent later.
        """
        params = dict(call)
        method = params.get("method")
        try:
            check_instance(method, str, 'a call needs a "method", such as "sendMessage"')
            for each in fit([params]):
                await make_call(self.client.call, each)
        except BotUnavailable:
            raise
        except (BotApiError, InvalidOption) as error:
            await report_refusal(logger, call, error)
            await self._report(dict(call), error)
        except Exception:
            # Raised again, it would make every delivery of the update fail.
            logger.exception("%s could not be sent", method)
        else:
            return True
        return False

    async def send_all(self, calls: Iterable[Mapping[str, Any]]) -> None:
        """Send calls one after the other. A refused call does not stop the rest; ``BotUnavailable`` does."""
        for call in calls:
            await self.send(call)

    async def _report(self, call: dict[str, Any], error: BotApiError | InvalidOption) -> None:
        if self.on_send_error is None:
            return
        try:
            result = self.on_send_error(call, error)
            if inspect.isawaitable(result):
                await result
        except Exception:
            # The call is final, so an error here must not make the caller send it again.
            logger.exception("on_send_error raised for a refused %s", call.get("method"))
