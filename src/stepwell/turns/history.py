"""The history of a conversation: entries of any value, in the record of its turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell import Log, LogEntry, Storage
from stepwell.engine import TURNS

__all__ = ["History"]


class History:
    """The entries of a conversation, oldest first.

    ``turn.history`` is that of the turn: what it appends is stored by the write that ends the turn, and a turn that
    does not end well appends nothing. ``turns.history(conversation)`` is that of any other program: it appends at once.

    Example::

        @turns.handler
        async def answer(turn):
            reply = await ask_model(await turn.history.read(last=20), turn.text)
            turn.history.append({"role": "user", "content": turn.text}, {"role": "assistant", "content": reply})
            turn.answer(reply)
    """

    def __init__(self, storage: Storage, bot: str, conversation: Any, *, collects: bool = False) -> None:
        self._log = Log(storage, TURNS, (bot, conversation))
        #: What the turn has appended; ``None``: entries are appended at once.
        self.appended: list[Any] | None = [] if collects else None

    async def read(self, *, last: int | None = None) -> list[Any]:
        """Return the values, or the last ones, with those that this turn has appended."""
        own = self.appended or []
        if last is not None and last <= len(own):
            return own[len(own) - last :]
        stored = await self.entries(last=None if last is None else last - len(own))
        return [entry.value for entry in stored] + own

    async def entries(self, *, last: int | None = None) -> list[LogEntry]:
        """Return the stored entries with their numbers, which ``compact`` takes."""
        if last is None:
            return await self._log.read()
        return (await self._log.read(limit=last, reverse=True))[::-1]

    def append(self, *values: Any) -> Any:
        """Append values. In a turn they are stored with its end; elsewhere write ``await history.append(...)``."""
        if self.appended is None:
            return self._log.append(*values)
        self.appended += values
        return _DONE

    async def compact(self, upto: int | LogEntry, with_: Sequence[Any] = ()) -> bool:
        """Replace the entries up to ``upto`` with others, such as a summary of them; see ``Log.compact``."""
        return await self._log.compact(upto, with_)

    async def clear(self) -> None:
        """Remove all entries, and what this turn has appended."""
        if self.appended is not None:
            self.appended.clear()
        await self._log.clear()


class _Done:
    """What ``append`` returns in a turn, so that it may be awaited as everywhere else."""

    def __await__(self) -> Any:
        return
        yield


_DONE = _Done()
