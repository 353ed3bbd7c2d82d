"""OpenAI Agents SDK: the history of a session in a Stepwell storage.

::

    session = StepwellSession("ann", "postgresql://localhost/agents")
    await Runner.run(agent, "Hello", session=session)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from stepwell._optional import require
from stepwell.errors import InvalidOption
from stepwell.log import Log
from stepwell.storage import Storage
from stepwell.storage.urls import as_storage

require("agents", "openai-agents", distribution="openai-agents", minimum="0.8", below="1")

from agents.memory import SessionSettings  # noqa: E402 - checked first

if TYPE_CHECKING:
    from agents import TResponseInputItem

__all__ = ["StepwellSession"]


class StepwellSession:
    """A ``Session`` of the OpenAI Agents SDK, for any number of workers.

    ``storage``: a storage, which sessions should share, or its URL; then close ``session.storage`` at the end.
    ``namespace``: the namespace of the logs. ``session_settings``: as for other sessions. ``limit``: the largest size
    of a session, in bytes; by default 64 MB.

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
        session_settings: SessionSettings | None = None,
        limit: int | None = None,
    ) -> None:
        self.session_id: str = session_id
        self.session_settings: SessionSettings | None = session_settings
        self.storage: Storage = as_storage(storage)
        self._log = Log(self.storage, namespace, session_id, limit=limit)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items in order, or the last ``limit`` ones. Reads only these."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is None:
            entries = await self._log.read()
        else:
            entries = (await self._log.read(limit=max(limit, 0), reverse=True))[::-1]
        return [entry.value for entry in entries]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end, all of them or none."""
        if not isinstance(items, list | tuple) or not all(isinstance(item, Mapping) for item in items):
            raise InvalidOption(f"add_items() takes a list of dicts, not {items!r:.200}; call model_dump() of a model")
        await self._log.append(*[cast("Any", item) for item in items])

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the last item; ``None`` if there is none."""
        entry = await self._log.pop()
        return None if entry is None else cast("TResponseInputItem", entry.value)

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._log.clear()
