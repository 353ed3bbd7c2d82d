"""The playground: the bot's process, the local Bot API, and the page that shows both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stepwell.engine import quoted, require

for _package in ("starlette", "uvicorn", "python_multipart", "httpx"):
    require(_package, "playground")

from stepwell.botapi import Bot, BotAPI, Person, Room, World, WorldEvent  # noqa: E402
from stepwell.botfile import defines_router  # noqa: E402
from stepwell.errors import UsageError  # noqa: E402
from stepwell.playground.board import Board  # noqa: E402
from stepwell.playground.events.chat_test import ChatTest, write_test  # noqa: E402
from stepwell.playground.history import PlayHistory  # noqa: E402
from stepwell.playground.observer import BotObserver  # noqa: E402
from stepwell.playground.pages import make_app  # noqa: E402
from stepwell.playground.process import BotProcess  # noqa: E402
from stepwell.playground.rooms import people_json, room_json  # noqa: E402
from stepwell.web.auth import AuthMiddleware  # noqa: E402
from stepwell.web.display import as_json  # noqa: E402
from stepwell.web.serving import Serving, allowed_hosts, page_url  # noqa: E402

__all__ = ["Playground"]

#: The port of the page, if it is free.
PORT = 8642
#: The users at the start.
PEOPLE = {42: "Alice", 43: "Bob"}


class Playground:
    """A bot in the playground: ``async with Playground("bot.py", storage="sqlite:///bot.db") as play``.

    ``play.url`` opens the page in one browser; ``new_link`` is called with the next link when it was used.
    ``port`` 0 chooses a free port, ``None`` 8642 or a free one.
    ``limits`` refuses messages above Telegram's limits with 429.
    ``output`` is called with each line that the bot prints. ``history`` is a file that keeps the chats for the next
    start.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        storage: str,
        place: str = "",
        host: str = "127.0.0.1",
        port: int | None = 0,
        hosts: tuple[str, ...] = (),
        limits: bool = False,
        token: str | None = None,
        output: Callable[[str], None] | None = None,
        new_link: Callable[[str], None] | None = None,
        history: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path: Path = Path(path).resolve()
        if self.path.is_dir():
            raise UsageError(f"{path} is a directory; pass the bot's file")
        if not self.path.is_file():
            raise UsageError(f"the file {quoted(str(path))} does not exist")
        self.host = host
        self.port: int = PORT if port is None else port
        self._or_free = port is None
        self.hosts = hosts
        #: The location of the records as the page shows it.
        self.place = place
        self.board: Board = Board()
        self.api: BotAPI = BotAPI(clock=clock, limits=limits)
        self.world: World = self.api.world
        self.bot: Bot = self.api.bot(_username(self.path.stem))
        self.observer: BotObserver = BotObserver(self.world, self.board, lambda: self.process.status == "running")
        self.process: BotProcess = BotProcess(
            self.path, lambda: self._show("bot"), output, killed=self._killed, ended=self.observer.process_ended
        )
        self._storage = storage
        self._history = None if history is None else PlayHistory(history)
        self._notices = 0
        self._notice: dict[str, Any] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._new_link = new_link
        self._sections: dict[str, Callable[[], Any]] = {
            "people": lambda: people_json(self.world, self.bot),
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
        return page_url(self.host, self.port)

    @property
    def url(self) -> str:
        """The link that opens the page in one browser. It changes when it was used."""
        return f"{self.address}?token={self.auth.token}"

    @property
    def output(self) -> list[str]:
        """The last lines that the bot printed."""
        return list(self.process.lines)

    async def __aenter__(self) -> Self:
        self.port = await self._serving.start(self.host, self.port, or_free=self._or_free)
        await self.api.__aenter__()
        await self.observer.start()
        if self._history is not None:
            self._history.load(self)
            self._history.start(self)
        for user, name in PEOPLE.items():
            self.api.chat(self.bot, user, first_name=name)
        self._unwatch = self.world.watch(self._on_event)
        env = {
            "BOT_API": self.api.url,
            "TELEGRAM_API_BASE": self.api.url,
            "BOT_TOKEN": self.bot.token,
            "STEPWELL_STORAGE": self._storage,
            "STORAGE": self._storage,
            "STEPWELL_PLAYGROUND": self.observer.reports.address,
            **({} if self.world.limits is None else {"STEPWELL_PLAYGROUND_LIMITS": "1"}),
        }
        self._show(*self._sections)
        self.rooms_changed()
        await self.process.start(env)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unwatch is not None:
            self._unwatch()
        self.board.close()
        await self.process.stop()
        await self.observer.stop()
        if self._history is not None:
            await self._history.stop(self)
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
        self.rooms_changed()
        self.observer.locate_soon()

    async def restart(self, why: str = "on request") -> None:
        """Kill the bot's process as a crash would, and start it again."""
        if not self.process.starts:
            raise UsageError("the bot has not been started yet")
        await self.process.restart(why)

    # Records

    async def record(self, user: int) -> dict[str, Any] | None:
        """Return the record of a user in the private chat."""
        if defines_router(self.path) and await self.ready():
            await self.observer.connected()
        return await self.observer.places.record(self.room(str(user)), user)

    def write_test(self, person: Person) -> ChatTest:
        """Return a test of the chat of a user."""
        room, observer = person.room, self.observer
        return write_test(
            self.path,
            observer.timeline.of_chat(room.id),
            users=self.world.users,
            chat=room.chat,
            machines=observer.machines,
            final=observer.places.shown(room.id, person.id, person.thread),
        )

    async def ready(self, *, timeout: float = 60.0) -> bool:
        """Wait until the bot's machine has reported or its process has ended; return whether it runs."""
        async with asyncio.timeout(timeout):
            while not self.observer.machines and self.process.status == "running":
                await asyncio.sleep(0.02)
        return bool(self.observer.machines)

    def _killed(self, pid: int | None, why: str) -> None:
        self.observer.timeline.note(f"kill -9 {pid}: {why}" if pid else f"started: {why}")
        self.observer.process_ended()
        # A request of the killed process would end the first request of the next one with a conflict.
        self.bot.updates.stop()

    def _on_event(self, event: WorldEvent) -> None:
        """Handle an event of the local Bot API."""
        if event.kind in ("message", "edited", "deleted", "draft"):
            assert event.room is not None
            self._show_room(event.room)
            if "forum_topic_created" in event.body:
                self.places_changed()
        elif event.kind == "update":
            self.observer.timeline.update(event)
        elif event.kind == "call":
            self.observer.timeline.call(event)
            method = str(event.body["method"]).lower()
            if method in ("setmycommands", "deletemycommands"):
                self._show("bot")
            elif event.body.get("reply_markup"):
                # A reply keyboard belongs to the chat.
                self.rooms_changed()
        elif event.kind == "answered" and event.body.get("text"):
            self._notices += 1
            self._notice = {"n": self._notices, "text": event.body["text"], "alert": event.body.get("show_alert")}
            self._show("notice")

    # Sections of the page

    def _show(self, *sections: str) -> None:
        for name in sections:
            self.board.put(name, self._sections[name])

    def _show_room(self, room: Room) -> None:
        self.board.put(f"room {room.id}", lambda: room_json(self.world, room))

    def rooms_changed(self) -> None:
        """Show all chats again."""
        for room in self.world.rooms.values():
            self._show_room(room)

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

    def _is_allowed(self, host: str) -> bool:
        return host in allowed_hosts(self.host, self.port, self.hosts)


def _username(stem: str) -> str:
    name = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in stem)
    return name if name.endswith("bot") else f"{name}_bot"
