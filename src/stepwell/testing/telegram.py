"""A minimal Telegram for tests: ids, messages, and the effects of the bot's calls."""

from __future__ import annotations

import copy
import inspect
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from stepwell.botapi import Bot, Refusal, check_call
from stepwell.errors import BotApiError, BotBlocked, BotUnavailable
from stepwell.fsm import BotMethods, Update
from stepwell.options import check_function

__all__ = ["Button", "ChatClient", "ChatThread", "OnRefused", "Telegram", "text_of"]

#: Gets a refused call and its error. It may be a coroutine function.
OnRefused: TypeAlias = Callable[[dict[str, Any], BotApiError], Any]

#: Methods that show something which is no message.
_NOT_MESSAGES = ("sendChatAction", "sendMessageDraft", "sendRichMessageDraft")
BOT_ID: int = 123456
BOT: dict[str, Any] = {"id": BOT_ID, "is_bot": True, "first_name": "Bot", "username": "test_bot"}

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


class HistoryLine(NamedTuple):
    """A line of the history of a chat."""

    where: ChatThread
    who: str
    text: str


class ChatClient(BotMethods):
    """``ctx.bot`` in a test."""

    def __init__(self, telegram: Telegram) -> None:
        self._telegram = telegram

    async def call(self, method: str, /, **params: Any) -> Any:
        """Make a call in the chat of the test, and return its result."""
        return await self._telegram.call({"method": method, **params})

    async def download(self, file_id: str, *, to: str | os.PathLike[str] | None = None) -> Any:
        """Return the content of a file of the test, or write it to a path."""
        file = await self.call("getFile", file_id=file_id)
        content = self._telegram.files[file_id]
        if to is None:
            return content
        return _saved(content, Path(to), file["file_path"])


