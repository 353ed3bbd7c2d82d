"""What a user sees of a chat, and waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from stepwell.botapi.errors import NotPossible, quoted
from stepwell.botapi.formatting.rich.blocks import buttons_in, plain_text
from stepwell.botapi.keyboards import KeyboardButton, buttons_of
from stepwell.botapi.objects import Draft
from stepwell.botapi.world import Bot, Room, World

__all__ = ["ChatHistory", "message_text"]

_Found = TypeVar("_Found")


class ChatHistory:
    """The messages of one chat or topic with a bot, and its answers."""

    def __init__(self, world: World, bot: Bot, room: Room, thread: int | None) -> None:
        self.world = world
        self.bot = bot
        self.room: Room = room
        self.thread = thread
        #: The id of the last message that ``answer`` returned.
        self._heard = max(self.room.messages, default=0)
        #: The draft that ``preview`` returned last.
        self._previewed = self.world.draft(self.room, self.thread or 0)

    async def answer(self, *, timeout: float = 10.0) -> str:
        """Wait for the bot's next message here, and return its text."""
        return message_text(await self.hear(timeout=timeout))

    async def hear(self, *, timeout: float = 10.0) -> dict[str, Any]:
        """Wait for the bot's next message here, and return it as Bot API JSON.

        Raises ``TimeoutError`` if there is none within ``timeout`` seconds.
        """

        def next_answer() -> dict[str, Any] | None:
            return next((each for each in self._answers() if each["message_id"] > self._heard), None)

        message = await self._wait_for(next_answer, timeout)
        if message is None:
            raise TimeoutError(f"the bot sent no message here within {timeout:g} s; the chat so far:\n{self}")
        self._heard = message["message_id"]
        return message

    async def preview(self, *, timeout: float = 10.0) -> str:
        """Wait until the bot changes its draft here, and return the text of the draft.

        It is empty while Telegram shows "Thinking…". Raises ``TimeoutError`` if there is no change within ``timeout``
        seconds.
        """

        def next_draft() -> Draft | None:
            draft = self._draft()
            return draft if draft is not self._previewed else None

        draft = await self._wait_for(next_draft, timeout)
        if draft is None:
            raise TimeoutError(f"the bot changed no draft here within {timeout:g} s; the chat so far:\n{self}")
        self._previewed = draft
        return message_text(draft.json())

    async def notice(self, query_id: str, *, timeout: float = 10.0) -> dict[str, Any]:
        """Wait for the bot's answer to a callback query or an inline query, and return it.

        Raises ``TimeoutError`` if there is none within ``timeout`` seconds, ``NotPossible`` if there is no such query.
        """
        if query_id not in self.world.queries:
            raise NotPossible(f"there is no query {quoted(query_id)}; press() and inline() return the id of theirs")
        answer: dict[str, Any] | None = await self._wait_for(lambda: self.world.queries[query_id]["answer"], timeout)
        if answer is None:
            raise TimeoutError(f"the bot did not answer the query within {timeout:g} s")
        return answer

    @property
    def last(self) -> str | None:
        """The text of the bot's last message here, ``None`` before its first."""
        answers = self._answers()
        return message_text(answers[-1]) if answers else None

    @property
    def draft(self) -> dict[str, Any] | None:
        """What the bot is writing here, with the parameters of ``sendMessageDraft``; ``None`` if it is not."""
        draft = self._draft()
        return None if draft is None else draft.json()

    @property
    def buttons(self) -> list[str]:
        """The buttons of the bot's last message and of the reply keyboard."""
        answers = self._answers()
        own = self.buttons_on(answers[-1]) if answers else ()
        return [button.text for button in (*own, *buttons_of(self.room.keyboard))]

    def buttons_on(self, message: dict[str, Any]) -> list[KeyboardButton]:
        """Return the buttons below a message, and those inside of a rich message."""
        inside = buttons_in(message.get("rich_message", {}).get("blocks"))
        rich = [KeyboardButton(text, raw.get("callback_data"), types=False, raw=raw) for text, raw in inside]
        return [*buttons_of(message.get("reply_markup")), *rich]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages here, oldest first, as Bot API JSON."""
        every = self.room.messages.values()
        if not self.room.chat.get("is_forum"):
            return list(every)
        return [message for message in every if message.get("message_thread_id") == self.thread]

    @property
    def updates(self) -> list[dict[str, Any]]:
        """All updates of the bot, from all users, oldest first."""
        return list(self.bot.updates.all)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The bot's calls for all users, oldest first, without getUpdates."""
        return list(self.bot.calls)

    def __str__(self) -> str:
        lines = [
            (message.get("from", {}).get("first_name", "Channel"), message_text(message)) for message in self.messages
        ]
        return "\n".join(f"{name}: {text}" for name, text in lines)

    # Internal

    async def _wait_for(self, find: Callable[[], _Found | None], timeout: float) -> _Found | None:
        """Return what ``find`` returns after some event; ``None`` if it finds nothing in time."""
        event = asyncio.Event()
        stop = self.world.watch(lambda _: event.set())
        try:
            async with asyncio.timeout(timeout):
                while (found := find()) is None:
                    event.clear()
                    await event.wait()
                return found
        except TimeoutError:
            return None
        finally:
            stop()

    def _draft(self) -> Draft | None:
        return self.world.draft(self.room, self.thread or 0)

    def _answers(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message.get("from", {}).get("is_bot")]

    def _answered(self, text: str | None) -> dict[str, Any]:
        answers = self._answers()
        chosen = [message for message in answers if text in (None, message_text(message))]
        if not chosen:
            said = ", ".join(repr(message_text(message)) for message in answers) or "nothing"
            which = "message" if text is None else f"message {quoted(text)}"
            raise NotPossible(f"the bot sent no {which} here; it sent: {said}")
        return chosen[-1]


def message_text(message: dict[str, Any]) -> str:
    """Return the text or caption of a message, or the plain text of a rich message; empty if it has none.

    Example::

        from stepwell.botapi import message_text

        assert message_text({"caption": "Look"}) == "Look"
    """
    if "rich_message" in message:
        blocks: list[dict[str, Any]] = message["rich_message"]["blocks"]
        return plain_text(blocks)
    return str(message.get("text", message.get("caption", "")))
