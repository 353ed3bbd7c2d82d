"""The playground: a bot in its process, the Bot API that it talks to, and the page that shows both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stepwell.errors import UsageError
from stepwell.playground.auth import AuthMiddleware
from stepwell.playground.board import Board
from stepwell.playground.botapi import BotAPI, Person, Room, WorldEvent
from stepwell.playground.display import shown
from stepwell.playground.pages import make_app
from stepwell.playground.process import BotProcess
from stepwell.playground.records import Records
from stepwell.playground.report_server import ReportServer
from stepwell.playground.rooms import people_json, room_json
from stepwell.playground.runs import Runs
from stepwell.playground.serving import Serving
from stepwell.playground.timeline import Timeline

__all__ = ["Playground"]

#: Places whose records are looked up.
PLACES = 200
#: Who is there from the start.
PEOPLE = {42: "Alice", 43: "Bob"}


class Playground:
    """``async with Playground("bot.py", storage="sqlite:///bot.db") as play: print(play.url)``."""

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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path).resolve()
        if not self.path.is_file():
            raise UsageError(f"there is no file {path}")
        self.host, self.port, self.hosts = host, port, hosts
        #: What the page says of where the records are.
        self.place = place
        self.board = Board()
        self.api = BotAPI(clock=clock)
        self.world = self.api.world
        self.bot = self.api.bot(_username(self.path.stem))
        self.records = Records()
        self.runs = Runs()
        self.timeline = Timeline(clock)
        self.reports = ReportServer(self._told)
        self.process: BotProcess | None = None
        self._storage = storage
        self._output = output
        self._machines: dict[str, dict[str, Any]] = {}
        self._places: dict[str, list[dict[str, Any]]] = {}
        self._notices = 0
        self._notice: dict[str, Any] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unwatch: Callable[[], None] | None = None
        self.auth = AuthMiddleware(make_app(self), self._hosts, token=token)
        self._serving = Serving(self.auth, name="playground")

    @property
    def address(self) -> str:
        """Where the page is, for a browser that was let in."""
        return f"http://{self._netloc(self.host if self.host not in ('0.0.0.0', '::') else '127.0.0.1')}/"  # noqa: S104

    @property
    def url(self) -> str:
        """Where the page is, with the token that lets a browser in."""
        return f"{self.address}?token={self.auth.token}"

    @property
    def output(self) -> list[str]:
        """The last lines that the bot has printed."""
        return [] if self.process is None else list(self.process.lines)

    async def __aenter__(self) -> Self:
        self.port = await self._serving.start(self.host, self.port)
        await self.api.__aenter__()
        await self.reports.start()
        for user, name in PEOPLE.items():
            self.api.chat(self.bot, user, first_name=name)
        self._unwatch = self.world.watch(self._happened)
        env = {
            "BOT_API": self.api.url,
            "TELEGRAM_API_BASE": self.api.url,
            "BOT_TOKEN": self.bot.token,
            "STEPWELL_STORAGE": self._storage,
            "STORAGE": self._storage,
            "STEPWELL_PLAYGROUND": self.reports.address,
        }
        self.process = BotProcess(self.path, env, self._bot_changed, self._output)
        self._show_all()
        await self.process.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unwatch is not None:
            self._unwatch()
        self.board.close()
        for task in list(self._tasks):
            task.cancel()
        if self.process is not None:
            await self.process.stop()
        await self.reports.stop()
        await asyncio.gather(self.api.__aexit__(None, None, None), self._serving.stop())

    # What people do

    def room(self, room_id: str) -> Room:
        """A chat that the page names."""
        for room in self.world.rooms.values():
            if str(room.id) == room_id and self.bot.id in room.members:
                return room
        raise UsageError(f"there is no chat {room_id}")

    def person(self, room_id: str, user: int, thread: int | None = None) -> Person:
        """A person in a chat that the page names."""
        room = self.room(room_id)
        if user not in self.world.users or room.members.get(user) is None:
            raise UsageError(f"there is nobody with the id {user} in this chat")
        if thread is not None and thread not in room.topics:
            raise UsageError(f"there is no topic {thread} in this chat")
        return Person(self.world, self.bot, user, room=room, thread=thread)

    def places_changed(self) -> None:
        """Somebody new, or a new chat or topic."""
        self.board.put("people", lambda: people_json(self.world, self.bot))
        for room in self.world.rooms.values():
            self._show_room(room)
        self._later(self.locate())

    async def restart(self, why: str = "you asked for it") -> None:
        """Kill the bot, as a crash would, and start it again."""
        if self.process is None:
            raise UsageError("the bot has not been started yet")
        self.timeline.note(f"kill -9 {self.process.pid}: {why}" if self.process.pid else f"started: {why}")
        self._show_timeline()
        await self.process.restart(why)

    async def time_out(self, bot: str, key: str) -> None:
        """Let the timer of a record run out now."""
        if bot not in self._machines:
            raise UsageError(f"there is no machine {bot!r}")
        answers = await self.reports.ask({"do": "time out", "bot": bot, "key": key})
        for answer in answers:
            if "error" in answer:
                raise UsageError(str(answer["error"]))

    # What is looked at

    async def locate(self) -> None:
        """Find the record of everybody in every place."""
        wanted: dict[str, dict[str, Any]] = {}
        for room in self.world.rooms.values():
            for user in [each for each in room.members if not self.world.users[each]["is_bot"]]:
                for thread in (None, *room.topics):
                    wanted[f"{room.id}/{user}/{thread or 0}"] = _update_from(room, self.world.users[user], thread)
        for name, update in list(wanted.items())[:PLACES]:
            await self._locate(name, update)

    async def record(self, user: int) -> dict[str, Any] | None:
        """What is stored for a person in their private chat."""
        name = f"{user}/{user}/0"
        await self._locate(name, _update_from(self.room(str(user)), self.world.users[user], None))
        for found in self._places.get(name, ()):
            each: dict[str, Any] | None = found["record"]
            return each
        return None

    async def ready(self, *, timeout: float = 20.0) -> bool:
        """Wait until the bot's machine has reported, or its process has ended; whether it runs."""
        assert self.process is not None
        async with asyncio.timeout(timeout):
            while not self._machines and self.process.status == "running":
                await asyncio.sleep(0.02)
        return bool(self._machines)

    async def _locate(self, name: str, update: dict[str, Any]) -> None:
        found: list[dict[str, Any]] = []
        for answer in await self.reports.ask({"do": "place", "update": update}):
            found += answer.get("records", [])
        if not found:
            return
        self._places[name] = found
        for each in found:
            if each["key"] is not None:
                self.records.found(each["bot"], each["key"], each["record"])
        self._show_records()

    def _told(self, said: dict[str, Any]) -> None:
        """The bot's process says something."""
        if said["kind"] == "machine":
            self._machines[said["bot"]] = said
            self.board.put("machines", lambda: list(self._machines.values()))
            self._later(self.locate())
        elif said["kind"] == "record":
            new = self.records.written(said["bot"], said["key"], said["record"])
            record = said["record"]
            where = f"{record['flow']} / {record['state']}" if record else "no record any more"
            change = {"key": said["key"], "changed": [*new.changed, *(f"data.{name}" for name in new.fields)]}
            self.timeline.record(where, {**change, "record": record})
            self._show_records()
            self._show_timeline()
        else:
            self._told_of_a_run(said)

    def _told_of_a_run(self, said: dict[str, Any]) -> None:
        if said["kind"] == "graph":
            self.runs.graph(said["graph"])
        elif said["kind"] == "question":
            self.runs.question(said)
        elif (title := self.runs.event(said)) is not None:
            self.timeline.note(title)
            self._show_timeline()
        self.board.put("runs", self.runs.json)

    def _happened(self, event: WorldEvent) -> None:
        """Something happened in the world."""
        if event.kind in ("message", "edited", "deleted"):
            assert event.room is not None
            self._show_room(event.room)
            if "forum_topic_created" in event.body:
                self.places_changed()
        elif event.kind == "update":
            self.timeline.update(event)
            self._show_timeline()
        elif event.kind == "call":
            if self.timeline.call(event):
                self._show_timeline()
            method = str(event.body["method"]).lower()
            if method in ("setmycommands", "deletemycommands"):
                self._bot_changed()
            elif event.body.get("reply_markup"):
                # A reply keyboard belongs to the chat.
                for room in self.world.rooms.values():
                    self._show_room(room)
        elif event.kind == "answered" and event.body.get("text"):
            self._notices += 1
            self._notice = {"n": self._notices, "text": event.body["text"], "alert": event.body.get("show_alert")}
            self.board.put("notice", lambda: self._notice)

    # Showing

    def _show_all(self) -> None:
        self.board.put("people", lambda: people_json(self.world, self.bot))
        self.board.put("machines", lambda: list(self._machines.values()))
        for room in self.world.rooms.values():
            self._show_room(room)
        self._show_records()
        self._show_timeline()
        self._bot_changed()

    def _show_room(self, room: Room) -> None:
        self.board.put(f"room {room.id}", lambda: room_json(room))

    def _show_records(self) -> None:
        self.board.put("records", self.records.json)
        self.board.put("places", self._places_json)

    def _places_json(self) -> dict[str, Any]:
        return {
            name: [{"bot": each["bot"], "key": each["key"]} for each in found] for name, found in self._places.items()
        }

    def _show_timeline(self) -> None:
        self.board.put("timeline", lambda: list(self.timeline.moments))

    def _bot_changed(self) -> None:
        self.board.put("bot", self._bot_json)

    def _bot_json(self) -> dict[str, Any]:
        process = self.process
        commands = [command for each in self.bot.commands.values() for command in each]
        about = {"file": self.path.name, "name": self.bot.name, "storage": self.place, "commands": shown(commands)}
        if process is None:
            return about
        return {
            **about,
            "status": process.status,
            "pid": process.pid,
            "starts": process.starts,
            "why": process.why,
            "exit": process.exit_code,
            "output": list(process.lines)[-40:],
        }

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _netloc(self, host: str) -> str:
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def _hosts(self) -> set[str]:
        own = {self._netloc(self.host), f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        return own | {name if ":" in name else f"{name}:{self.port}" for name in self.hosts}


def _username(stem: str) -> str:
    name = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in stem)
    return name if name.endswith("bot") else f"{name}_bot"


def _update_from(room: Room, user: dict[str, Any], thread: int | None) -> dict[str, Any]:
    """A message as this person would send it here; never sent, only read for its key."""
    message: dict[str, Any] = {"message_id": 0, "date": 0, "chat": dict(room.chat), "from": dict(user), "text": ""}
    if thread is not None:
        message |= {"message_thread_id": thread, "is_topic_message": True}
    return {"message": message}
