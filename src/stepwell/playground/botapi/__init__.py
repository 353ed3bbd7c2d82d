"""A local Bot API server, for bots in any framework.

``BotAPI`` is the server; ``api.bot("my_bot")`` registers a bot, ``api.chat(bot)`` returns a user in a chat with it.
"""

from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.playground.botapi.refusal import Refusal
from stepwell.playground.botapi.world import Bot, Room, World, WorldEvent

if TYPE_CHECKING:
    from stepwell.playground.botapi.person import Person
    from stepwell.playground.botapi.server import BotAPI

__all__ = ["Bot", "BotAPI", "Person", "Refusal", "Room", "World", "WorldEvent"]


def __getattr__(name: str) -> Any:
    # Imported on use: stepwell.testing has the same rules for calls and needs no server.
    if name == "BotAPI":
        from stepwell.playground.botapi.server import BotAPI

        return BotAPI
    if name == "Person":
        from stepwell.playground.botapi.person import Person

        return Person
    raise AttributeError(f"module {quoted(__name__)} has no attribute {quoted(name)}")