class Telegram:
    """The messages, updates and calls of one test."""

    def __init__(self, now: Callable[[], float], on_send_error: OnRefused | None = None) -> None:
        check_function(on_send_error, "on_send_error takes a function of the call and the error, got {}", optional=True)
        #: All delivered updates, in order, with repeated deliveries.
        self.updates: list[dict[str, Any]] = []
        #: All calls of the bot, in order, refused ones included.
        self.calls: list[dict[str, Any]] = []
        #: The calls that were refused permanently, and their errors.
        self.refused: list[tuple[dict[str, Any], BotApiError]] = []
        #: The private chats whose users have blocked the bot.
        self.blocked: set[int | str] = set()
        #: Has the failures that a test has requested.
        self.bot: Bot = Bot(BOT_ID, "test_bot", "", BOT)
        #: A refusal of a timer's call that the test has not requested.
        self.unexpected: BotApiError | None = None
        #: The results of methods that a test has chosen, and the files that it has made.
        self.results: dict[str, Any] = {}
        self.files: dict[str, bytes] = {}
        self._on_send_error = on_send_error
        self._history: list[HistoryLine] = []
        self._query_threads: dict[str, ChatThread] = {}
        self._messages: list[dict[str, Any]] = []
        #: The chats and ids of the messages that the bot has deleted.
        self._deleted: set[tuple[Any, Any]] = set()
        self._message_ids = count(1)
        self._query_ids = count(180_388_626_434)
        self._chats: dict[int | str, dict[str, Any]] = {}
        self._now = now
        #: Whether the test advances the time, and how many messages were in a chat before one of a turn came otherwise.
        self._advancing = False
        self._late: dict[ChatThread, int] = {}

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
        self._note(thread_of(message), f"{message['from']['first_name']} (edited)", text)
        return message

    def pressed(self, user: dict[str, Any], message: dict[str, Any], button: Button) -> dict[str, Any]:
        """Return a callback query: this user pressed a button of that message."""
        query_id = str(next(self._query_ids))
        self._query_threads[query_id] = thread_of(message)
        self._note(thread_of(message), user["first_name"], f"[{button.text}]")
        return {
            "id": query_id,
            "from": user,
            "message": message,
            "chat_instance": f"-2671862547{message['chat']['id']}",
            "data": button.data,
        }

    def membership(self, user: dict[str, Any], chat: dict[str, Any], *, blocked: bool) -> dict[str, Any]:
        """Return a change of the bot's membership: this user blocked or unblocked the bot."""
        old, new = ("member", "kicked") if blocked else ("kicked", "member")
        until = {"until_date": 0}
        return {
            "chat": chat,
            "from": user,
            "date": int(self._now()),
            "old_chat_member": {"user": BOT, "status": old, **({} if blocked else until)},
            "new_chat_member": {"user": BOT, "status": new, **(until if blocked else {})},
        }

    # The bot

    async def send(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """Apply a call as a bot's sender does, and return the message that it sent or edited, if any.

        A refusal that the test has requested is recorded and passed to ``on_send_error``. Without ``on_send_error``,
        other refusals are raised, so that the test fails. ``BotUnavailable`` is always raised.
        """
        self.calls.append(call)
        try:
            self._fail(call)
        except BotUnavailable:
            raise
        except BotApiError as error:
            await self._refuse(call, error)
            return None
        try:
            check_call(call)
        except Refusal as refusal:
            refused = BotApiError(call["method"], refusal.code, refusal.description)
            await self._refuse(call, refused)
            if self._on_send_error is None:
                raise refused from None
            return None
        return self._take(call)

    def answer_press(self, update: dict[str, Any], calls: list[dict[str, Any]]) -> None:
        """Add the empty answer of a runner to a press that neither these calls nor earlier ones answer."""
        query = Update.of(update).callback_id
        answer = {"method": "answerCallbackQuery", "callback_query_id": query}
        answered = (each for each in (*self.calls, *calls) if each["method"] == answer["method"])
        if query is not None and all(each.get("callback_query_id") != query for each in answered):
            self.calls.append(answer)

    async def call(self, call: dict[str, Any]) -> Any:
        """Make a call of ``ctx.bot``: return its result, and raise its refusal."""
        self.calls.append(call)
        self._fail(call)
        try:
            check_call(call)
        except Refusal as refusal:
            raise BotApiError(call["method"], refusal.code, refusal.description) from None
        method = call["method"]
        message = self._take(call)
        if method in self.results:
            return copy.deepcopy(self.results[method])
        return copy.deepcopy(message) if message is not None else self._result_of(method, call)

    def _result_of(self, method: str, call: dict[str, Any]) -> Any:
        """Return the result of a method that sends nothing, as far as this Telegram knows it."""
        chat = self._chats.get(call.get("chat_id", 0))
        if method == "getMe":
            return dict(BOT)
        if method == "getFile":
            if call["file_id"] not in self.files:
                raise BotApiError(method, 400, "Bad Request: invalid file_id")
            return {"file_id": call["file_id"], "file_path": call["file_id"]}
        if method == "getChat" and chat is not None:
            return dict(chat)
        if method == "createForumTopic":
            return {"message_thread_id": next(self._message_ids), "name": call.get("name"), "icon_color": 7322096}
        if method == "getChatMember":
            return {"status": "member", "user": {"id": call.get("user_id")}}
        return True

    async def send_for_timer(self, call: dict[str, Any]) -> None:
        """Apply a call of a timer or a job, whose errors do not reach the test but are logged."""
        try:
            await self.send(call)
        except BotUnavailable:
            raise
        except BotApiError as error:
            self.unexpected = self.unexpected or error

    async def send_for_turn(self, call: dict[str, Any]) -> None:
        """Apply a call of a turn. One that is sent while the test does not advance the time is reported later."""
        if not self._advancing:
            thread = ChatThread(call.get("chat_id", 0), call.get("message_thread_id"))
            self._late.setdefault(thread, sum(each["from"]["is_bot"] for each in self.seen(thread)))
        await self.send_for_timer(call)

    @contextmanager
    def advancing(self) -> Iterator[None]:
        """Return a block whose calls the test reports itself."""
        self._advancing = True
        try:
            yield
        finally:
            self._advancing = False

    def take_late(self, thread: ChatThread, now: int) -> int:
        """Return how many messages of the bot were there before the first one that is not reported yet."""
        return min(self._late.pop(thread, now), now)

    def _fail(self, call: dict[str, Any]) -> None:
        method, chat = call["method"], call.get("chat_id")
        if method == "deleteMessage" and (chat, call.get("message_id")) in self._deleted:
            # As when an update is delivered again.
            raise BotApiError(method, 400, "Bad Request: message to delete not found")
        if chat in self.blocked:
            raise BotBlocked(method, 403, "Forbidden: bot was blocked by the user")
        failure = self.bot.failure_of(method, chat)
        if failure is None:
            return
        if failure.refusal is None:
            raise BotUnavailable(method, None, "Telegram cannot be reached")
        code, description = failure.refusal.code, failure.refusal.description
        if code == 429 or code >= 500:
            raise BotUnavailable(method, code, description, retry_after=failure.refusal.parameters.get("retry_after"))
        raise (BotBlocked if code == 403 and chat is not None else BotApiError)(method, code, description)

    async def _refuse(self, call: dict[str, Any], error: BotApiError) -> None:
        self.refused.append((call, error))
        if "chat_id" in call:
            thread = ChatThread(call["chat_id"], call.get("message_thread_id"))
            self._note(thread, "Bot (refused)", text_of(call) or call["method"])
        if self._on_send_error is not None:
            result = self._on_send_error(call, error)
            if inspect.isawaitable(result):
                await result

    def _take(self, call: dict[str, Any]) -> dict[str, Any] | None:
        method = call["method"]
        params = {name: value for name, value in call.items() if name not in ("method", "chat_id")}
        if method.startswith("edit") and "message_id" in call:
            message = self._find(call)
            # An edit without a keyboard removes the old one.
            message.pop("reply_markup", None)
            message.update(params, edit_date=int(self._now()))
            self._note(thread_of(message), "Bot (edited)", text_of(message))
            return message
        if method == "deleteMessage":
            message = self._find(call)
            self._messages.remove(message)
            self._deleted.add((call["chat_id"], call["message_id"]))
            self._note(thread_of(message), "Bot (deleted)", text_of(message))
        elif method == "answerCallbackQuery" and call.get("text"):
            thread = self._query_threads.get(call.get("callback_query_id", ""))
            if thread is not None:
                self._note(thread, "Bot (notice)", call["text"])
        elif method.startswith("send") and "chat_id" in call and method not in _NOT_MESSAGES:
            topic = params.pop("message_thread_id", None)
            chat = self._chats.get(call["chat_id"], {"id": call["chat_id"]})
            return self._message(BOT, chat, topic, **params)
        return None

    # Messages

    def seen(self, thread: ChatThread) -> list[dict[str, Any]]:
        """Return the messages of a chat or topic, oldest first."""
        return [message for message in self._messages if thread_of(message) == thread]

    def history(self, thread: ChatThread) -> Iterator[str]:
        """Yield a line for each message, edit, deletion, pressed button and refused call of a chat or topic."""
        return (f"{line.who}: {line.text}" for line in self._history if line.where == thread)

    def _message(
        self, sender: dict[str, Any], chat: dict[str, Any], thread: int | None, **fields: Any
    ) -> dict[str, Any]:
        topic = {} if thread is None else {"message_thread_id": thread, "is_topic_message": True}
        ids = {"message_id": next(self._message_ids), "from": sender, "chat": chat, "date": int(self._now())}
        message = {**ids, **topic, **fields}
        self._messages.append(message)
        self._note(thread_of(message), sender["first_name"], text_of(message))
        return message

    def _note(self, where: ChatThread, who: str, text: str) -> None:
        self._history.append(HistoryLine(where, who, text))

    def _find(self, call: dict[str, Any]) -> dict[str, Any]:
        for message in self._messages:
            if (message["chat"]["id"], message["message_id"]) == (call.get("chat_id"), call["message_id"]):
                return message
        raise AssertionError(
            f"{call['method']}: there is no message {call['message_id']} in chat {call.get('chat_id')}"
        )


def _saved(content: bytes, to: Path, name: str) -> Path:
    path = to / name if to.is_dir() else to
    path.write_bytes(content)
    return path


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
