"""A call of a method by a bot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from stepwell.playground.botapi.params import Params
from stepwell.playground.botapi.webhook import Webhooks
from stepwell.playground.botapi.world import Bot, Room, World

__all__ = ["Call", "Method"]


@dataclass(frozen=True, slots=True)
class Call:
    """One method call: the bot, its parameters and the world."""

    world: World
    webhooks: Webhooks
    bot: Bot
    params: Params

    def room(self) -> Room:
        """Return the chat that ``chat_id`` names."""
        return self.world.room_for(self.bot, self.params.chat_id())


#: Returns the result, or is a coroutine function; raises ``Refusal``.
Method: TypeAlias = Callable[[Call], Any]
