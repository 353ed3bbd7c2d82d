"""A call of a method by a bot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from stepwell.botapi.errors import bad_request
from stepwell.botapi.http.webhook import Webhooks
from stepwell.botapi.params import Params
from stepwell.botapi.world import Bot, Room, World

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

    def user_id(self) -> int:
        """Return ``user_id``, the id of a known user or bot."""
        user_id = self.params.number("user_id", 0)
        if user_id not in self.world.users:
            raise bad_request("user not found" if user_id > 0 else "invalid user_id specified")
        return user_id


#: Returns the result, or is a coroutine function; raises ``Refusal``.
Method: TypeAlias = Callable[[Call], Any]
