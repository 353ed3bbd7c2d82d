"""As much of Telegram as a test needs: ids, messages, and what the bot's calls do to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

__all__ = ["Button", "ChatThread", "Telegram", "text_of"]

BOT = {"id": 123456, "is_bot": True, "first_name": "Bot", "username": "test_bot"}

# One row of ids for the whole process, begun anywhere as Telegram does: two chats over one
# storage must not take each other's updates for their own, delivered again.
_update_ids = count(random.randrange(10**8, 10**9))


class ChatThread(NamedTuple):
    """Where messages are read: a chat, or one topic of it."""

    chat: int | str
    thread: int | None


class Button(NamedTuple):
    """A button that a person sees."""

    text: str
    #: What Telegram sends along; ``None`` for a button that sends its text, or opens a page.
    data: str | None
    #: It stands below the place for writing, and sends its text.
    types: bool


class Telegram:
    """Remembers what was said, and gives out ids."""

    def __init__(self, now: Callable[[], float]) -> None:
        #: Every update that was delivered, in order; one that was delivered again stands here again.
        self.updates: list[dict[str, Any]] = []
        #: Every call of the bot, in order.
        self.calls: list[dict[str, Any]] = []
        self._messages: list[dict[str, Any]] = []
        self._message_ids = count(1)
        self._query_ids = count(180_388_626_434)
        self._chats: dict[int | str, dict[str, Any]] = {}
        self._now = now

    # What people do

    def update(self, kind: str, event: dict[str, Any]) -> dict[str, Any]:
        """An update as the Bot API delivers it."""
        return {"update_id": next(_update_ids), kind: event}

    def said(self, user: dict[str, Any], chat: dict[str, Any], thread: int | None, **fields: Any) -> dict[str, Any]:
        """A message of a person."""
        self._chats[chat["id"]] = chat
        return self._message(user, chat, thread, **fields)

    def edited(self, message: dict[str, Any], text: str) -> dict[str, Any]:
        """A person's message with another text."""
        message.update(text=text, edit_date=int(self._now()))
        return message

    def pressed(self, user: dict[str, Any], message: dict[str, Any], data: str) -> dict[str, Any]:
        """A callback query: this person pressed a button of that message."""
        return {
            "id": str(next(self._query_ids)),
            "from": user,
            "message": message,
            "chat_instance": f"-2671862547{message['chat']['id']}",
            "data": data,
        }

    # What the bot does

    def take(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """Do what the bot asks for; the message that people now see, if there is one."""
        self.calls.append(call)
        method = call["method"]
        params = {name: value for name, value in call.items() if name not in ("method", "chat_id")}
        if method.startswith("edit") and "message_id" in call:
            message = self._find(call)
            # An edit that brings no keyboard takes the old one away.
            message.pop("reply_markup", None)
            message.update(params, edit_date=int(self._now()))
            return message
        if method == "deleteMessage":
            self._messages.remove(self._find(call))
        elif method.startswith("send") and "chat_id" in call and method != "sendChatAction":
            thread = params.pop("message_thread_id", None)
            chat = self._chats.get(call["chat_id"], {"id": call["chat_id"]})
            return self._message(BOT, chat, thread, **params)
        return None

    # What people see

    def seen(self, place: ChatThread) -> list[dict[str, Any]]:
        """The messages in a place, oldest first."""
        return [message for message in self._messages if thread_of(message) == place]

    def _message(
        self, sender: dict[str, Any], chat: dict[str, Any], thread: int | None, **fields: Any
    ) -> dict[str, Any]:
        topic = {} if thread is None else {"message_thread_id": thread, "is_topic_message": True}
        ids = {"message_id": next(self._message_ids), "from": sender, "chat": chat, "date": int(self._now())}
        message = {**ids, **topic, **fields}
        self._messages.append(message)
        return message

    def _find(self, call: dict[str, Any]) -> dict[str, Any]:
        for message in self._messages:
            if (message["chat"]["id"], message["message_id"]) == (call.get("chat_id"), call["message_id"]):
                return message
        raise AssertionError(
            f"{call['method']}: there is no message {call['message_id']} in chat {call.get('chat_id')}"
        )


def thread_of(message: dict[str, Any]) -> ChatThread:
    """Where a message stands."""
    return ChatThread(message["chat"]["id"], message.get("message_thread_id"))


def text_of(message: dict[str, Any]) -> str:
    """What a person reads in a message."""
    return str(message.get("text", message.get("caption", "")))


def buttons_of(message: dict[str, Any]) -> Iterator[Button]:
    """The buttons of a message, row by row."""
    markup = message.get("reply_markup") or {}
    for row in markup.get("inline_keyboard", []):
        for button in row:
            yield Button(button["text"], button.get("callback_data"), types=False)
    for row in markup.get("keyboard", []):
        for button in row:
            yield Button(button if isinstance(button, str) else button["text"], None, types=True)
