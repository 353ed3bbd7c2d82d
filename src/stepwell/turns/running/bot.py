"""The client of the bot in a turn."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stepwell.fsm import BotMethods
from stepwell.turns.base import AttemptBase

__all__ = ["TurnBot"]

#: What sends no message to a chat, although its name says so.
_NO_MESSAGE = frozenset({"sendChatAction", "sendMessageDraft", "sendRichMessageDraft", "sendGift"})


class TurnBot(BotMethods):
    """A client that completes the text of a stream before it sends another message to the chat of the turn."""

    def __init__(self, client: BotMethods, attempt: AttemptBase) -> None:
        self._client = client
        self._attempt = attempt

    async def call(self, method: str, /, **params: Any) -> Any:
        """Call a method of the Bot API, and return its result. Raises ``BotApiError`` if it is refused."""
        if method.startswith(("send", "copy", "forward")) and method not in _NO_MESSAGE:
            chat = params.get("chat_id")
            if chat is not None and str(chat) == str(self._attempt.turn_chat):
                await self._attempt.flush()
        return await self._client.call(method, **params)

    async def try_call(self, method: str, /, **params: Any) -> Any:
        """Make one attempt of a call."""
        return await self._client.try_call(method, **params)

    async def download(self, file_id: str, *, to: str | os.PathLike[str] | None = None) -> Any:
        """Download a file that a user has sent, and return its content, or the path that it was saved to."""
        return await self._client.download(file_id, to=to)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a method of the Bot API, or what else the client has."""
            if name in BotMethods.__annotations__:
                return super().__getattr__(name)
            return getattr(self._client, name)
