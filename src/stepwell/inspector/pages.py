"""All pages and their edits. A page is a module with ``VIEWS``, which read, and ``ACTIONS``, which write."""

from __future__ import annotations

from typing import Any, Final

from stepwell import Storage
from stepwell.inspector import messages, overview, queues, records, runs, turns
from stepwell.inspector.requests import Action, Given, View, text
from stepwell.operate.record import resolve

__all__ = ["ACTIONS", "TAGS", "VIEWS", "current"]

#: By the name of their route.
VIEWS: Final[dict[str, View]] = {
    **overview.VIEWS, **records.VIEWS, **runs.VIEWS, **queues.VIEWS, **turns.VIEWS, **messages.VIEWS,
}  # fmt: skip
#: What returns the version of a page with one read, by the name of its route.
TAGS: Final = runs.TAGS
ACTIONS: Final[dict[str, Action]] = {**records.ACTIONS, **runs.ACTIONS, **turns.ACTIONS, **messages.ACTIONS}


async def current(storage: Storage, given: Given) -> dict[str, Any]:
    """Return what the record or run of a refused request is now."""
    if "id" in given:
        return {"run": await runs.run_json(storage, text(given, "id"))}
    return await records.changed(storage, await resolve(storage, text(given, "bot"), text(given, "key")))
