"""The sections of the page. A changed section is sent again to each open page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from itertools import count
from typing import Any

__all__ = ["Board"]

#: Seconds to collect changes before they are sent.
DEBOUNCE = 0.02


class Board:
    """Sections by name. A section is built when it is sent, so a burst of changes builds it once."""

    def __init__(self) -> None:
        self._sections: dict[str, tuple[int, Callable[[], Any]]] = {}
        self._versions = count(1)
        self._watchers: set[asyncio.Event] = set()
        self.closed: bool = False

    def put(self, name: str, build: Callable[[], Any]) -> None:
        """Add or replace a section."""
        self._sections[name] = (next(self._versions), build)
        self._wake()

    def drop(self, name: str) -> None:
        """Remove a section. Open pages are not notified."""
        self._sections.pop(name, None)

    def watch(self) -> asyncio.Event:
        """Return an event that each change sets, for as long as the board lives."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        return changed

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        self._wake()

    async def follow(self, heartbeat: float | None = None) -> AsyncGenerator[dict[str, Any], None]:
        """Yield all sections, then the changed ones; an empty dict after ``heartbeat`` seconds without a change."""
        seen = 0
        changed = asyncio.Event()
        changed.set()
        self._watchers.add(changed)
        try:
            while not self.closed:
                try:
                    async with asyncio.timeout(heartbeat):
                        await changed.wait()
                except TimeoutError:
                    yield {}
                    continue
                await asyncio.sleep(DEBOUNCE)
                changed.clear()
                new = {name: build() for name, (version, build) in self._sections.items() if version > seen}
                seen = max((version for version, _ in self._sections.values()), default=seen)
                if new:
                    yield new
        finally:
            self._watchers.discard(changed)

    def _wake(self) -> None:
        for changed in self._watchers:
            changed.set()
