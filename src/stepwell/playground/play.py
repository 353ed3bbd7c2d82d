"""The playground: the bot's process, the local Bot API, and the page that shows both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stepwell.errors import UsageError
from stepwell.playground.board import Board
from stepwell.playground.botapi import Bot, BotAPI, Person, Room, World, WorldEvent
from stepwell.playground.pages import make_app
from stepwell.playground.places import Places
from stepwell.playground.process import BotProcess
from stepwell.playground.records import Records
from stepwell.playground.report_server import ReportServer
from stepwell.playground.rooms import people_json, room_json
from stepwell.playground.runs import Runs
from stepwell.playground.timeline import MAX_GROUPS, EventGroup, Timeline
from stepwell.web.auth import AuthMiddleware
from stepwell.web.display import as_json
from stepwell.web.serving import Serving, allowed_hosts, netloc

__all__ = ["Playground"]

#: The users at the start.
PEOPLE = {42: "Alice", 43: "Bob"}


class Playground:
    """A bot in the playground: ``async with Playground("bot.py", storage="sqlite:///bot.db") as play``.

    ``play.url`` opens the page in one browser; ``new_link`` is called with the next link when it was used.
    ``output`` is called with each line that the bot prints.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        storage: str,
        place: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        hosts: tuple[str, ...] = (),
        token: str | None = None,
        output: Callable[[str], None] | None = None,
        new_link: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path: Path = Path(path).resolve()
        if self.path.is_dir():
            raise UsageError(f"{path} is a directory; pass the bot's file")
        if not self.path.is_file():
            raise UsageError(f"file {path} does not exist")
        self.host = host
        self.port: int = port
        self.hosts = hosts
        #: The location of the records as the page shows it.
        self.place = place
        self.board: Board = Board()
        self.api: BotAPI = BotAPI(clock=clock)
        self.world: World = self.api.world
        self.bot: Bot = self.api.bot(_username(self.path.stem))
        self.records: Records = Records()
        self.runs: Runs = Runs()
        self.timeline: Timeline = Timeline(self._group_changed)
        self.reports: ReportServer = ReportServer(self._on_report)
        self.process: BotProcess = BotProcess(self.path, lambda: self._show("bot"), output)
        self._storage = storage
        self._machines: dict[str, dict[str, Any]] = {}
        self._places = Places(self.world, self.reports, self.records, lambda: self._show("records", "places"))
        self._notices = 0
        self._notice: dict[str, Any] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unwatch: Callable[[], None] | None = None
        self._new_link = new_link
        self._sections: dict[str, Callable[[], Any]] = {
            "people": lambda: people_json(self.world, self.bot),
            "machines": lambda: list(self._machines.values()),
            "records": self.records.json,
            "places": self._places.json,
            "runs": self.runs.json,
            "timeline": lambda: [group.n for group in self.timeline.groups],
            "bot": self._bot_json,
            "notice": lambda: self._notice,
        }
        self.auth: AuthMiddleware = AuthMiddleware(
            make_app(self), self._is_allowed, token=token, on_new_token=self._token_replaced
        )
        self._serving = Serving(self.auth, name="playground")

    @property
    def address(self) -> str:
        """The address of the page, for a browser with a session."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104
        return f"http://{netloc(host, self.port)}/"

    @property
    def url(self) -> str:
        """The link that opens the page in one browser. It changes when it was used."""
        return f"{self.address}?token={self.auth.token}"

    @property
    def output(self) -> list[str]:
        """The last lines that the bot printed."""
        return list(self.process.lines)

    async def __aenter__(self) -> Self:
        self.port = await self._serving.start(self.host, self.port)
        await self.api.__aenter__()
        await self.reports.start()
        for user, name in PEOPLE.items():
            self.api.chat(self.bot, user, first_name=name)
        self._unwatch = self.world.watch(self._on_event)
        env = {
            "BOT_API": self.api.url,
            "TELEGRAM_API_BASE": self.api.url,
            "BOT_TOKEN": self.bot.token,
            "STEPWELL_STORAGE": self._storage,
            "STORAGE": self._storage,
            "STEPWELL_PLAYGROUND": self.reports.address,
        }
        self._show(*self._sections)
        self._show_rooms()
        await self.process.start(env)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unwatch is not None:
            self._unwatch()
        self.board.close()
        for task in list(self._tasks):
            task.cancel()
        await self.process.stop()
        await self.reports.stop()
        await asyncio.gather(self.api.__aexit__(None, None, None), self._serving.stop())

    # Users

    def room(self, room_id: str) -> Room:
        """Return a chat by its id as text."""
        for room in self.world.rooms.values():
            if str(room.id) == room_id and self.bot.id in room.members:
                return room
        raise UsageError(f"chat {room_id} does not exist")

    def person(self, room_id: str, user: int, thread: int | None = None) -> Person:
        """Return a user in a chat."""
        room = self.room(room_id)
        if user not in self.world.users or room.members.get(user) is None:
            raise UsageError(f"user {user} is not in this chat")
        if thread is not None and thread not in room.topics:
            raise UsageError(f"topic {thread} does not exist in this chat")
        return Person(self.world, self.bot, user, room=room, thread=thread)

    def places_changed(self) -> None:
        """Show a new user, chat or topic, and look up its records."""
        self._show("people")
        self._show_rooms()
        self._later(self._places.locate())

    async def restart(self, why: str = "on request") -> None:
        """Kill the bot's process as a crash would, and start it again."""
        if not self.process.starts:
            raise UsageError("the bot has not been started yet")
        self.timeline.note(f"kill -9 {self.process.pid}: {why}" if self.process.pid else f"started: {why}")
        await self.process.restart(why)

    async def time_out(self, bot: str, key: str) -> None:
        """Fire the timer of a record now."""
        if bot not in self._machines:
            raise UsageError(f"machine {bot!r} is not known")
        answers = await self.reports.ask({"do": "time out", "bot": bot, "key": key})
        for answer in answers:
            if "error" in answer:
                raise UsageError(str(answer["error"]))

    # Records

    async def record(self, user: int) -> dict[str, Any] | None:
        """Return the record of a user in the private chat."""
        return await self._places.record(self.room(str(user)), user)

    async def ready(self, *, timeout: float = 20.0) -> bool:
        """Wait until the bot's machine has reported or its process has ended; return whether it runs."""
        async with asyncio.timeout(timeout):
            while not self._machines and self.process.status == "running":
                await asyncio.sleep(0.02)
        return bool(self._machines)

    def _on_report(self, report: dict[str, Any]) -> None:
        """Handle a report from the bot's process."""
        kind = report["kind"]
        if kind == "machine":
            self._machines[report["bot"]] = report
            self._show("machines")
            self._later(self._places.locate())
        elif kind == "received":
            self.timeline.received(report)
            if report["key"] is not None:
                self.records.unmark(report["bot"], report["key"])
                self._show("records")
        elif kind == "duplicate":
            self.timeline.repeated(report)
        elif kind == "failed":
            self.timeline.failed(report)
        elif kind == "fired":
            self.timeline.fired(report)
        elif kind == "record":
            new = self.records.written(report["bot"], report["key"], report["record"])
            record = report["record"]
            where = f"{record['flow']} / {record['state']}" if record else "The record was deleted"
            change = {"key": report["key"], "changed": [*new.changed, *(f"data.{name}" for name in new.fields)]}
            self.timeline.written(report, where, {**change, "record": record})
            self._show("records", "places")
        else:
            if kind == "graph":
                self.runs.graph(report["graph"])
            elif kind == "question":
                self.runs.question(report)
            elif (title := self.runs.event(report)) is not None:
                self.timeline.note(title, report["update_id"])
            self._show("runs")

    def _on_event(self, event: WorldEvent) -> None:
        """Handle an event of the local Bot API."""
        if event.kind in ("message", "edited", "deleted"):
            assert event.room is not None
            self._show_room(event.room)
            if "forum_topic_created" in event.body:
                self.places_changed()
        elif event.kind == "update":
            self.timeline.update(event)
        elif event.kind == "call":
            self.timeline.call(event)
            method = str(event.body["method"]).lower()
            if method in ("setmycommands", "deletemycommands"):
                self._show("bot")
            elif event.body.get("reply_markup"):
                # A reply keyboard belongs to the chat.
                self._show_rooms()
        elif event.kind == "answered" and event.body.get("text"):
            self._notices += 1
            self._notice = {"n": self._notices, "text": event.body["text"], "alert": event.body.get("show_alert")}
            self._show("notice")

    # Sections of the page

    def _show(self, *sections: str) -> None:
        for name in sections:
            self.board.put(name, self._sections[name])

    def _show_room(self, room: Room) -> None:
        self.board.put(f"room {room.id}", lambda: room_json(room))

    def _show_rooms(self) -> None:
        for room in self.world.rooms.values():
            self._show_room(room)

    def _group_changed(self, group: EventGroup) -> None:
        if group is self.timeline.groups[-1]:
            # Its section replaces that of the oldest group.
            self.board.drop(f"event {group.n - MAX_GROUPS}")
            self._show("timeline")
        self.board.put(f"event {group.n}", group.json)

    def _bot_json(self) -> dict[str, Any]:
        process = self.process
        commands = [command for each in self.bot.commands.values() for command in each]
        return {
            "file": self.path.name,
            "name": self.bot.name,
            "storage": self.place,
            "commands": as_json(commands),
            "status": process.status,
            "pid": process.pid,
            "starts": process.starts,
            "why": process.why,
            "exit": process.exit_code,
            "output": list(process.lines)[-40:],
        }

    def _token_replaced(self) -> None:
        if self._new_link is not None:
            self._new_link(self.url)

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_allowed(self, host: str) -> bool:
        return host in allowed_hosts(self.host, self.port, self.hosts)


def _username(stem: str) -> str:
    name = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in stem)
    return name if name.endswith("bot") else f"{name}_bot"
