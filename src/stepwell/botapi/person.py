"""A user who chats with a bot; its methods are named as in ``stepwell.testing.Chat``."""

from __future__ import annotations

import copy
import secrets
from dataclasses import replace
from typing import Any

from stepwell.botapi.bots import Bot
from stepwell.botapi.errors import NotPossible, quoted
from stepwell.botapi.formatting.entities import find_entities
from stepwell.botapi.history import ChatHistory
from stepwell.botapi.keyboards import KeyboardButton, buttons_of
from stepwell.botapi.methods.chats.invites import join_by_link
from stepwell.botapi.methods.chats.members import change_member, member_of
from stepwell.botapi.methods.chats.topics import open_topic
from stepwell.botapi.methods.files import add_profile_photo, keep_document, keep_picture
from stepwell.botapi.methods.messages.media import MAX_ALBUM
from stepwell.botapi.methods.messages.polls import is_closed, vote
from stepwell.botapi.methods.messages.reactions import react
from stepwell.botapi.methods.payments import Payment, start_payment
from stepwell.botapi.objects import PendingInvoice, Room
from stepwell.botapi.world import World

__all__ = ["Person"]

_PHONE = "+10000000000"
_ORDER: dict[str, Any] = {
    "phone_number": _PHONE,
    "email": "user@example.org",
    "shipping_address": {
        "country_code": "US",
        "state": "NY",
        "city": "New York",
        "street_line1": "1 Main Street",
        "street_line2": "",
        "post_code": "10001",
    },
}


