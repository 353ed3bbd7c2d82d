"""What the page shows, in sections; whoever looks on is sent each section anew when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from itertools import count
from typing import Any

__all__ = ["Board"]

#: Seconds in which changes are gathered.
PAUSE = 0.02


class Board:
    """Sections by name. Each is built when it is sent, so a burst of changes costs one building."""

    def __init__(self) -> None:
        self._sections: dict[str, tuple[int, Callable[[], Any]]] = {}
        self._versions = count(1)
        self._watchers: set[asyncio.Event] = set()
        self.closed = False

    def put(self, name: str, build: Callable[[], Any]) -> None:
        """A section is new, or has changed."""
        self._sections[name] = (next(self._versions), build)
        self._wake()

    def close(self) -> None:
        """Nothing more will come."""
        self.closed = True
        self._wake()

    async def follow(self) -> AsyncGenerator[dict[str, Any], None]:
        """The sections that changed since the last time, all of them at first."""
        seen = 0
        came = asyncio.Event()
        came.set()
        self._watchers.add(came)
        try:
            while not self.closed:
                await came.wait()
                await asyncio.sleep(PAUSE)
                came.clear()
                new = {name: build() for name, (version, build) in self._sections.items() if version > seen}
                seen = max((version for version, _ in self._sections.values()), default=seen)
                if new:
                    yield new
        finally:
            self._watchers.discard(came)

    def _wake(self) -> None:
        for came in self._watchers:
            came.set()
