"""The events of the page, in groups: each update, fired timer or job, with its writes, Bot API calls and errors.

The bot's process reports which update caused a write or an error. A Bot API call names only its chat, so it belongs to
the update or timer that the bot handled there when it arrived.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

from stepwell.botapi import WorldEvent, message_text
from stepwell.playground.events.group import EventGroup, GroupEvent, label_of
from stepwell.playground.rooms import MEDIA

__all__ = ["MAX_EVENTS", "MAX_GROUPS", "Timeline"]

#: The most groups that are kept, and the most events of each.
MAX_GROUPS, MAX_EVENTS = 200, 50
#: Calls for the bot itself, which are not shown.
_HIDDEN = frozenset({"getme", "setmycommands", "deletewebhook", "setwebhook", "getwebhookinfo", "getupdates"})
#: The kinds of groups that Bot API calls follow from.
_CAUSES = frozenset({"update", "timer", "job"})
#: Seconds after its last event in which a group still takes calls to its chat, although another chat is active.
_RECENT = 1.0


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
        data = str(body.get("data") or "")
        # The data of a button of a turn's question is a number for Stepwell alone.
        pressed = (data.startswith("turn:") and label_of(body)) or data
        said = body.get("text") or body.get("caption") or pressed or body.get("query") or ""
        sender = body.get("from") or {}
        chat = body.get("chat") or body.get("message", {}).get("chat") or sender
        what = next((name for name in MEDIA if name in body), kind) if kind == "message" else kind
        title = said if what == "message" and said else f"{what}: {said}" if said else what
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
        said = _said(call) or ("" if ok else call["answer"].get("description", ""))
        group = self._group_of_call(call)
        method = str(call["method"])
        times = _take_last_draft(group, call) + 1 if ok and "draft_id" in call else 1
        title = f"{method} ×{times}" if times > 1 else method
        self._put(group, "call", f"{title}: {said}" if said else title, call, failed=not ok, times=times)

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
        if group is not None:
            self._begin(group, report)

    def claimed(self, report: dict[str, Any]) -> None:
        """Note that a framework has claimed a record: it handles the first update of that user, in order of arrival."""
        for group in self.of_chat(report["chat"]):
            waiting = group.update is not None and group.started is None and group.at <= report["at"]
            if waiting and report["user"] in (None, group.user):
                self._begin(group, report)
                return

    def _begin(self, group: EventGroup, report: dict[str, Any]) -> None:
        group.started, group.bot, group.key = report["at"], report["bot"], report["key"]
        self._announce(group)
        # Calls that arrived before this report may belong to this update.
        for other in self.of_chat(group.chat):
            for event in [each for each in other.events if each.kind == "call" and each.at >= report["at"]]:
                if (better := self._group_of_call(event.json or {}, event.at)) is not other:
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

    def logged(self, report: dict[str, Any]) -> None:
        """Add an error that the bot has logged, to the update that it names, else to the one that is handled."""
        known = [] if report["update_id"] is None else list(self._with_update(report["update_id"]))
        group = known[0] if known else self._group_of_call({}, report["at"])
        about = {"error": report["error"], "traceback": report["traceback"]}
        self._put(group, "error", report["error"], about, at=report["at"], failed=True)

    def written(
        self, report: dict[str, Any], title: str, change: dict[str, Any], before: dict[str, Any] | None
    ) -> None:
        """Add a written record."""
        group = self._reported(report)
        if group is None and "ids" in report:
            # A record that no machine has, like a Bot API call.
            group = self._group_of_call({"chat_id": report["chat"]}, report["at"])
            if group is not None and group.key is None:
                group.bot, group.key = report["bot"], report["key"]
        self._put(group or self._job(report), "record", title, change, at=report["at"], before=before)

    def edited(
        self,
        bot: str,
        key: str,
        title: str,
        change: dict[str, Any],
        before: dict[str, Any] | None,
        *,
        owner: tuple[int, int] | None,
    ) -> None:
        """Add a record that was edited on the page; ``owner`` is its chat and user."""
        chat, user = owner or (None, None)
        group = self._add("edit", "record edited on the page", bot=bot, key=key, chat=chat, user=user)
        self._put(group, "record", title, change, before=before)

    def fired(self, report: dict[str, Any]) -> None:
        """Add a timer or an expiry, with the record that it wrote."""
        group = self._reported(report)
        title = f"{report['what']}: {report['flow']} / {report['state']}"
        if group is not None:
            # An update came before a worker looked for the timer.
            self._put(group, "timer", title, None, at=report["at"])
        else:
            group = self._job(report)
            group.kind, group.title = "timer", title
            group.flow, group.state = report["flow"], report["state"]
            self._announce(group)
        if report["error"] is not None:
            self.failed(report)

    # Groups

    def of_record(self, bot: str, key: str) -> list[EventGroup]:
        """Return the groups of a conversation, oldest first."""
        return [each for each in self.groups if (each.bot, each.key) == (bot, key)]

    def of_chat(self, chat: object) -> list[EventGroup]:
        """Return the groups of a chat, oldest first."""
        return [each for each in self.groups if each.chat == chat and each.kind not in ("note", "call")]

    def restore(self, groups: Iterable[EventGroup]) -> None:
        """Add the groups of an earlier playground."""
        for group in groups:
            self.groups.append(group)
            self._announce(group)
        self._numbers = count(max((group.n for group in self.groups), default=0) + 1)

    def remove(self, groups: Iterable[EventGroup]) -> None:
        """Remove groups."""
        gone = set(groups)
        kept = [each for each in self.groups if each not in gone]
        self.groups.clear()
        self.groups.extend(kept)

    # Internal

    def _with_update(self, update_id: int) -> Iterator[EventGroup]:
        return (each for each in reversed(self.groups) if each.update and each.update["update_id"] == update_id)

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
        begun = [each for each in reversed(self.groups) if each.kind in _CAUSES and each.begin <= at]
        latest = max(begun, key=lambda each: (each.started is not None, each.begin), default=None)
        here = [each for each in begun if str(each.chat) == str(call.get("chat_id"))]
        own = max(here, key=lambda each: (each.started is not None, each.begin), default=None)
        if own is None or latest is None:
            return latest
        # A call to a chat that has been quiet follows from an update of another chat.
        before = [event.at for event in own.events if event.at <= at]
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
        about: dict[str, Any] | None,
        *,
        at: float | None = None,
        failed: bool = False,
        before: dict[str, Any] | None = None,
        times: int = 1,
    ) -> None:
        """Add an event to a group; without a group, as a group of its own."""
        if group is None:
            self._add(kind, title, about=about, failed=failed)
            return
        at = self._clock() if at is None else at
        group.events.append(GroupEvent(kind, title[:200], at, about, failed, before, times))
        del group.events[:-MAX_EVENTS]
        self._announce(group)

    def _announce(self, group: EventGroup) -> None:
        if self._changed is not None:
            self._changed(group)


def _said(call: dict[str, Any]) -> str:
    """Return the text that a call sends."""
    result = call["answer"].get("result")
    if isinstance(result, dict) and "rich_message" in result:
        return message_text(result)
    rich = call.get("rich_message")
    given = rich if isinstance(rich, dict) else {}
    texts = (call.get("text"), call.get("caption"), given.get("markdown"), given.get("html"))
    return next((str(text) for text in texts if text), "")


def _take_last_draft(group: EventGroup | None, call: dict[str, Any]) -> int:
    """Remove the last state of a draft that a call changes; return how many calls it stands for."""
    for event in group.events if group is not None else ():
        about = event.json or {}
        if about.get("draft_id") == call["draft_id"] and about.get("method") == call["method"] and not event.failed:
            assert group is not None
            group.events.remove(event)
            return event.times
    return 0
