"""A plugin that runs python-telegram-bot's own tests with ``StepwellPersistence``, on the storage STEPWELL_SUITE_URL.

With STEPWELL_SUITE=conversation all applications have it, and conversations are those of our ``ConversationHandler``.
Otherwise the persistence that the tests use to count calls stores its data in it too.
"""

from __future__ import annotations

import asyncio
import copy
import os
from itertools import count
from typing import Any

import pytest
from telegram import ext
from telegram._utils.defaultvalue import DefaultValue

from stepwell.adapters.ptb import ConversationHandler, StepwellPersistence

URL = os.environ["STEPWELL_SUITE_URL"]
#: Seconds that the tests wait instead of 10 ms.
PAUSE = float(os.environ["STEPWELL_SUITE_PAUSE"])
CONVERSATIONS = os.environ["STEPWELL_SUITE"] == "conversation"

_ids = count(1)
_test = 0


class Persistence(StepwellPersistence[Any, Any, Any]):
    """A persistence in a namespace of its own; the tests share an application, so each of them has another one."""

    def __init__(self, store_data: Any = None, update_interval: float = 60) -> None:
        super().__init__(URL, store_data=store_data, update_interval=update_interval)
        self._name = f"suite-{os.getpid()}-{next(_ids)}"

    @property
    def namespace(self) -> str:
        return f"{self._name}-{_test}"


def counting(theirs: Any) -> Any:
    """Return the class of the tests that counts calls, in front of a persistence."""

    class TrackingPersistence(theirs, Persistence):
        filled = False

        async def fill_storage(self) -> None:
            if self.filled:
                return
            self.filled = True
            for kind in ("user", "chat"):
                for key, data in getattr(self, f"{kind}_data").items():
                    await getattr(Persistence, f"update_{kind}_data")(self, key, copy.deepcopy(data))
            await Persistence.update_bot_data(self, copy.deepcopy(self.bot_data))
            await Persistence.update_callback_data(self, copy.deepcopy(self.callback_data))
            for name, states in self.conversations.items():
                for key, state in states.items():
                    await Persistence.update_conversation(self, name, key, state)

    def reading(name: str) -> Any:
        async def read(self: Any, *args: Any) -> Any:
            await self.fill_storage()
            return await getattr(Persistence, name)(self, *args)

        return read

    def writing(name: str) -> Any:
        async def write(self: Any, *args: Any, **named: Any) -> None:
            await getattr(Persistence, name)(self, *args, **named)
            await getattr(theirs, name)(self, *args, **named)

        return write

    for name in dir(ext.BasePersistence):
        if name.startswith("get_"):
            setattr(TrackingPersistence, name, reading(name))
        elif name == "flush" or (name.startswith(("update_", "drop_", "refresh_")) and name != "update_interval"):
            setattr(TrackingPersistence, name, writing(name))
    return TrackingPersistence


def pytest_runtest_setup(item: pytest.Item) -> None:
    global _test
    _test += 1


class Patient:
    """``asyncio`` for the tests: some wait 10 ms for the end of an update, and a durable write may take longer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay: float, *args: Any) -> Any:
        return await asyncio.sleep(PAUSE if 0 < delay < 0.1 else delay, *args)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for module in {item.module for item in items}:
        module.asyncio = Patient()
        if hasattr(module, "TrackingPersistence"):
            module.TrackingPersistence = counting(module.TrackingPersistence)


if CONVERSATIONS:
    ext.ConversationHandler = ConversationHandler  # type: ignore[misc]
    build = ext.ApplicationBuilder.build

    def build_with_persistence(self: Any) -> Any:
        if isinstance(self._persistence, DefaultValue):
            self.persistence(Persistence(ext.PersistenceInput(callback_data=False)))
        return build(self)

    ext.ApplicationBuilder.build = build_with_persistence  # type: ignore[method-assign]
