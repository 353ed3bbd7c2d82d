"""The events of the page, newest last: updates, written records, and Bot API calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from stepwell.playground.botapi import WorldEvent
from stepwell.web.display import as_json

__all__ = ["Timeline"]

#: The most events that are kept.
MAX_EVENTS = 60
#: Calls for the bot itself, which are not shown.
_HIDDEN = frozenset({"getme", "setmycommands", "deletewebhook", "setwebhook", "getwebhookinfo", "getupdates"})


class Timeline:
    """A bounded list of events as JSON for the page."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._clock = clock
        self._numbers = count(1)
        self._seen: deque[int] = deque(maxlen=1000)

    def update(self, event: WorldEvent) -> None:
        """Add an update to the bot."""
        update = event.body
        again = update.get("update_id") in self._seen
        if not again:
            self._seen.append(update["update_id"])
        kind = next((name for name in update if name != "update_id"), "update")
        body = update.get(kind) or {}
        what = body.get("text") or body.get("data") or ""
        who = body.get("from", {}).get("first_name", "")
        self._add(
            "update", f"{kind}: {what}" if what else kind, who=who, json=as_json(update), again=again,
            id=update["update_id"],
        )  # fmt: skip

    def call(self, event: WorldEvent) -> bool:
        """Add a call of the bot; return whether it is shown."""
        call = event.body
        ok = bool(call["answer"].get("ok"))
        if ok and str(call["method"]).lower() in _HIDDEN:
            return False
        said = call.get("text") or call.get("caption") or ("" if ok else call["answer"].get("description", ""))
        self._add("call", f"{call['method']}: {said}" if said else call["method"], json=as_json(call), failed=not ok)
        return True

    def record(self, title: str, change: dict[str, Any]) -> None:
        """Add a written record."""
        self._add("record", title, json=change)

    def note(self, title: str) -> None:
        """Add another event, such as a restart."""
        self._add("note", title)

    def _add(self, kind: str, title: str, **more: Any) -> None:
        number = next(self._numbers)
        self.events.append({"n": number, "kind": kind, "title": title[:200], "at": self._clock(), **more})