class Person(ChatHistory):
    """One user in one chat: private, group, channel or topic.

    The bot runs in another task or process, so ``send`` and ``press`` return immediately.
    ``await chat.answer()`` waits for the bot's next message here.

    Example::

        async with BotAPI() as api:
            chat: Person = api.chat(api.bot("my_bot"))
            await chat.send("/register")
    """

    def __init__(
        self, world: World, bot: Bot, user: int, *, room: Room | None = None, thread: int | None = None
    ) -> None:
        super().__init__(world, bot, room or world.private(bot, user), thread)
        self.id = user
        self.room.members.setdefault(bot.id, "administrator")
        self.room.members.setdefault(user, "member")

    # Other users and chats

    def user(self, id: int, **fields: Any) -> Person:  # noqa: A002
        """Return another user in this chat; from a private chat, in their own. ``fields``: ``language_code="de"``."""
        self.world.user(id, **fields)
        return Person(
            self.world, self.bot, id, room=None if self.room.type == "private" else self.room, thread=self.thread
        )

    def group(self, id: int, **fields: Any) -> Person:  # noqa: A002
        """Return this user in a group with the bot. Its id is negative; ``type="channel"`` makes it a channel."""
        room = self.world.group(id, **fields)
        self.world.user(self.id)
        return Person(self.world, self.bot, self.id, room=room)

    def topic(self, id: int | str) -> Person:  # noqa: A002
        """Return this user in a forum topic, by id or name; the topic is created if needed.

        Raises ``NotPossible`` outside a group.
        """
        room = self.room
        if room.type not in ("group", "supergroup"):
            raise NotPossible("only groups have topics: chat.group(-100).topic('Help')")
        room.chat.update(type="supergroup", is_forum=True)
        known = next((topic.id for topic in room.topics.values() if id in (topic.id, topic.name)), None)
        if known is None:
            known = int(open_topic(self.world, room, self.me, str(id))["message_thread_id"])
        return Person(self.world, self.bot, self.id, room=room, thread=known)

    @property
    def me(self) -> dict[str, Any]:
        """This user as Bot API JSON."""
        return self.world.users[self.id]

    # Actions

    async def send(self, text: str | None = None, **fields: Any) -> dict[str, Any]:
        """Send a message and return it as the bot gets it; ``fields`` are fields of the Bot API."""
        if text is not None:
            seen = find_entities(text)
            fields = {"text": text, **({"entities": seen} if seen else {}), **fields}
        self._check_allowed()
        topic = {} if self.thread is None else {"message_thread_id": self.thread, "is_topic_message": True}
        return self.world.post(self.room, self.me, **topic, **fields)

    async def send_at_once(self, *texts: str) -> list[dict[str, Any]]:
        """Send several messages at once."""
        return [await self.send(text) for text in texts]

    async def reply(self, text: str, **fields: Any) -> dict[str, Any]:
        """Reply to the bot's last message."""
        return await self.send(text, reply_to_message=copy.deepcopy(self._answered(None)), **fields)

    async def send_photo(self, photo: bytes, *, caption: str = "", **fields: Any) -> dict[str, Any]:
        """Send a picture, which the bot can download."""
        return await self.send(photo=[keep_picture(self.world, photo)], **_caption(caption), **fields)

    async def send_album(self, *photos: bytes, caption: str = "", **fields: Any) -> list[dict[str, Any]]:
        """Send several pictures at once: one message each, with one ``media_group_id`` and the caption at the first.

        Raises ``NotPossible`` unless there are 2 to 10.
        """
        if not 2 <= len(photos) <= MAX_ALBUM:
            raise NotPossible(f"an album has 2 to {MAX_ALBUM} pictures, got {len(photos)}; send_photo sends one")
        album = secrets.token_urlsafe(8)
        captions = [caption, *[""] * (len(photos) - 1)]
        return [
            await self.send_photo(photo, caption=text, media_group_id=album, **fields)
            for photo, text in zip(photos, captions, strict=True)
        ]

    async def send_document(
        self, content: bytes, *, name: str = "file.txt", caption: str = "", **fields: Any
    ) -> dict[str, Any]:
        """Send a file, which the bot can download.

        Raises ``NotPossible`` for an empty file, which Telegram does not send.
        """
        if not content:
            raise NotPossible(f"the file {quoted(name)} is empty, and Telegram sends no empty files")
        return await self.send(document=keep_document(self.world, name, content), **_caption(caption), **fields)

    async def edit(self, text: str, *, message: int | None = None) -> dict[str, Any]:
        """Edit this user's last text message, or the one with the id ``message``; of a picture or file, the caption.

        Raises ``NotPossible`` if there is none.
        """
        mine = [each for each in self.messages if each.get("from", {}).get("id") == self.id]
        chosen = [each for each in mine if message in (None, each["message_id"])]
        if not chosen:
            which = "message" if message is None else f"message {message}"
            raise NotPossible(f"this user has sent no {which} to edit; call send() first")
        found = find_entities(text) or None
        content: dict[str, Any] = {"text": text, "entities": found}
        if "photo" in chosen[-1] or "document" in chosen[-1]:
            content = {"caption": text, "caption_entities": found}
        return self.world.edit(self.room, chosen[-1], by_bot=False, **content)

    async def stop(self) -> None:
        """Press the Stop button of what the bot is writing here.

        The bot gets the update ``stopped_message_generation``, and the draft disappears unless ``keep_on_stop`` is set.
        Raises ``NotPossible`` if the bot is writing nothing here, or without a Stop button.
        """
        draft = self._draft()
        if draft is None or not draft.can_stop:
            what = "writes nothing" if draft is None else "writes without a Stop button (can_stop)"
            raise NotPossible(f"the bot {what} here, so there is nothing to stop")
        if draft.keep_on_stop:
            self.world.show_draft(self.room, replace(draft, can_stop=False))
        else:
            self.world.end_draft(self.room, draft.thread)
        topic = {"message_thread_id": draft.thread} if draft.thread else {}
        stopped = {"chat": dict(self.room.chat), **topic, "draft_id": draft.id}
        self.world.update(self.bot, "stopped_message_generation", stopped)

    async def press(self, button: str, *, on: str | None = None) -> str | None:
        """Press a button of the bot's last message with buttons, or of the last message with the text ``on``.

        Returns the id of the callback query, for ``notice``; ``None`` for a button that sends its text.
        """
        return await self.push(*self._button(button, on))

    async def push(self, pressed: KeyboardButton, message: dict[str, Any]) -> str | None:
        """Press this button of this message. Raises ``NotPossible`` if it opens a page."""
        if pressed.types:
            await self._type(pressed)
            return None
        if pressed.raw.get("pay"):
            return await self.pay(self._invoice_of(message))
        if pressed.data is None:
            raise NotPossible(f"the button {quoted(pressed.text)} opens a page and sends the bot no update")
        query = {
            "from": dict(self.me),
            "message": message,
            "chat_instance": f"-2671862547{self.room.id}",
            "data": pressed.data,
        }
        return self.world.ask(self.world.sender(message) or self.bot, "callback_query", query)

    async def ask(self, text: str, *, timeout: float = 10.0) -> str:
        """Send a text, and return the bot's answer."""
        self._heard = max(self.room.messages, default=0)
        await self.send(text)
        return await self.answer(timeout=timeout)

    async def inline(self, text: str, *, offset: str = "") -> str:
        """Send an inline query and return its id, for ``notice``."""
        query = {"from": dict(self.me), "query": text, "offset": offset, "chat_type": self.room.type}
        return self.world.ask(self.bot, "inline_query", query)

    async def vote(self, *options: str, on: str | None = None) -> None:
        """Vote in the bot's last poll, or in the one with the question ``on``; without options, retract the vote.

        Raises ``NotPossible`` if there is no such poll or option, or if the poll does not accept the vote.
        """
        message = next((each for each in reversed(self._answers()) if _is_poll(each, on)), None)
        if message is None:
            raise NotPossible("the bot sent no such poll here")
        poll = message["poll"]
        texts = [option["text"] for option in poll["options"]]
        missing = [option for option in options if option not in texts]
        if missing:
            raise NotPossible(f"the poll has no option {quoted(missing[0])}; it has: {', '.join(map(quoted, texts))}")
        if is_closed(self.world, poll):
            raise NotPossible("the poll is closed")
        if len(options) > 1 and not poll["allows_multiple_answers"]:
            raise NotPossible("the poll accepts one option only")
        if not poll["allows_revoting"] and self.id in self.room.votes.get(message["message_id"], {}):
            raise NotPossible("the poll accepts one vote of each user")
        vote(self.world, self.room, message, self.me, [texts.index(option) for option in options])

    async def react(self, *emoji: str, on: str | None = None) -> None:
        """React to the bot's last message, or the last one with the text ``on``; without emoji, remove the reaction."""
        reactions = [{"type": "emoji", "emoji": each} for each in emoji]
        react(self.world, self.room, self._answered(on)["message_id"], self.me, reactions)

    async def pay(
        self, invoice: str | PendingInvoice | None = None, *, tip: int = 0, order_info: dict[str, Any] | None = None
    ) -> str:
        """Pay the bot's last invoice here, or that of an invoice link, and return the id of the query, for ``notice``.

        The bot gets a shipping query, if the price is flexible, and a pre-checkout query. If it accepts them, this
        user sends the message ``successful_payment``. ``order_info`` replaces parts of the invented OrderInfo.

        Raises ``NotPossible`` if the tip is too high.
        """
        if not isinstance(invoice, PendingInvoice):
            invoice = self._invoice(invoice)
        if not 0 <= tip <= invoice.max_tip:
            raise NotPossible(f"the invoice allows a tip of 0 to {invoice.max_tip}, got {tip}")
        given = {**_ORDER, "name": str(self.me["first_name"]), **(order_info or {})}
        info = {part: given[part] for part in invoice.needs}
        total = invoice.json["total_amount"] + tip
        return start_payment(self.world, Payment(self.room, self.me, invoice, total, info))

    async def add_photo(self, content: bytes) -> None:
        """Set a new profile photo; ``getUserProfilePhotos`` returns it first."""
        add_profile_photo(self.world, self.id, content)

    async def block(self) -> None:
        """Block the bot."""
        self._set_status(self.bot.id, "kicked")

    async def unblock(self) -> None:
        """Unblock the bot."""
        self._set_status(self.bot.id, "member")

    async def join(self, link: str | None = None) -> None:
        """Join the group, with a service message. An invite link may require an approval of the bot."""
        self._check_not_banned()
        if link is not None:
            join_by_link(self.world, self.room, self.me, link)
            return
        self._set_status(self.id, "member")
        self.world.post(self.room, self.me, new_chat_members=[dict(self.me)])

    async def leave(self) -> None:
        """Leave the group, with a service message."""
        self.world.post(self.room, self.me, left_chat_member=dict(self.me))
        self._set_status(self.id, "left")

    async def migrate(self) -> Person:
        """Upgrade this group to a supergroup, and return this user in it."""
        return Person(self.world, self.bot, self.id, room=self.world.migrate(self.room))

    async def deliver(self, update: dict[str, Any]) -> None:
        """Deliver any update to the bot, as Bot API JSON."""
        self.world.deliver(self.bot, update)

    async def redeliver(self, update_id: int | None = None) -> None:
        """Deliver the last update, or the one with this id, again, as after a lost acknowledgement."""
        self.world.redeliver(self.bot, update_id)

    # Internal

    def _invoice(self, link: str | None) -> PendingInvoice:
        if link is not None:
            if link not in self.world.invoices:
                raise NotPossible(f"there is no invoice link {quoted(link)}; createInvoiceLink returns one")
            return self.world.invoices[link]
        message = next((each for each in reversed(self._answers()) if "invoice" in each), None)
        if message is None:
            raise NotPossible("the bot sent no invoice here; sendInvoice sends one")
        return self._invoice_of(message)

    def _invoice_of(self, message: dict[str, Any]) -> PendingInvoice:
        invoice = self.room.invoices.get(message["message_id"])
        if invoice is None:
            raise NotPossible("this message is a copy of an invoice, or from an earlier start, and cannot be paid")
        return invoice

    def _button(self, text: str, on: str | None) -> tuple[KeyboardButton, dict[str, Any]]:
        messages = [self._answered(on)] if on is not None else list(reversed(self._answers()))
        for message in messages:
            for button in self.buttons_on(message):
                if button.text == text:
                    return button, message
        for button in buttons_of(self.room.keyboard):
            if button.text == text:
                return button, {}
        there = ", ".join(map(quoted, self.buttons)) or "none"
        raise NotPossible(f"there is no button {quoted(text)} here; the buttons are: {there}")

    async def _type(self, button: KeyboardButton) -> None:
        if self.room.keyboard and self.room.keyboard.get("one_time_keyboard"):
            self.room.keyboard = None
        if button.raw.get("request_contact"):
            await self.send(contact={"phone_number": _PHONE, **_names(self.me), "user_id": self.id})
        elif button.raw.get("request_location"):
            await self.send(location={"latitude": 0.0, "longitude": 0.0})
        else:
            await self.send(button.text)

    def _set_status(self, user_id: int, status: str) -> None:
        change_member(self.world, self.room, user_id, status, by=self.me)

    def _check_not_banned(self) -> dict[str, Any]:
        member = member_of(self.world, self.room, self.id)
        if member["status"] == "kicked":
            raise NotPossible(f"user {self.id} is banned from this chat; unbanChatMember ends the ban")
        return member

    def _check_allowed(self) -> None:
        member = self._check_not_banned()
        if not member.get("can_send_messages", True):
            raise NotPossible(f"user {self.id} is restricted and sends no messages here; restrictChatMember allows it")


def _caption(text: str) -> dict[str, Any]:
    found = find_entities(text)
    return {**({"caption": text} if text else {}), **({"caption_entities": found} if found else {})}


def _is_poll(message: dict[str, Any], question: str | None) -> bool:
    return "poll" in message and question in (None, message["poll"]["question"])


def _names(user: dict[str, Any]) -> dict[str, Any]:
    return {name: user[name] for name in ("first_name", "last_name") if name in user}
