"""Chat with a bot in a test, without Telegram."""

from __future__ import annotations

import asyncio
import copy
from types import TracebackType
from typing import Any, Self

from stepwell._secrets import quoted
from stepwell.codec import values
from stepwell.errors import BotApiError, InvalidOption, UsageError
from stepwell.fsm import Router, Update
from stepwell.fsm.conversation.extension import extension_of
from stepwell.options import check_instance
from stepwell.record import State
from stepwell.slot import Slot
from stepwell.storage import Storage
from stepwell.testing.clock import Clock
from stepwell.testing.telegram import ChatClient, ChatThread, OnRefused, Telegram, buttons_of, text_of, thread_of
from stepwell.testing.workers import MakeRouter, Workers
from stepwell.turns import Turns

__all__ = ["Chat"]


class Chat:
    """A user who chats with a bot::

        chat = Chat(make_router)
        assert await chat.send("/register") == ["What's your name?"]
        await chat.restart()
        assert await chat.send("Alice") == ["Got it, Alice! What's your email?"]

    Pass a router, or a function that makes one for a storage; only with a function can the bot be restarted
    or have several workers. The default storage is memory. Every worker opens a storage given as URL, except
    ``memory://``, for itself, as separate processes would; ``async with Chat(...)`` closes these.

    A pressed button that the bot does not answer with ``answerCallbackQuery`` gets an empty answer, which ``calls`` has
    too, because a runner does the same.

    A bot may also be ``Turns``, which then use a storage in memory, or have some attached. Its turns run in ``ask``
    and ``advance``; see ``advance``. Use ``async with`` then, which ends them::

        async with Chat(turns) as chat:
            assert await chat.ask("hi") == ["Hello"]

    The runs of the flows of ``router.run_workers(...)`` run in ``advance`` too.

    The functions of ``on_startup`` are called before the first update, and again after each restart.

    Telegram's rules for methods, texts and keyboards apply: a call that Telegram would refuse raises
    ``BotApiError``. With ``on_send_error(call, error)`` it is passed to that function instead, as ``run_polling``
    does.

    It starts in a private chat. ``user``, ``group`` and ``topic`` return the same chat for another user,
    group or topic.
    """

    def __init__(
        self,
        bot: Router | Turns | MakeRouter,
        *,
        storage: Storage | str | None = None,
        workers: int = 1,
        clock: Clock | None = None,
        user: int = 42,
        on_send_error: OnRefused | None = None,
    ) -> None:
        self._workers = Workers(bot, storage, workers, clock)
        self._telegram = Telegram(self._workers.now, on_send_error)
        self._workers.show_timers(
            self._telegram.send_for_timer, self._telegram.send_for_turn, ChatClient(self._telegram)
        )
        self._user: dict[str, Any] = _person(user)
        self._group: dict[str, Any] | None = None
        self._thread: int | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._workers.stop()

    # Other users and chats

    def user(self, id: int, **fields: Any) -> Chat:  # noqa: A002
        """Return another user in this chat; from a private chat, in their own. ``fields``: ``language_code="de"``."""
        other = copy.copy(self)
        other._user = _person(id, **fields)
        return other

    def group(self, id: int, **fields: Any) -> Chat:  # noqa: A002
        """Return this user in a group; its id is negative."""
        if id >= 0:
            raise InvalidOption(f"the id of a group must be below 0, got {id}")
        other = copy.copy(self)
        other._group = {"id": id, "title": f"Group {-id}", "type": "supergroup" if id < -(10**12) else "group"} | fields
        other._thread = None
        return other

    def topic(self, id: int) -> Chat:  # noqa: A002
        """Return this user in a forum topic of this group. Raises ``UsageError`` outside a group."""
        if self._group is None:
            raise UsageError("only groups have topics: chat.group(-100).topic(7)")
        other = copy.copy(self)
        other._group = self._group | {"type": "supergroup", "is_forum": True}
        other._thread = id
        return other

    # Actions. Each returns the texts that the bot answered here.

    async def send(self, text: str | None = None, **fields: Any) -> list[str]:
        """Send a message; ``fields`` are fields of the Bot API, such as ``photo=[...], caption="Me"``."""
        return await self.deliver(self._written(text, fields))

    async def ask(self, text: str | None = None, **fields: Any) -> list[str]:
        """Send a message to a bot with turns, let the turn run to its end or its question, and return its answers.

        The time advances until no further message is waited for. ``fields``: see ``send``.
        """
        return [*await self.send(text, **fields), *await self.advance(self._workers.longest_window)]

    async def send_at_once(self, *texts: str) -> list[list[str]]:
        """Send several messages at once; the workers get them in turn."""
        updates = [self._written(text, {}) for text in texts]
        return await asyncio.gather(*(self.deliver(update) for update in updates))

    async def edit(self, text: str) -> list[str]:
        """Edit this user's last message. Raises ``UsageError`` if there is none."""
        _check_text(text)
        mine = [message for message in self.messages if message["from"]["id"] == self._user["id"]]
        if not mine:
            raise UsageError("this user has sent no message to edit; call send() first")
        edited = self._telegram.edited(mine[-1], text)
        return await self.deliver(self._telegram.update("edited_message", copy.deepcopy(edited)))

    async def press(self, button: str, *, on: str | None = None) -> list[str]:
        """Press a button of the bot's last message, or of the last message with the text ``on``.

        Raises ``AssertionError`` if there is no such button, or if it opens a page.
        """
        message = self._answered(on)
        found = next((each for each in buttons_of(message) if each.text == button), None)
        if found is None:
            there = ", ".join(repr(each.text) for each in buttons_of(message)) or "none"
            raise AssertionError(
                f"the bot's message {quoted(text_of(message))} has no button {quoted(button)}; its buttons are: {there}"
            )
        if found.types:
            return await self.send(button)
        if found.data is None:
            raise AssertionError(f"the button {quoted(button)} opens a page and sends the bot no update")
        pressed = self._telegram.pressed(self._user, copy.deepcopy(message), found)
        return await self.deliver(self._telegram.update("callback_query", pressed))

    async def stop(self) -> list[str]:
        """Press Stop on the draft that the bot shows here. Raises ``AssertionError`` if it has shown none."""
        drafts = [
            call
            for call in self.calls
            if call["method"] in ("sendMessageDraft", "sendRichMessageDraft")
            and (call.get("chat_id"), call.get("message_thread_id")) == self._chat_thread
        ]
        if not drafts:
            raise AssertionError("the bot has shown no draft here, so there is no button to stop it")
        thread = {} if self._thread is None else {"message_thread_id": self._thread}
        stopped = {"chat": self._chat, "draft_id": drafts[-1]["draft_id"], **thread}
        return await self.deliver(self._telegram.update("stopped_message_generation", stopped))

    async def deliver(self, update: dict[str, Any]) -> list[str]:
        """Deliver any update to the bot, as Bot API JSON.

        Raises ``BotUnavailable`` if an answer could not be sent for now. Telegram would then deliver the update again;
        do that with ``redeliver()``.
        """
        self._telegram.updates.append(update)
        is_killed = self._workers.is_killed
        try:
            # A copy, so that a handler cannot change it here.
            calls = await self._workers.handle(copy.deepcopy(update))
        except Exception:
            self._telegram.answer_press(update, [])
            raise
        if not is_killed:
            self._telegram.answer_press(update, calls)
        shown = [await self._telegram.send(call) for call in calls]
        return [
            text_of(message) for message in shown if message is not None and thread_of(message) == self._chat_thread
        ]

    # Faults and time

    async def redeliver(self) -> list[str]:
        """Deliver the last update again, as after a lost acknowledgement. Raises ``UsageError`` if there is none."""
        if not self.updates:
            raise UsageError("no update to deliver again; call send() first")
        return await self.deliver(self.updates[-1])

    async def restart(self, make_router: MakeRouter | None = None) -> None:
        """Restart the bot over the same storage; another function makes its next release."""
        await self._workers.restart(make_router)

    def kill_next(self, at: str | None = None, *, after_commit: bool = False) -> None:
        """Kill the bot while it handles the next update, and restart it.

        Its handler runs, and nothing is written; with ``after_commit`` its changes are written, and its answers are
        not sent. Then call ``redeliver()``, as Telegram does. The answers of timers are not sent either; a worker
        sends them after ``advance(60)``.

        ``at`` a point of a turn, the bot is killed and restarted there: ``"start"`` (its attempt is stored),
        ``"before tool"``, ``"in tool"`` (it has run, and its result is not stored), ``"behind tool"``, ``"before end"``
        and ``"behind end"`` of the write that ends the turn, ``"behind send"``, or ``"asking"`` (it waits for people).
        The turn goes on after the lease: ``await chat.advance(30)``. A tool with ``replay="safe"`` has no
        ``"before tool"``.
        """
        self._workers.kill_next("after commit" if after_commit else "before commit", at=at)

    async def block(self) -> list[str]:
        """Block the bot: its calls to this user are refused with ``BotBlocked``. The bot gets the update.

        Raises ``UsageError`` in a group.
        """
        if self._group is not None:
            raise UsageError("only a private chat can be blocked; use refuse(403, ...) for a group")
        self._telegram.blocked.add(self._user["id"])
        change = self._telegram.membership(self._user, self._chat, blocked=True)
        return await self.deliver(self._telegram.update("my_chat_member", change))

    async def unblock(self) -> list[str]:
        """Unblock the bot. The bot gets the update."""
        self._telegram.blocked.discard(self._user["id"])
        change = self._telegram.membership(self._user, self._chat, blocked=False)
        return await self.deliver(self._telegram.update("my_chat_member", change))

    def refuse(self, code: int, description: str, *, method: str | None = None, times: int = 1) -> None:
        """Refuse the next calls to this chat: ``chat.refuse(400, "Bad Request: message is too long")``."""
        self._telegram.bot.refuse(code, description, method=method, chat=self._chat["id"], times=times)

    def result(self, method: str, result: Any) -> None:
        """Choose the result of a method for ``ctx.bot``: ``chat.result("getChatMember", {"status": "creator"})``."""
        self._telegram.results[method] = result

    def file(self, content: bytes) -> str:
        """Make a file that ``ctx.bot.download`` finds, and return its id: ``document={"file_id": chat.file(b"x")}``."""
        check_instance(content, bytes, "chat.file() takes the content as bytes, got {}")
        name = f"file-{len(self._telegram.files) + 1}"
        self._telegram.files[name] = content
        return name

    def cut(self, *, times: int = 1) -> None:
        """Make Telegram unreachable for the next calls to any chat; they raise ``BotUnavailable``."""
        self._telegram.bot.cut(times=times)

    async def advance(self, seconds: float, *, until: asyncio.Event | None = None) -> list[str]:
        """Advance the storage's clock and fire due timers; return what they answered here.

        Runs of the flows of ``router.run_workers(...)`` that are queued or due run until each has ended or waits.

        Of a bot with turns it shuts the windows of messages, and runs all turns that are due. It returns when each of
        them has ended or waits for people, or when the bot is killed. ``until``: an event that a handler sets; it then
        returns at once, and the turn goes on while you send further messages. Let it end with ``advance(0)``, whose
        result has the answers since. While a turn runs, advance by less than its lease.
        """
        self._workers.advance(seconds)
        before = self._telegram.take_late(self._chat_thread, len(self._answers()))
        with self._telegram.advancing():
            await self._workers.tick(until)
        unexpected, self._telegram.unexpected = self._telegram.unexpected, None
        if unexpected is not None:
            raise unexpected
        return [text_of(message) for message in self._answers()[before:]]

    # History

    @property
    def last(self) -> str | None:
        """The text of the bot's last message here, ``None`` before its first."""
        answers = self._answers()
        return text_of(answers[-1]) if answers else None

    @property
    def buttons(self) -> list[str]:
        """The buttons of that message."""
        answers = self._answers()
        return [button.text for button in buttons_of(answers[-1])] if answers else []

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages here, oldest first, as Bot API JSON."""
        return self._telegram.seen(self._chat_thread)

    @property
    def updates(self) -> list[dict[str, Any]]:
        """All updates of the bot, from all users, oldest first."""
        return self._telegram.updates

    @property
    def calls(self) -> list[dict[str, Any]]:
        """All calls of the bot, for all users, oldest first."""
        return self._telegram.calls

    @property
    def refused(self) -> list[tuple[dict[str, Any], BotApiError]]:
        """All calls that were refused permanently, with their errors, oldest first."""
        return self._telegram.refused

    async def record(self) -> State | None:
        """Return the record of this user here."""
        fsm, key = self._workers.fsm, self._key()
        return None if key is None else await fsm.storage.get_state(fsm.bot, key)

    async def profile(self) -> dict[Any, Any]:
        """Return the ``ctx.profile`` of this user here."""
        fsm, key = self._workers.fsm, self._key()
        if key is None:
            return {}
        async with Slot(fsm.storage, fsm.bot, key, wait=fsm.wait, lease=fsm.lease) as slot:
            stored = extension_of(slot).profile
            found: dict[Any, Any] = values.decode(stored) if stored else {}
            return found

    def __str__(self) -> str:
        """Return the history here: messages, edits, pressed buttons, and refused calls."""
        return "\n".join(self._telegram.history(self._chat_thread))

    # Internal

    def _key(self) -> Any:
        message = {"message_id": 0, "from": self._user, **self._where()}
        return self._workers.fsm.key.extract(Update.of({"update_id": 0, "message": message}))

    @property
    def _chat(self) -> dict[str, Any]:
        user = {name: value for name, value in self._user.items() if name in ("id", "first_name", "username")}
        return self._group or {**user, "type": "private"}

    @property
    def _chat_thread(self) -> ChatThread:
        return ChatThread(self._chat["id"], self._thread)

    def _where(self) -> dict[str, Any]:
        topic = {} if self._thread is None else {"message_thread_id": self._thread, "is_topic_message": True}
        return {"chat": self._chat, **topic}

    def _written(self, text: str | None, fields: dict[str, Any]) -> dict[str, Any]:
        if text is not None:
            _check_text(text)
            fields = {"text": text, **_entities(text), **fields}
        message = self._telegram.said(self._user, self._chat, self._thread, **fields)
        return self._telegram.update("message", copy.deepcopy(message))

    def _answers(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["from"]["is_bot"]]

    def _answered(self, text: str | None) -> dict[str, Any]:
        answers = self._answers()
        found = answers if text is None else [message for message in answers if text_of(message) == text]
        if not found:
            said = ", ".join(repr(text_of(message)) for message in answers) or "nothing"
            raise AssertionError(
                "the bot has sent no message here"
                if text is None
                else f"the bot sent no message {quoted(text)} here; it sent: {said}"
            )
        return found[-1]


def _person(number: int, **fields: Any) -> dict[str, Any]:
    if number <= 0:
        raise InvalidOption(f"the id of a user must be above 0, got {number}")
    return {"id": number, "is_bot": False, "first_name": f"User {number}", "language_code": "en"} | fields


def _check_text(text: object) -> None:
    check_instance(text, str, "text must be a str, got {}; pass other fields by name: photo=[...]")


def _entities(text: str) -> dict[str, Any]:
    if not text.startswith("/"):
        return {}
    return {"entities": [{"type": "bot_command", "offset": 0, "length": len(text.split(maxsplit=1)[0])}]}
