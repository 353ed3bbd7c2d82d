"""A local Bot API server, for bots in any framework.

``BotAPI`` is the server; ``api.bot("my_bot")`` registers a bot, ``api.chat(bot)`` returns a user in a chat with it.

This package imports nothing else of Stepwell.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepwell.botapi.checks import check_call
from stepwell.botapi.errors import NotPossible, Refusal, quoted
from stepwell.botapi.formatting.texts import read_text
from stepwell.botapi.keyboards import KeyboardButton, buttons_of, read_markup
from stepwell.botapi.limits import FloodLimits
from stepwell.botapi.objects import Draft
from stepwell.botapi.world import Bot, Room, World, WorldEvent

if TYPE_CHECKING:
    from stepwell.botapi.history import message_text
    from stepwell.botapi.person import Person
    from stepwell.botapi.server import BotAPI
    from stepwell.botapi.snapshot import load_world, save_world

__all__ = [
    "Bot",
    "BotAPI",
    "Draft",
    "FloodLimits",
    "KeyboardButton",
    "NotPossible",
    "Person",
    "Refusal",
    "Room",
    "World",
    "WorldEvent",
    "buttons_of",
    "check_call",
    "load_world",
    "message_text",
    "read_markup",
    "read_text",
    "save_world",
]

_ON_USE = {
    "BotAPI": "server",
    "Person": "person",
    "load_world": "snapshot",
    "message_text": "history",
    "save_world": "snapshot",
}


def __getattr__(name: str) -> Any:
    # Imported on use: stepwell.testing has the same rules for calls and needs no server.
    if name in _ON_USE:
        return getattr(import_module(f"stepwell.botapi.{_ON_USE[name]}"), name)
    raise AttributeError(f"module {quoted(__name__)} has no attribute {quoted(name)}")
