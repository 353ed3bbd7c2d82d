"""The conversations with turns that the page shows."""

from __future__ import annotations

from typing import Any

__all__ = ["ShownTurns"]

#: The most conversations that are kept.
MAX_CONVERSATIONS = 50


class ShownTurns:
    """What each conversation with turns does, the most recently active last."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], dict[str, Any]] = {}

    def changed(self, report: dict[str, Any], room: str | None, thread: int | None) -> None:
        """Add or replace a status. ``room`` and ``thread`` are its chat and topic; ``None`` if they are not known."""
        at = (report["bot"], report["key"])
        self._shown.pop(at, None)
        self._shown[at] = {**report["status"], "bot": report["bot"], "key": at[1], "room": room, "thread": thread}
        while len(self._shown) > MAX_CONVERSATIONS:
            del self._shown[next(iter(self._shown))]

    def keys_of(self, room: str) -> list[tuple[str, str]]:
        """Return the bot and the key of each conversation in a chat."""
        return [at for at, shown in self._shown.items() if shown["room"] == room]

    def remove(self, bot: str, key: str) -> None:
        """Remove a conversation."""
        self._shown.pop((bot, key), None)

    def json(self) -> list[dict[str, Any]]:
        """Return all conversations, the most recently active first."""
        return list(reversed(self._shown.values()))
