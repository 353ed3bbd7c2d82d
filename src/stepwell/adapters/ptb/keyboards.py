"""Arbitrary callback data: each keyboard is a record, so that any process can handle its buttons."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import time
from typing import Any, Final, TypeAlias

from telegram import Message, Update, ext

from stepwell.adapters.ptb.entries import EntryRecords, KnownFields

__all__ = ["CallbackData", "KeyboardRecords", "cache_of"]

#: Keyboards, each with its id, the time of its last use and the data of its buttons; and the keyboard of each query.
CallbackData: TypeAlias = tuple[list[tuple[str, float, dict[str, Any]]], dict[str, str]]

#: The kind of the entries.
KEYBOARD: Final = "keyboard"


class KeyboardRecords:
    """The keyboards of a bot in the storage."""

    def __init__(self, records: EntryRecords) -> None:
        self._records = records

    async def load_all(self) -> CallbackData | None:
        """Return all keyboards and queries; ``None`` if there are none."""
        found = await self._records.load_all(KEYBOARD, dict)
        if not found:
            return None
        # The least recently used one first, which is the first to be removed from the cache.
        keyboards = sorted((data["used"], uuid, data["buttons"]) for uuid, data in found.items() if "buttons" in data)
        queries = {query: uuid for uuid, data in found.items() for query in data["queries"]}
        return [(uuid, used, buttons) for used, uuid, buttons in keyboards], queries

    async def store_all(self, data: CallbackData | None) -> None:
        """Write the keyboards that are new or were used, and delete those that are gone."""
        keyboards, queries = data or ([], {})
        found: dict[str, dict[str, Any]] = {
            uuid: {"used": used, "buttons": buttons, "queries": set()} for uuid, used, buttons in keyboards
        }
        for query, uuid in queries.items():
            found.setdefault(uuid, {"queries": set()})["queries"].add(query)
        gone = [uuid for uuid in self._records.known_keys(KEYBOARD) if uuid not in found]
        await asyncio.gather(
            *(self._records.save(KEYBOARD, uuid, keyboard) for uuid, keyboard in found.items()),
            *(self._delete(uuid) for uuid in gone),
        )

    def writes(self, cache: ext.CallbackDataCache) -> list[Coroutine[Any, Any, object]]:
        """Return the writes of all new keyboards in a cache, which the caller awaits."""
        new = [uuid for uuid in cache._keyboard_data if not self._is_stored(uuid)]
        return [self._create(*cache._keyboard_data[uuid].to_tuple()) for uuid in new]

    async def restore(self, cache: ext.CallbackDataCache, update: Update) -> None:
        """Insert the data of a pressed button into its update, if another process has sent the keyboard."""
        query = update.callback_query
        invalid: Any = None if query is None else query.data
        if query is None or not isinstance(invalid, ext.InvalidCallbackData) or not invalid.callback_data:
            return
        uuid, _ = cache.extract_uuids(invalid.callback_data)
        keyboard = await self._records.load(KEYBOARD, uuid, dict)
        buttons: dict[str, Any] = keyboard.get("buttons", {})

        def data_of(given: Any) -> Any:
            if not isinstance(given, ext.InvalidCallbackData) or not given.callback_data:
                return given
            sender, button = cache.extract_uuids(given.callback_data)
            return buttons.get(button, given) if sender == uuid else given

        if data_of(invalid) is invalid:
            return
        cache.load_persistence_data(([(uuid, time(), buttons)], {query.id: uuid}))
        with query._unfrozen():
            query.data = data_of(invalid)
        markup = query.message.reply_markup if isinstance(query.message, Message) else None
        for row in () if markup is None else markup.inline_keyboard:
            for each in row:
                each.update_callback_data(data_of(each.callback_data))

    async def _create(self, uuid: str, used: float, buttons: dict[str, Any]) -> None:
        # Its id is random, so there is no record to be read.
        self._records.remember(KEYBOARD, uuid, KnownFields(None, {}))
        await self._records.save(KEYBOARD, uuid, {"used": used, "buttons": buttons, "queries": set()})

    def _is_stored(self, uuid: str) -> bool:
        known = self._records.known(KEYBOARD, uuid)
        return known is not None and known.version is not None

    async def _delete(self, uuid: str) -> None:
        # Another process may use it.
        known = self._records.known(KEYBOARD, uuid)
        await self._records.drop(KEYBOARD, uuid, only_version=None if known is None else known.version)


def cache_of(application: ext.Application[Any, Any, Any, Any, Any, Any]) -> ext.CallbackDataCache | None:
    """Return the cache of an application whose callback data is stored."""
    persistence = application.persistence
    if persistence is None or not persistence.store_data.callback_data:
        return None
    cache: ext.CallbackDataCache | None = getattr(application.bot, "callback_data_cache", None)
    return cache
