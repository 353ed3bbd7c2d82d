"""The order of a user's updates in the threads of a ``TeleBot``."""

from __future__ import annotations

import threading
from collections.abc import Hashable

__all__ = ["KeyOrder", "UpdateTurn"]


class UpdateTurn:
    """The place of one update among those with the same key."""

    __slots__ = ("_key", "_order", "_previous", "ended")

    def __init__(self, order: KeyOrder, key: Hashable, previous: UpdateTurn | None) -> None:
        self._order, self._key, self._previous = order, key, previous
        self.ended: threading.Event = threading.Event()

    def __enter__(self) -> None:
        """Wait until the update before this one has ended."""
        # Another thread has taken it already, because threads take updates in their order.
        previous, self._previous = self._previous, None
        if previous is not None:
            previous.ended.wait()

    def __exit__(self, *error: object) -> None:
        self._order.end(self._key, self)
        self.ended.set()


class KeyOrder:
    """The last update of each key that has not ended."""

    def __init__(self) -> None:
        self._last: dict[Hashable, UpdateTurn] = {}
        self._lock = threading.Lock()

    def turn(self, key: Hashable) -> UpdateTurn:
        """Return the turn of an update that arrived now."""
        with self._lock:
            turn = self._last[key] = UpdateTurn(self, key, self._last.get(key))
        return turn

    def end(self, key: Hashable, turn: UpdateTurn) -> None:
        """Forget a turn, if it is the last one of its key."""
        with self._lock:
            if self._last.get(key) is turn:
                del self._last[key]
