"""What the page, its actions and the history use of a playground."""

from __future__ import annotations

from typing import Protocol

from stepwell.botapi import Bot, BotAPI, Person, Room, World
from stepwell.playground.board import Board
from stepwell.playground.events.chat_test import ChatTest
from stepwell.playground.observer import BotObserver
from stepwell.playground.process import BotProcess

__all__ = ["Play"]


class Play(Protocol):
    """A bot in the playground, with its chats, its process and what it has reported."""

    board: Board
    api: BotAPI
    world: World
    bot: Bot
    observer: BotObserver
    process: BotProcess

    def room(self, room_id: str) -> Room:
        """Return a chat by its id as text."""
        ...

    def person(self, room_id: str, user: int, thread: int | None = None) -> Person:
        """Return a user in a chat."""
        ...

    def places_changed(self) -> None:
        """Show a new user, chat or topic, and look up its records."""
        ...

    def rooms_changed(self) -> None:
        """Show all chats again."""
        ...

    async def restart(self, why: str = "on request") -> None:
        """Kill the bot's process as a crash would, and start it again."""
        ...

    def write_test(self, person: Person) -> ChatTest:
        """Return a test of the chat of a user."""
        ...
