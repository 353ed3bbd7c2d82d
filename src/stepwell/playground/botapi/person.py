"""A person who talks to a bot, in the words of ``stepwell.testing.Chat``."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from stepwell.errors import UsageError
from stepwell.playground.botapi.chats import member_of, open_topic
from stepwell.playground.botapi.entities import found
from stepwell.playground.botapi.keyboards import KeyboardButton, buttons_of
from stepwell.playground.botapi.world import Bot, Room, World, WorldEvent

__all__ = ["Person"]


class Person:
    """One person in one place: a private chat, a group, a channel, or a topic.

    The bot runs elsewhere and answers when it does, so ``send`` and ``press`` return at once, and
    ``await chat.answer()`` waits for the next thing that the bot says here.
    """

    def __init__(
        self, world: World, bot: Bot, user: int, *, room: Room | None = None, thread: int | None = None
    ) -> None:
        self.world = world
        self.bot = bot
        self.id = user
        self.room = room or world.private(bot, user)
        self.thread = thread
        self.room.members.setdefault(bot.id, "administrator")
        self.room.members.setdefault(user, "member")
        #: The newest message of a bot that ``answer`` has given.
        self._heard = max(self.room.messages, default=0)

    # Who and where

    def user(self, id: int, **fields: Any) -> Person:  # noqa: A002
        """Another person in this place; in a private chat, in their own. ``fields``: ``language_code="de"``."""
        self.world.user(id, **fields)
        return Person(
            self.world, self.bot, id, room=None if self.room.type == "private" else self.room, thread=self.thread
        )

    def group(self, id: int, **fields: Any) -> Person:  # noqa: A002
        """This person in a group, which the bot belongs to; its id is negative. ``type="channel"`` for a channel."""
        room = self.world.group(id, **fields)
        self.world.user(self.id)
        return Person(self.world, self.bot, self.id, room=room)

    def topic(self, id: int | str) -> Person:  # noqa: A002
        """This person in a forum topic of this group, given by its id or name; made when first asked for."""
        room = self.room
        if room.type not in ("group", "supergroup"):
            raise UsageError("topics are in groups: chat.group(-100).topic('Help')")
        room.chat.update(type="supergroup", is_forum=True)
        known = next((topic.id for topic in room.topics.values() if id in (topic.id, topic.name)), None)
        if known is None:
            known = int(open_topic(self.world, room, self.me, str(id))["message_thread_id"])
        return Person(self.world, self.bot, self.id, room=room, thread=known)

    @property
    def me(self) -> dict[str, Any]:
        """This person, as bots see them."""
        return self.world.users[self.id]

    # Acting

    async def send(self, text: str | None = None, **fields: Any) -> dict[str, Any]:
        """Write a message, and give it as the bot gets it; ``fields`` are those of the Bot API."""
        if text is not None:
            seen = found(text)
            fields = {"text": text, **({"entities": seen} if seen else {}), **fields}
        topic = {} if self.thread is None else {"message_thread_id": self.thread, "is_topic_message": True}
        return self.world.post(self.room, self.me, **topic, **fields)

    async def send_at_once(self, *texts: str) -> list[dict[str, Any]]:
        """Write several messages, one right after the other."""
        return [await self.send(text) for text in texts]

    async def reply(self, text: str, **fields: Any) -> dict[str, Any]:
        """Answer the bot's last message, as a reply."""
        return await self.send(text, reply_to_message=copy.deepcopy(self._answered(None)), **fields)

    async def edit(self, text: str) -> dict[str, Any]:
        """Change the last message of this person."""
        mine = [message for message in self.messages if message.get("from", {}).get("id") == self.id]
        if not mine:
            raise UsageError("there is nothing to edit yet; send() something first")
        return self.world.edit(self.room, mine[-1], by_bot=False, text=text, entities=found(text) or None)

    async def press(self, button: str, *, on: str | None = None) -> str | None:
        """Press a button of the bot's last message with buttons, or of the last message with the text ``on``.

        Gives the id of the callback query, for ``notice``; ``None`` for a button that sends its text.
        """
        return await self.push(*self._button(button, on))

    async def push(self, pressed: KeyboardButton, message: dict[str, Any]) -> str | None:
        """Press this very button of this message."""
        if pressed.types:
            await self._type(pressed)
            return None
        if pressed.data is None:
            raise UsageError(f"the button {pressed.text!r} opens a page; the bot hears nothing of it")
        query = {
            "from": dict(self.me),
            "message": message,
            "chat_instance": f"-2671862547{self.room.id}",
            "data": pressed.data,
        }
        by = next(bot for bot in self.world.bots.values() if bot.id == message.get("from", {}).get("id", self.bot.id))
        return self.world.ask(by, "callback_query", query)

    async def inline(self, text: str, *, offset: str = "") -> str:
        """Type the bot's name and a text in some chat; gives the id of the inline query, for ``notice``."""
        query = {"from": dict(self.me), "query": text, "offset": offset, "chat_type": self.room.type}
        return self.world.ask(self.bot, "inline_query", query)

    async def block(self) -> None:
        """Block the bot."""
        self._standing(self.bot.id, "kicked")

    async def unblock(self) -> None:
        """Let the bot write again."""
        self._standing(self.bot.id, "member")

    async def join(self) -> None:
        """Come into the group, which says so."""
        self._standing(self.id, "member")
        self.world.post(self.room, self.me, new_chat_members=[dict(self.me)])

    async def leave(self) -> None:
        """Go out of the group, which says so."""
        self.world.post(self.room, self.me, left_chat_member=dict(self.me))
        self._standing(self.id, "left")

    async def migrate(self) -> Person:
        """Make a supergroup of this group, and give this person in it."""
        return Person(self.world, self.bot, self.id, room=self.world.migrate(self.room))

    async def deliver(self, update: dict[str, Any]) -> None:
        """Give the bot any update at all, as Bot API JSON."""
        self.world.deliver(self.bot, update)

    async def redeliver(self, update_id: int | None = None) -> None:
        """The bot's last update comes again, or another one, as it does when its acknowledgement was lost."""
        every = self.bot.updates.all
        chosen = [update for update in every if update_id in (None, update["update_id"])]
        if not chosen:
            raise UsageError("there is nothing to deliver again yet; send() something first")
        await self.deliver(chosen[-1])

    # Looking

    async def answer(self, *, timeout: float = 10.0) -> str:
        """The text of the next message of a bot here; waits for it."""
        return text_of(await self.hear(timeout=timeout))

    async def hear(self, *, timeout: float = 10.0) -> dict[str, Any]:
        """The next message of a bot here, as Bot API JSON; waits for it."""
        came = asyncio.Event()
        stop = self.world.watch(lambda event: self._woken(event, came))
        try:
            async with asyncio.timeout(timeout):
                while True:
                    for message in self._answers():
                        if message["message_id"] > self._heard:
                            self._heard = message["message_id"]
                            return message
                    came.clear()
                    await came.wait()
        except TimeoutError:
            raise TimeoutError(f"the bot said nothing here for {timeout:g} s; the chat so far:\n{self}") from None
        finally:
            stop()

    async def ask(self, text: str, *, timeout: float = 10.0) -> str:
        """Send a text, and give what the bot answers."""
        self._heard = max(self.room.messages, default=0)
        await self.send(text)
        return await self.answer(timeout=timeout)

    async def notice(self, query_id: str, *, timeout: float = 10.0) -> dict[str, Any]:
        """What the bot answered to a pressed button (its little notice) or to an inline query; waits for it."""
        came = asyncio.Event()
        stop = self.world.watch(lambda event: came.set() if event.kind == "answered" else None)
        try:
            async with asyncio.timeout(timeout):
                while self.world.queries[query_id]["answer"] is None:
                    came.clear()
                    await came.wait()
        except TimeoutError:
            raise TimeoutError(f"the bot did not answer the query for {timeout:g} s") from None
        finally:
            stop()
        answer: dict[str, Any] = self.world.queries[query_id]["answer"]
        return answer

    @property
    def last(self) -> str | None:
        """The text of the bot's last message in this place, ``None`` before its first."""
        answers = self._answers()
        return text_of(answers[-1]) if answers else None

    @property
    def buttons(self) -> list[str]:
        """The buttons that can be pressed: of the bot's last message, and those below the place for writing."""
        answers = self._answers()
        own = buttons_of(answers[-1].get("reply_markup")) if answers else ()
        return [button.text for button in (*own, *buttons_of(self.room.keyboard))]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All that is to be read in this place, oldest first, as messages of the Bot API."""
        every = self.room.messages.values()
        if not self.room.chat.get("is_forum"):
            return list(every)
        return [message for message in every if message.get("message_thread_id") == self.thread]

    @property
    def updates(self) -> list[dict[str, Any]]:
        """All that the bot was told, from everybody, oldest first."""
        return list(self.bot.updates.all)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What the bot called, for everybody, oldest first; polling aside."""
        return list(self.bot.calls)

    def __str__(self) -> str:
        lines = [(message.get("from", {}).get("first_name", "Channel"), text_of(message)) for message in self.messages]
        return "\n".join(f"{name}: {text}" for name, text in lines)

    # Inside

    def _woken(self, event: WorldEvent, came: asyncio.Event) -> None:
        if event.kind in ("message", "edited") and event.room is self.room:
            came.set()

    def _answers(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message.get("from", {}).get("is_bot")]

    def _answered(self, text: str | None) -> dict[str, Any]:
        answers = self._answers()
        chosen = answers if text is None else [message for message in answers if text_of(message) == text]
        if not chosen:
            said = ", ".join(repr(text_of(message)) for message in answers) or "nothing"
            raise UsageError(
                f"the bot said {said} here" if text is None else f"the bot did not say {text!r} here, it said {said}"
            )
        return chosen[-1]

    def _button(self, text: str, on: str | None) -> tuple[KeyboardButton, dict[str, Any]]:
        messages = [self._answered(on)] if on is not None else list(reversed(self._answers()))
        for message in messages:
            for button in buttons_of(message.get("reply_markup")):
                if button.text == text:
                    return button, message
        for button in buttons_of(self.room.keyboard):
            if button.text == text:
                return button, {}
        there = ", ".join(map(repr, self.buttons)) or "no buttons at all"
        raise UsageError(f"there is no button {text!r} to press here; there is {there}")

    async def _type(self, button: KeyboardButton) -> None:
        if self.room.keyboard and self.room.keyboard.get("one_time_keyboard"):
            self.room.keyboard = None
        if button.raw.get("request_contact"):
            await self.send(contact={"phone_number": "+10000000000", **_names(self.me), "user_id": self.id})
        elif button.raw.get("request_location"):
            await self.send(location={"latitude": 0.0, "longitude": 0.0})
        else:
            await self.send(button.text)

    def _standing(self, user_id: int, status: str) -> None:
        old = member_of(self.world, self.room, user_id)
        self.room.members[user_id] = status
        change = {
            "chat": dict(self.room.chat),
            "from": dict(self.me),
            "date": int(self.world.clock()),
            "old_chat_member": old,
            "new_chat_member": member_of(self.world, self.room, user_id),
        }
        if user_id == self.bot.id:
            self.world.update(self.bot, "my_chat_member", change)
        else:
            self.world.tell(self.room, "chat_member", change)


def text_of(message: dict[str, Any]) -> str:
    """What a person reads in a message."""
    return str(message.get("text", message.get("caption", "")))


def _names(user: dict[str, Any]) -> dict[str, Any]:
    return {name: user[name] for name in ("first_name", "last_name") if name in user}
