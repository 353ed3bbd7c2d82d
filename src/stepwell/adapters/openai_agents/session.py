"""The history of a session of the OpenAI Agents SDK in a Stepwell storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agents.memory import SessionSettings

from stepwell import Log, Storage
from stepwell.engine import as_storage, background_loop, masked_text, quoted, run_in_loop
from stepwell.errors import InsideLoop, InvalidOption

if TYPE_CHECKING:
    from agents import TResponseInputItem

__all__ = ["StepwellSession"]

T = TypeVar("T")


class StepwellSession:
    """A ``Session`` of the OpenAI Agents SDK, for any number of workers.

    ``storage``: a storage, which sessions should share, or its URL; then call ``session.close()`` at the end. With a
    URL the session works in any event loop and thread: its storage is open in the library's background loop. A storage
    that you pass is opened in the loop of the first call. While that loop runs, the session works in others too.

    ``namespace``: the namespace of the logs. ``session_settings``: as for other sessions, also as a dict. ``limit``:
    the largest size of a session, in bytes; by default 64 MB.

    Example::

        from stepwell.adapters.openai_agents import StepwellSession

        session = StepwellSession("chat-42", storage)
        await session.add_items([{"role": "user", "content": "Hello"}])
        assert len(await session.get_items()) == 1
    """

    def __init__(
        self,
        session_id: str,
        storage: Storage | str,
        *,
        namespace: str = "openai-agents",
        session_settings: SessionSettings | dict[str, Any] | None = None,
        limit: int | None = None,
    ) -> None:
        self.session_id: str = session_id
        self.session_settings: SessionSettings | None = (
            session_settings if isinstance(session_settings, SessionSettings) else _settings(session_settings)
        )
        #: The storage was made from a URL: ``close()`` then closes it.
        self._owned = isinstance(storage, str)
        self.storage: Storage = as_storage(storage)
        self._log = Log(self.storage, namespace, session_id, limit=limit)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items in order, or the last ``limit`` ones. Reads only these.

        The default is the limit of ``session_settings``. A negative limit returns all items, as in SQLite.
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is None or limit < 0:
            entries = await self._run(self._log.read)
        else:
            most = limit
            entries = (await self._run(lambda: self._log.read(limit=most, reverse=True)))[::-1]
        return [entry.value for entry in entries]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end, all of them or none."""
        if not isinstance(items, list | tuple) or not all(isinstance(item, Mapping) for item in items):
            raise InvalidOption(
                f"add_items() takes a list of dicts, not {quoted(items):.200}; call model_dump() of a model"
            )
        values = [cast("Any", item) for item in items]
        await self._run(lambda: self._log.append(*values))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the last item; ``None`` if there is none."""
        entry = await self._run(self._log.pop)
        return None if entry is None else cast("TResponseInputItem", entry.value)

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._run(self._log.clear)

    def close(self) -> None:
        """Close the storage if it was made from a URL. It blocks until pending operations have ended.

        Raises ``InsideLoop`` if you have opened the storage in the running loop: await ``session.storage.close()``.
        """
        if not self._owned:
            return
        if self.storage.loop is not None and self.storage.loop is asyncio._get_running_loop():
            raise InsideLoop("you opened this storage in the loop, so write 'await session.storage.close()'")
        asyncio.run_coroutine_threadsafe(self.storage.close(), background_loop()).result()

    async def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call in the loop in which the storage is open."""
        # With a URL, the session works in any loop.
        default = background_loop() if self._owned else None
        return await run_in_loop(self.storage, call, self._log.address.text, default=default)


def _settings(given: dict[str, Any] | None) -> SessionSettings:
    try:
        return SessionSettings() if given is None else SessionSettings().resolve(cast("Any", given))
    except TypeError as error:
        raise TypeError(masked_text(str(error))) from None
