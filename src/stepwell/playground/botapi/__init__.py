"""A local Bot API server, for bots in any framework.

``BotAPI`` is the server; ``api.bot("my_bot")`` registers a bot, ``api.chat(bot)`` returns a user in a chat with it.
"""

from stepwell.playground.botapi.person import Person
from stepwell.playground.botapi.refusal import Refusal
from stepwell.playground.botapi.server import BotAPI
from stepwell.playground.botapi.world import Bot, Room, World, WorldEvent

__all__ = ["Bot", "BotAPI", "Person", "Refusal", "Room", "World", "WorldEvent"]
