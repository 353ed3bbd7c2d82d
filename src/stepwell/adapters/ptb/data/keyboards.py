"""Arbitrary callback data: each keyboard is a record, so that any process can handle its buttons."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine
from contextvars import ContextVar
from time import time
from typing import Any, Final, TypeAlias

from telegram import InlineKeyboardMarkup, Message, Update, ext

from stepwell.adapters.ptb.data import fields
from stepwell.adapters.ptb.data.entries import EntryRecords, KnownFields
from stepwell.adapters.ptb.objects import AnyApplication
from stepwell.engine import encode_value
from stepwell.errors import EncodeError, TooLarge

__all__ = ["CallbackData", "KeyboardRecords", "cache_of", "sent_keyboards"]

logger: logging.Logger = logging.getLogger(__name__)

#: Keyboards, each with its id, the time of its last use and the data of its buttons; and the keyboard of each query.
CallbackData: TypeAlias = tuple[list[tuple[str, float, dict[str, Any]]], dict[str, str]]

#: The kind of the entries.
KEYBOARD: Final = "keyboard"

#: The ids of the keyboards that the present update has sent; ``None`` outside of an update.
sent_keyboards: ContextVar[set[str] | None] = ContextVar("stepwell_sent_keyboards", default=None)


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
        results = await asyncio.gather(
            *(self._records.save(KEYBOARD, uuid, keyboard) for uuid, keyboard in found.items()),
            *(self._delete(uuid) for uuid in gone),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def check_new(self, cache: ext.CallbackDataCache, *, sent: Collection[str], others: Collection[str]) -> list[str]:
        """Return the ids of the new keyboards in a cache, and remove those that cannot be stored from it.

        Raises ``EncodeError`` or ``TooLarge`` if one of them is among the ids ``sent``. It is logged otherwise, since a
        job may have sent it. ``others``: the ids of keyboards that other updates have sent and will check themselves.
        """
        supported: list[str] = []
        failed: EncodeError | TooLarge | None = None
        for uuid in [uuid for uuid in cache._keyboard_data if not self._is_stored(uuid)]:
            try:
                self._check(*cache._keyboard_data[uuid].to_tuple())
            except (EncodeError, TooLarge) as error:
                if uuid in others and uuid not in sent:
                    continue
                if uuid in sent:
                    failed = failed or error
                else:
                    logger.warning("a keyboard that was sent outside of an update cannot be stored: %s", error)
                del cache._keyboard_data[uuid]
            else:
                supported.append(uuid)
        if failed is not None:
            raise failed
        return supported

    def writes(self, cache: ext.CallbackDataCache, new: Collection[str]) -> list[Coroutine[Any, Any, object]]:
        """Return the writes of new keyboards in a cache, which the caller awaits."""
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
        await self._records.save(KEYBOARD, uuid, _new_keyboard(used, buttons))

    def _check(self, uuid: str, used: float, buttons: dict[str, Any]) -> None:
        """Raise ``EncodeError`` or ``TooLarge`` if a new keyboard cannot be stored."""
        limits, seal = self._records.storage.limits, self._records.seal(uuid)
        try:
            for data in buttons.values():
                encode_value(data, limits, "callback_data")
        except EncodeError as error:
            why = f"{error.why}; the buttons of this keyboard do not work"
            raise EncodeError(error.path, error.type_name, why) from None
        try:
            texts = fields.seal_entry(seal, KEYBOARD, uuid, _new_keyboard(used, buttons), limits)
            fields.check_size(KEYBOARD, {}, texts, seal.limit)
        except TooLarge as error:
            raise TooLarge("the callback_data of a keyboard", error.size, error.limit) from None

    def _is_stored(self, uuid: str) -> bool:
        known = self._records.known(KEYBOARD, uuid)
        return known is not None and known.version is not None

    async def _delete(self, uuid: str) -> None:
        # Another process may use it.
        known = self._records.known(KEYBOARD, uuid)
        await self._records.drop(KEYBOARD, uuid, only_version=None if known is None else known.version)


class _NotingCache(ext.CallbackDataCache):
    """A cache that notes which update has sent a keyboard."""

    __slots__ = ()

    def process_keyboard(self, reply_markup: InlineKeyboardMarkup) -> InlineKeyboardMarkup:
        processed = super().process_keyboard(reply_markup)
        sent = sent_keyboards.get()
        if sent is not None and processed is not reply_markup:
            data = [str(button.callback_data) for row in processed.inline_keyboard for button in row]
            sent.update([uuid for uuid, _ in map(self.extract_uuids, data) if uuid in self._keyboard_data])
        return processed


def _noting(cls: type[ext.CallbackDataCache]) -> type[ext.CallbackDataCache]:
    return type(cls.__name__, (_NotingCache, cls), {"__slots__": (), "__module__": cls.__module__})


def _new_keyboard(used: float, buttons: dict[str, Any]) -> dict[str, Any]:
    return {"used": used, "buttons": buttons, "queries": set()}


def cache_of(application: AnyApplication) -> ext.CallbackDataCache | None:
    """Return the cache of an application whose callback data is stored."""
    persistence = application.persistence
    if persistence is None or not persistence.store_data.callback_data:
        return None
    cache: ext.CallbackDataCache | None = getattr(application.bot, "callback_data_cache", None)
    if cache is not None and not isinstance(cache, _NotingCache):
        # python-telegram-bot has no hook for a keyboard that is sent.
        cache.__class__ = _noting(type(cache))
    return cache
