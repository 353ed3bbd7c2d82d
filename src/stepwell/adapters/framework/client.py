"""The Bot API through the bot of a framework, as ``ctx.bot`` and ``turn.bot`` have it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from stepwell.adapters.framework.sending import MakeCall, PauseOf, Send, attempt, sender
from stepwell.fsm import BotMethods
from stepwell.fsm.engine import save_file

__all__ = ["FrameworkClient"]


class FrameworkClient(BotMethods):
    """Makes calls with the bot of a framework, its session and its limits. Results are JSON, errors are ours.

    ``make`` makes a call, ``pause_of`` reads its errors, and ``fetch`` makes the call ``getFile`` and downloads the
    file: it returns the content and the path at Telegram.
    """

    def __init__(self, bot: Any, make: MakeCall, pause_of: PauseOf, fetch: MakeCall) -> None:
        #: The bot of the framework.
        self.native: Any = bot
        #: Makes a call that is given as a dict.
        self.send: Send = sender(make, pause_of)
        self._try = attempt(make, pause_of)
        self._fetch = sender(fetch, pause_of)

    async def call(self, method: str, /, **params: Any) -> Any:
        """Call a method of the Bot API, and return its result as JSON."""
        return await self.send({"method": method, **params})

    async def try_call(self, method: str, /, **params: Any) -> Any:
        """Make one attempt of a call."""
        return await self._try(method, **params)

    async def download(self, file_id: str, *, to: str | os.PathLike[str] | None = None) -> Any:
        """Download a file that a user has sent, and return its content, or the path that it was saved to."""
        content, path = await self._fetch({"method": "getFile", "file_id": file_id})
        return content if to is None else await asyncio.to_thread(save_file, content, Path(to), Path(path).name)
