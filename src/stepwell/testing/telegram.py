"""A minimal Telegram for tests: ids, messages, and the effects of the bot's calls."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

__all__ = ["Button", "ChatThread", "Telegram", "text_of"]

BOT = {"id": 123456, "is_bot": True, "first_name": "Bot", "username": "test_bot"}

# One sequence of ids for the whole process, starting at random, so that the updates of two chats over one storage
# are not mistaken for duplicates.
_update_ids = count(random.randrange(10**8, 10**9))


class ChatThread(NamedTuple):
    """A chat, or one topic of it."""

    chat: int | str
    thread: int | None


class Button(NamedTuple):
    """A button that a user sees."""

    text: str
    #: The callback data; ``None`` for a button that sends its text or opens a page.
    data: str | None
    #: True for a button of a reply keyboard, which sends its text.
    types: bool


class Telegram:
    """The messages, updates and calls of one test."""

    def __init__(self, now: Callable[[], float]) -> None:
        #: All delivered updates, in order, with repeated deliveries.
        self.updates: list[dict[str, Any]] = []
        #: All calls of the bot, in order.
        self.calls: list[dict[str, Any]] = []
        self._messages: list[dict[str, Any]] = []
        self._message_ids = count(1)
        self._query_ids = count(180_388_626_434)
        self._chats: dict[int | str, dict[str, Any]] = {}
        self._now = now

    # Users

    def update(self, kind: str, event: dict[str, Any]) -> dict[str, Any]:
        """Return an update as the Bot API delivers it."""
        return {"update_id": next(_update_ids), kind: event}

    def said(self, user: dict[str, Any], chat: dict[str, Any], thread: int | None, **fields: Any) -> dict[str, Any]:
        """Add a message of a user."""
        self._chats[chat["id"]] = chat
        return self._message(user, chat, thread, **fields)

    def edited(self, message: dict[str, Any], text: str) -> dict[str, Any]:
        """Edit a user's message."""
        message.update(text=text, edit_date=int(self._now()))
        return message

    def pressed(self, user: dict[str, Any], message: dict[str, Any], data: str) -> dict[str, Any]:
        """Return a callback query: this user pressed a button of that message."""
        return {
            "id": str(next(self._query_ids)),
            "from": user,
            "message": message,
            "chat_instance": f"-2671862547{message['chat']['id']}",
            "data": data,
        }

    # The bot

    def take(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """Apply a call of the bot; return the message that it sent or edited, if any."""
        self.calls.append(call)
        method = call["method"]
        params = {name: value for name, value in call.items() if name not in ("method", "chat_id")}
        if method.startswith("edit") and "message_id" in call:
            message = self._find(call)
            # An edit without a keyboard removes the old one.
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

    # Messages

    def seen(self, thread: ChatThread) -> list[dict[str, Any]]:
        """Return the messages of a chat or topic, oldest first."""
        return [message for message in self._messages if thread_of(message) == thread]

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
    """Return the chat and topic of a message."""
    return ChatThread(message["chat"]["id"], message.get("message_thread_id"))


def text_of(message: dict[str, Any]) -> str:
    """Return the text or caption of a message."""
    return str(message.get("text", message.get("caption", "")))


def buttons_of(message: dict[str, Any]) -> Iterator[Button]:
    """Yield the buttons of a message, row by row."""
    markup = message.get("reply_markup") or {}
    for row in markup.get("inline_keyboard", []):
        for button in row:
            yield Button(button["text"], button.get("callback_data"), types=False)
    for row in markup.get("keyboard", []):
        for button in row:
            yield Button(button if isinstance(button, str) else button["text"], None, types=True)
