"""What the bot's process reports, machines, records, runs and events, and the edits of its records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from stepwell.botapi import World
from stepwell.engine import quoted
from stepwell.errors import UsageError
from stepwell.playground.board import Board
from stepwell.playground.events.group import EventGroup
from stepwell.playground.events.timeline import MAX_GROUPS, Timeline
from stepwell.playground.places import Places
from stepwell.playground.records import Records
from stepwell.playground.report_server import ReportServer
from stepwell.playground.runs import Runs
from stepwell.playground.turns import ShownTurns

__all__ = ["BotObserver"]


class BotObserver:
    """Follows the bot's process, and puts what it reports on the board."""

    def __init__(self, world: World, board: Board, is_running: Callable[[], bool]) -> None:
        self.machines: dict[str, dict[str, Any]] = {}
        self.records: Records = Records()
        self.runs: Runs = Runs()
        self.turns: ShownTurns = ShownTurns()
        self.timeline: Timeline = Timeline(self._group_changed)
        self.reports: ReportServer = ReportServer(self._on_report, self.records.forget_versions)
        self.places: Places = Places(world, self.reports, self.records, lambda: self.show("records", "places"))
        self._board = board
        #: Whether the bot's process runs.
        self._is_running = is_running
        self._tasks: set[asyncio.Task[None]] = set()
        self._sections: dict[str, Callable[[], Any]] = {
            "machines": lambda: list(self.machines.values()),
            "records": self.records.json,
            "places": self.places.json,
            "runs": self.runs.json,
            "turns": self.turns.json,
            "timeline": lambda: [group.n for group in self.timeline.groups],
        }

    async def start(self) -> None:
        """Listen for reports."""
        await self.reports.start()
        self.show(*self._sections)

    async def stop(self) -> None:
        """Stop listening."""
        for task in list(self._tasks):
            task.cancel()
        await self.reports.stop()

    async def connected(self) -> None:
        """Wait until the bot's process answers requests, unless it has ended."""
        await self.reports.connected(self._is_running)

    def process_ended(self) -> None:
        """Expect no more answers of the bot's process. The next one may use another storage, with older versions."""
        self.reports.forget()
        self.records.forget_versions()

    def show(self, *sections: str) -> None:
        """Send sections to the open pages again."""
        for name in sections:
            self._board.put(name, self._sections[name])

    def locate_soon(self) -> None:
        """Look up the records of all users and chats in a task."""
        task = asyncio.ensure_future(self.places.locate())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Edits

    async def time_out(self, bot: str, key: str) -> None:
        """Fire the timer of a record now."""
        if bot not in self.machines:
            raise UsageError(f"machine {quoted(bot)} is not known")
        await self._request(do="time out", bot=bot, key=key)

    async def edit(self, bot: str, key: str, *, version: str, state: str | None, data: str) -> None:
        """Change a record that has this version; ``data`` is the JSON text of all its fields as the page shows them."""
        await self._request(self._edited, do="edit", bot=bot, key=key, version=version, state=state, data=data)

    async def clear(self, bot: str, key: str, *, version: str) -> None:
        """End the conversation of a record that has this version."""
        await self._request(self._edited, do="clear", bot=bot, key=key, version=version)

    async def restore(self, bot: str, key: str, snapshot: dict[str, Any]) -> None:
        """Restore a record as it was before a write."""
        # The last write may not be reported yet, and its version is needed.
        await self._request(self._found, do="read", bot=bot, key=key)
        known = self.records.get(bot, key)
        version = known.record["version"] if known is not None and known.record is not None else None
        await self._request(self._found, do="restore", bot=bot, key=key, version=version, snapshot=snapshot)

    async def forget_turns(self, room: str) -> None:
        """Delete the records of the conversations with turns in a chat. A turn that runs ends without an answer."""
        for bot, key in self.turns.keys_of(room):
            await self._request(do="forget turns", bot=bot, key=key)
            self.turns.remove(bot, key)
        self.show("turns")

    async def _request(self, show: Callable[[str, str, dict[str, Any]], None] | None = None, **request: Any) -> None:
        """Send a request to the bot's process; raise ``UsageError`` if its answer is an error.

        ``show`` is called with the bot, the key and the answer, in the order of the reports of that record.
        """

        def answered(answer: dict[str, Any]) -> None:
            if show is not None and "error" not in answer:
                show(request["bot"], request["key"], answer)

        await self.connected()
        for answer in await self.reports.ask(request, answered):
            if "error" in answer:
                raise UsageError(str(answer["error"]))
            return
        raise UsageError("the bot does not respond; is it running?")

    # Reports

    def _on_report(self, report: dict[str, Any]) -> None:
        kind, timeline = report["kind"], self.timeline
        if kind == "machine":
            self.machines[report["bot"]] = report
            self.show("machines")
            self.locate_soon()
        elif kind == "received":
            timeline.received(report)
            if report["key"] is not None:
                self.records.unmark(report["bot"], report["key"])
                self.show("records")
        elif kind == "duplicate":
            timeline.repeated(report)
        elif kind == "failed":
            timeline.failed(report)
        elif kind == "fired":
            timeline.fired(report)
        elif kind == "turn":
            room, thread = self.places.located(report["ids"])
            self.turns.changed(report, None if room is None else str(room.id), thread or None)
            self.show("turns")
        elif kind == "used":
            self._used(report)
        elif kind == "logged":
            timeline.logged(report)
        elif kind == "record":
            timeline.written(report, *self._written(report["bot"], report["key"], report))
        else:
            if kind == "graph":
                self.runs.graph(report["graph"])
            elif kind == "question":
                self.runs.question(report)
            elif (title := self.runs.event(report)) is not None:
                timeline.note(title, report["update_id"])
            self.show("runs")

    def _used(self, report: dict[str, Any]) -> None:
        """Show a record that no machine has."""
        bot, key, record = report["bot"], report["key"], report["record"]
        chat, user = self.places.add(bot, key, report["ids"]) or (None, None)
        known = self.records.get(bot, key)
        if record is not None:
            # A framework may store no history.
            seen = [] if known is None or known.flow != record["flow"] else known.path
            record["history"] = record["history"] or seen[: -1 if seen and seen[-1] == record["state"] else None]
            self._draw(bot, record)
        if report["written"]:
            written = self._written(bot, key, report)
            self.timeline.written({**report, "chat": chat, "user": user, "duration": 0.0}, *written)
        else:
            self.timeline.claimed({**report, "chat": chat, "user": user})
            self.records.found(bot, key, record, report["snapshot"])
            self.show("records", "places")

    def _draw(self, bot: str, record: dict[str, Any]) -> None:
        """Add the state of a record to the diagram of the states seen so far."""
        machine = self.machines.setdefault(bot, {"kind": "machine", "bot": bot, "flows": []})
        name, path = record["flow"] or "states", [*record["history"], record["state"]]
        flow = next((each for each in machine["flows"] if each["name"] == name), None)
        if flow is None:
            flow = {"name": name, "states": [], "start": path[0], "edges": [], "ends": [], "timeouts": {}, "seen": True}
            machine["flows"].append(flow)
        flow["states"] += [each for each in dict.fromkeys(path) if each is not None and each not in flow["states"]]
        steps = [list(each) for each in pairwise(path) if None not in each]
        flow["edges"] += [each for each in steps if each not in flow["edges"]]
        self.show("machines")

    def _written(self, bot: str, key: str, read: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
        """Show a written record; return a title, the change, and the snapshot of the record before."""
        known = self.records.get(bot, key)
        new = self.records.written(bot, key, read["record"], read["snapshot"])
        record = read["record"]
        where = f"{record['flow']} / {record['state']}" if record else "The record was deleted"
        change = {"key": key, "changed": [*new.changed, *(f"data.{name}" for name in new.fields)], "record": record}
        self.show("records", "places")
        before: dict[str, Any] | None = read.get("before")
        if before is None and known is not None:
            before = known.snapshot
        return where, change, before

    def _edited(self, bot: str, key: str, read: dict[str, Any]) -> None:
        self.timeline.edited(bot, key, *self._written(bot, key, read), owner=self.places.owner(bot, key))

    def _found(self, bot: str, key: str, read: dict[str, Any]) -> None:
        self.records.found(bot, key, read["record"], read["snapshot"])
        self.show("records", "places")

    def remove(self, groups: list[EventGroup]) -> None:
        """Remove groups from the timeline."""
        self.timeline.remove(groups)
        for group in groups:
            self._board.drop(f"event {group.n}")
        self.show("timeline")

    def _group_changed(self, group: EventGroup) -> None:
        if group is self.timeline.groups[-1]:
            # Its section replaces that of the oldest group.
            self._board.drop(f"event {group.n - MAX_GROUPS}")
            self.show("timeline")
        self._board.put(f"event {group.n}", group.json)
