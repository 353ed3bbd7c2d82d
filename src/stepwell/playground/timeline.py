"""The events of the page, in groups: each update, fired timer or job, with its writes, Bot API calls and errors.

The bot's process reports which update caused a write or an error. A Bot API call names only its chat, so it belongs to
the update or timer that the bot handled there when it arrived.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from stepwell.playground.botapi import WorldEvent
from stepwell.web.display import as_json

__all__ = ["MAX_EVENTS", "MAX_GROUPS", "EventGroup", "Timeline"]

#: The most groups that are kept, and the most events of each.
MAX_GROUPS, MAX_EVENTS = 100, 50
#: Calls for the bot itself, which are not shown.
_HIDDEN = frozenset({"getme", "setmycommands", "deletewebhook", "setwebhook", "getwebhookinfo", "getupdates"})
#: Seconds after its last event in which a group still takes calls to its chat, although another chat is active.
_RECENT = 1.0


@dataclass(slots=True, eq=False)
class EventGroup:
    """An update to the bot, a timer, a job or a note, with all that followed from it."""

    n: int
    #: ``update``, ``timer``, ``job`` (a write without an update), ``call`` (before the first update) or ``note``.
    kind: str
    title: str
    #: When it was delivered, in seconds since 1970.
    at: float
    #: The user and the chat; ``None`` if not known.
    user: int | None = None
    chat: int | None = None
    who: str = ""
    update: dict[str, Any] | None = None
    #: The JSON of a call.
    about: dict[str, Any] | None = None
    #: The update was delivered before.
    again: bool = False
    #: The call was refused.
    failed: bool = False
    #: The machine and the key of the conversation.
    bot: str | None = None
    key: str | None = None
    #: When the bot began to handle it.
    started: float | None = None
    #: The machine has handled this update before.
    duplicate: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def begin(self) -> float:
        """When it was handled, or delivered if the bot does not report it."""
        return self.at if self.started is None else self.started

    @property
    def end(self) -> float:
        """The time of its last event."""
        times: list[float] = [event["at"] for event in self.events]
        return max([self.begin, *times])

    def json(self) -> dict[str, Any]:
        """Return the group for the page."""
        calls = any(event["kind"] == "call" for event in self.events)
        return {
            "n": self.n,
            "kind": self.kind,
            "title": self.title,
            "at": self.at,
            "user": self.user,
            "who": self.who,
            "key": self.key,
            "duration": self.end - self.begin if self.events else None,
            "again": self.again,
            "duplicate": ("answered" if calls else "silent") if self.duplicate else None,
            "failed": self.failed or any(event["failed"] for event in self.events),
            "update_id": None if self.update is None else self.update["update_id"],
            "json": as_json(self.update or self.about),
            "events": [
                {**event, "json": as_json(event["json"])} for event in sorted(self.events, key=lambda each: each["at"])
            ],
        }


class Timeline:
    """A bounded list of groups, oldest first. ``changed`` is called with each new or changed group."""

    def __init__(
        self, changed: Callable[[EventGroup], None] | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.groups: deque[EventGroup] = deque(maxlen=MAX_GROUPS)
        self._changed = changed
        # Not the clock of the Bot API: these times are compared with those of the bot's process.
        self._clock = clock
        self._numbers = count(1)

    # Events of the local Bot API

    def update(self, event: WorldEvent) -> None:
        """Add an update to the bot."""
        update = event.body
        kind = next((name for name in update if name != "update_id"), "update")
        body = update.get(kind) or {}
        said = body.get("text") or body.get("data") or body.get("query") or ""
        sender = body.get("from") or {}
        chat = body.get("chat") or body.get("message", {}).get("chat") or sender
        title = said if kind == "message" and said else f"{kind}: {said}" if said else kind
        self._add(
            "update", title, user=sender.get("id"), who=sender.get("first_name", ""), chat=chat.get("id"),
            update=update, again=any(self._with_update(update["update_id"])),
        )  # fmt: skip

    def call(self, event: WorldEvent) -> None:
        """Add a call of the bot."""
        call = event.body
        ok = bool(call["answer"].get("ok"))
        if ok and str(call["method"]).lower() in _HIDDEN:
            return
        said = call.get("text") or call.get("caption") or ("" if ok else call["answer"].get("description", ""))
        title = f"{call['method']}: {said}" if said else str(call["method"])
        self._put(self._group_of_call(call), "call", title, call, failed=not ok)

    def note(self, title: str, update_id: int | None = None) -> None:
        """Add another event, such as a restart, or an event of a node flow that an update has started."""
        group = None if update_id is None else next(self._with_update(update_id), None)
        if group is None:
            self._add("note", title)
        else:
            self._put(group, "note", title, None)

    # Reports of the bot's process

    def received(self, report: dict[str, Any]) -> None:
        """Note that a machine began to handle an update."""
        known = list(self._with_update(report["update_id"]))
        # Of repeated deliveries, the first one that was not handled yet.
        group = next((each for each in reversed(known) if each.started is None), known[0] if known else None)
        if group is None:
            return
        group.started, group.bot, group.key = report["at"], report["bot"], report["key"]
        self._announce(group)
        # Calls that arrived before this report may belong to this update.
        for other in self._of_chat(group.chat):
            for event in [each for each in other.events if each["kind"] == "call" and each["at"] >= report["at"]]:
                if (better := self._group_of_call(event["json"], event["at"])) is not other:
                    other.events.remove(event)
                    self._announce(other)
                    if better is not None:
                        better.events.append(event)
                        self._announce(better)

    def repeated(self, report: dict[str, Any]) -> None:
        """Note that a machine has handled an update before."""
        group = self._reported(report)
        if group is not None:
            group.duplicate = True
            self._announce(group)

    def failed(self, report: dict[str, Any]) -> None:
        """Add an error."""
        group = self._reported(report) or self._job(report)
        about = {"error": report["error"], "traceback": report["traceback"]}
        self._put(group, "error", report["error"], about, at=report["at"], failed=True)

    def written(self, report: dict[str, Any], title: str, change: dict[str, Any]) -> None:
        """Add a written record."""
        self._put(self._reported(report) or self._job(report), "record", title, change, at=report["at"])

    def fired(self, report: dict[str, Any]) -> None:
        """Add a timer or an expiry, with the record that it wrote."""
        group = self._reported(report)
        title = report["title"]
        if group is not None:
            # An update came before a worker looked for the timer.
            self._put(group, "timer", title, None, at=report["at"])
        else:
            group = self._job(report)
            group.kind, group.title = "timer", title
            self._announce(group)
        if report["error"] is not None:
            self.failed(report)

    # Internal

    def _with_update(self, update_id: int) -> Iterator[EventGroup]:
        return (each for each in reversed(self.groups) if each.update and each.update["update_id"] == update_id)

    def _of_chat(self, chat: object) -> list[EventGroup]:
        return [each for each in self.groups if each.chat == chat and each.kind != "note"]

    def _reported(self, report: dict[str, Any]) -> EventGroup | None:
        """Return the group of the update in a report: the delivery that was handled last."""
        if report["update_id"] is None:
            return None
        known = [each for each in self._with_update(report["update_id"]) if each.started is not None]
        return max(known, key=lambda each: each.begin, default=None)

    def _job(self, report: dict[str, Any]) -> EventGroup:
        """Return the group of a report without an update, which is new unless this job has written before."""
        begin = report["at"] - report["duration"]
        for each in reversed(self.groups):
            if each.kind in ("job", "timer") and (each.bot, each.key) == (report["bot"], report["key"]):
                if each.begin <= report["at"] and begin <= each.end:
                    return each
                break
        fields = {"user": report["user"], "chat": report["chat"], "bot": report["bot"], "key": report["key"]}
        return self._add("job", "written without an update", at=begin, started=begin, **fields)

    def _group_of_call(self, call: dict[str, Any], at: float | None = None) -> EventGroup | None:
        at = self._clock() if at is None else at
        if (query := call.get("callback_query_id") or call.get("inline_query_id")) is not None:
            for each in reversed(self.groups):
                for event in (each.update or {}).values():
                    if isinstance(event, dict) and event.get("id") == query:
                        return each
        # The newest first, for those that were delivered at the same time.
        begun = [each for each in reversed(self.groups) if each.kind != "note" and each.begin <= at]
        latest = max(begun, key=lambda each: (each.begin, each.started is not None), default=None)
        here = [each for each in begun if str(each.chat) == str(call.get("chat_id"))]
        own = max(here, key=lambda each: (each.begin, each.started is not None), default=None)
        if own is None or latest is None:
            return latest
        # A call to a chat that has been quiet follows from an update of another chat.
        before = [event["at"] for event in own.events if event["at"] <= at]
        return own if not before or latest.begin - before[-1] < _RECENT else latest

    def _add(self, kind: str, title: str, **fields: Any) -> EventGroup:
        group = EventGroup(next(self._numbers), kind, title[:200], **{"at": self._clock(), **fields})
        self.groups.append(group)
        self._announce(group)
        return group

    def _put(
        self,
        group: EventGroup | None,
        kind: str,
        title: str,
        about: Any,
        *,
        at: float | None = None,
        failed: bool = False,
    ) -> None:
        """Add an event to a group; without a group, as a group of its own."""
        if group is None:
            self._add(kind, title, about=about, failed=failed)
            return
        at = self._clock() if at is None else at
        group.events.append({"kind": kind, "title": title[:200], "at": at, "json": about, "failed": failed})
        del group.events[:-MAX_EVENTS]
        self._announce(group)

    def _announce(self, group: EventGroup) -> None:
        if self._changed is not None:
            self._changed(group)
