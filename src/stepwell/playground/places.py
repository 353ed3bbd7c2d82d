"""Places: which record each user has in each chat and topic, looked up in the bot's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepwell.botapi import Room, World
from stepwell.playground.records import Records, Shown
from stepwell.playground.report_server import ReportServer

__all__ = ["Places"]

#: The most chats and topics, times users, whose records are looked up.
MAX_LOOKUPS = 200


class Places:
    """The keys of the records by place, ``chat/user/thread``. ``changed`` is called after each lookup."""

    def __init__(self, world: World, reports: ReportServer, records: Records, changed: Callable[[], None]) -> None:
        self._world = world
        self._reports = reports
        self._records = records
        self._changed = changed
        self._found: dict[str, list[dict[str, Any]]] = {}
        #: Records that no machine has, by place.
        self._others: dict[str, list[dict[str, Any]]] = {}

    async def locate(self) -> None:
        """Look up the record of every user in every chat and topic."""
        wanted: dict[str, dict[str, Any]] = {}
        for room in self._world.rooms.values():
            for user in [each for each in room.members if not self._world.users[each]["is_bot"]]:
                for thread in (None, *room.topics):
                    wanted[f"{room.id}/{user}/{thread or 0}"] = _update_from(room, self._world.users[user], thread)
        for name, update in list(wanted.items())[:MAX_LOOKUPS]:
            await self._locate(name, update)

    async def record(self, room: Room, user: int) -> dict[str, Any] | None:
        """Return the record of a user in a chat."""
        name = f"{room.id}/{user}/0"
        await self._locate(name, _update_from(room, self._world.users[user], None))
        known = [self._records.get(each["bot"], each["key"]) for each in self._all().get(name, []) if each["key"]]
        return next((each.record for each in known if each is not None and each.record is not None), None)

    def shown(self, chat: int, user: int, thread: int | None) -> Shown | None:
        """Return the record that the page shows for a user in a chat, if there is one machine."""
        found = self._all().get(f"{chat}/{user}/{thread or 0}", [])
        known = [self._records.get(each["bot"], each["key"]) for each in found if each["key"] is not None]
        return known[0] if len(known) == 1 else None

    def keys_of(self, chat: int) -> list[tuple[str, str]]:
        """Return the machine and key of each record of a chat."""
        found = [each for name, records in self._all().items() if name.startswith(f"{chat}/") for each in records]
        return list(dict.fromkeys((each["bot"], each["key"]) for each in found if each["key"] is not None))

    def owner(self, bot: str, key: str) -> tuple[int, int] | None:
        """Return the chat and the user of a record."""
        for name, found in self._all().items():
            if any((each["bot"], each["key"]) == (bot, key) for each in found):
                chat, user, _ = name.split("/")
                return int(chat), int(user)
        return None

    def json(self) -> dict[str, Any]:
        """Return the machine and key of each record, by place."""
        return {
            name: [{"bot": each["bot"], "key": each["key"]} for each in found] for name, found in self._all().items()
        }

    def add(self, bot: str, key: str, ids: list[int]) -> tuple[int, int | None] | None:
        """Add a record without a machine by the numbers in its key; return its chat and user, if it has them."""
        room, thread = self.located(ids)
        if room is None:
            return None
        user = next((each for each in ids if each in self._world.users and each in room.members), None)
        for member in room.members if user is None else [user]:
            places = self._others.setdefault(f"{room.id}/{member}/{thread}", [])
            if {"bot": bot, "key": key} not in places:
                places.append({"bot": bot, "key": key})
        return room.id, user

    def located(self, ids: list[int]) -> tuple[Room | None, int]:
        """Return the chat and the topic that these numbers name; 0 for no topic."""
        room = next((each for each in self._world.rooms.values() if each.id in ids), None)
        return room, next((each for each in ids if room is not None and each in room.topics), 0)

    def _all(self) -> dict[str, list[dict[str, Any]]]:
        names = self._found | self._others
        return {name: [*self._found.get(name, []), *self._others.get(name, [])] for name in names}

    async def _locate(self, name: str, update: dict[str, Any]) -> None:
        found: list[dict[str, Any]] = []

        def show(answer: dict[str, Any]) -> None:
            records: list[dict[str, Any]] = answer.get("records", [])
            if not records:
                return
            found.extend(records)
            self._found[name] = found
            for each in records:
                if each["key"] is not None:
                    self._records.found(each["bot"], each["key"], each["record"], each["snapshot"])
            self._changed()

        await self._reports.ask({"do": "place", "update": update}, show)


def _update_from(room: Room, user: dict[str, Any], thread: int | None) -> dict[str, Any]:
    """Return a message as this user would send it here. It is never sent, only used to find the key."""
    message: dict[str, Any] = {"message_id": 0, "date": 0, "chat": dict(room.chat), "from": dict(user), "text": ""}
    if thread is not None:
        message |= {"message_thread_id": thread, "is_topic_message": True}
    return {"message": message}
