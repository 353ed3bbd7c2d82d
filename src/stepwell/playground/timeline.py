"""What happened, newest last: updates that the bot got, records that it wrote, calls that it made."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from stepwell.playground.botapi import WorldEvent
from stepwell.playground.display import shown

__all__ = ["Timeline"]

#: As many as the page shows.
LENGTH = 60
#: Calls about the bot itself, which nobody in a chat sees.
_QUIET = frozenset({"getme", "setmycommands", "deletewebhook", "setwebhook", "getwebhookinfo", "getupdates"})


class Timeline:
    """A bounded list of moments, each JSON for the page."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.moments: deque[dict[str, Any]] = deque(maxlen=LENGTH)
        self._clock = clock
        self._numbers = count(1)
        self._seen: deque[int] = deque(maxlen=1000)

    def update(self, event: WorldEvent) -> None:
        """The bot is told something."""
        update = event.body
        again = update.get("update_id") in self._seen
        if not again:
            self._seen.append(update["update_id"])
        kind = next((name for name in update if name != "update_id"), "update")
        body = update.get(kind) or {}
        what = body.get("text") or body.get("data") or ""
        who = body.get("from", {}).get("first_name", "")
        self._add(
            "update", f"{kind}: {what}" if what else kind, who=who, json=shown(update), again=again,
            id=update["update_id"],
        )  # fmt: skip

    def call(self, event: WorldEvent) -> bool:
        """The bot has called something; whether it is worth showing."""
        call = event.body
        ok = bool(call["answer"].get("ok"))
        if ok and str(call["method"]).lower() in _QUIET:
            return False
        said = call.get("text") or call.get("caption") or ("" if ok else call["answer"].get("description", ""))
        self._add("call", f"{call['method']}: {said}" if said else call["method"], json=shown(call), failed=not ok)
        return True

    def record(self, title: str, change: dict[str, Any]) -> None:
        """A record was written."""
        self._add("record", title, json=change)

    def note(self, title: str) -> None:
        """Something else, such as a restart."""
        self._add("note", title)

    def _add(self, kind: str, title: str, **more: Any) -> None:
        number = next(self._numbers)
        self.moments.append({"n": number, "kind": kind, "title": title[:200], "at": self._clock(), **more})
