"""A local stand-in for the Bot API: any bot, in any framework, can be pointed at it.

``BotAPI`` is the server; ``api.bot("my_bot")`` registers a bot, ``api.chat(bot)`` is a person who talks to it.
"""

from stepwell.playground.botapi.person import Person
from stepwell.playground.botapi.refusal import Refusal
from stepwell.playground.botapi.server import BotAPI
from stepwell.playground.botapi.world import Bot, Room, World, WorldEvent

__all__ = ["Bot", "BotAPI", "Person", "Refusal", "Room", "World", "WorldEvent"]
