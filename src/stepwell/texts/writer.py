"""Shows in a chat a text that is being written, as it grows."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from stepwell._backoff import backoff
from stepwell.errors import BotApiError, BotUnavailable, UsageError
from stepwell.options import check, check_choice, check_function, check_instance
from stepwell.texts.calls import MakeCall, fit, is_unmodified, is_unparsable, make_call
from stepwell.texts.formatting import read_formatting
from stepwell.texts.pieces import MAX_TEXT, Entity, FormattedText, split

__all__ = ["ChatKind", "Writer"]

logger: logging.Logger = logging.getLogger("stepwell.telegram")

#: A private chat, whose user sees drafts, or any other chat, where a message is edited.
ChatKind: TypeAlias = Literal["private", "other"]
#: Gets the id of the message that shows the text; ``None`` once that message is complete.
OnMessageId: TypeAlias = Callable[[int | None], Any]

#: Seconds from one draft to the next, and after which the same one is sent again: Telegram shows it for 30.
DRAFT_EVERY, DRAFT_AGAIN = 0.5, 20.0
#: Seconds from one edit to the next, in a chat with a user and in a group or channel.
EDIT_EVERY, GROUP_EVERY = 1.0, 3.0
#: Seconds before the first message, so that it is more than a word.
FIRST_AFTER = 1.0
#: Seconds before a retry: the first pause, and the longest.
PAUSES = (0.5, 10.0)
#: After the beginning of a text that is too long for one message.
_MORE = "…"
#: The parameters of an edit.
_EDITED = (
    "business_connection_id", "chat_id", "text", "parse_mode", "entities", "link_preview_options", "reply_markup",
)  # fmt: skip


class Writer:
    """Shows a text in a chat while it is written. ``write`` never waits; the newest text is sent, one call at a time.

    In a private chat the user sees drafts, twice a second, with "Thinking..." before the first word. In other chats one
    message is sent and then edited, within Telegram's limits. If Telegram asks to wait, only the writer waits.

    ``finish`` returns the calls that complete the text. They are not sent by the writer: store them if they must not
    be lost, then send them in their order.

    :param call: makes one attempt of a call: ``BotClient.try_call``. A retry would send a text that is out of date.
        ``None`` shows nothing before the end.
    :param kind: ``"private"`` or ``"other"``; by default what the id of the chat says. A chat of a business connection
        is another one.
    :param draft_id: the id of the drafts, not 0. Telegram's update ``stopped_message_generation`` names it.
    :param can_stop: show a button to stop with the drafts. The text stays in the chat until the message comes.
    :param message_id: the message that an earlier writer has shown; this one continues with it.
    :param on_message_id: gets the id of the message when it is sent, and ``None`` when it is complete, so that it can
        be stored. It may be a coroutine function.
    :param params: more parameters of ``sendMessage``, such as ``parse_mode`` and ``business_connection_id``.

    Example::

        async def tell(client: BotClient, chat: int, words):
            async with Writer(client.try_call, chat) as writer:
                async for word in words:
                    writer.write(word)
            await Sender(client).send_all(await writer.finish())
    """

    def __init__(
        self,
        call: MakeCall | None,
        chat: int | str,
        *,
        thread: int | None = None,
        kind: ChatKind | None = None,
        draft_id: int | None = None,
        can_stop: bool = False,
        message_id: int | None = None,
        on_message_id: OnMessageId | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        check_function(call, "Writer(call) takes a function such as client.try_call, got {}", optional=True)
        check_function(on_message_id, "Writer(on_message_id=...) takes a function of an id, got {}", optional=True)
        check_choice(kind, ("private", "other", None), 'Writer(kind=...) must be "private" or "other", got {}')
        check(draft_id != 0, "Writer(draft_id={}): Telegram takes any number but 0", draft_id)
        self._call = call
        self._params: dict[str, Any] = {"chat_id": chat, **(params or {})}
        if thread is not None:
            self._params["message_thread_id"] = thread
        is_user = isinstance(chat, int) and chat > 0
        if kind is None:
            kind = "private" if is_user and "business_connection_id" not in self._params else "other"
        #: Whether the user sees drafts, not a message.
        self.shows_drafts: bool = kind == "private"
        self._every = DRAFT_EVERY if self.shows_drafts else EDIT_EVERY if is_user else GROUP_EVERY
        self._can_stop = can_stop
        #: The id of the drafts.
        self.draft_id: int = random.randrange(1, 2**31) if draft_id is None else draft_id
        #: The message that shows the text; ``None`` before it is sent, and in private chats.
        self.message_id: int | None = message_id
        #: Gets the id of the message when it is sent.
        self.on_message_id: OnMessageId | None = on_message_id
        self._parts: list[str] = []
        #: What the chat shows.
        self._shown: FormattedText | None = None
        self._mode: str | None = self._params.pop("parse_mode", None)
        #: Telegram has refused the formatting.
        self._plain = False
        self._written = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: A call is under way, and must not be overtaken by the last one.
        self._calling = False
        self._closed = False

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self.close()

    @property
    def text(self) -> str:
        """All that was written since the start, or since ``flush``."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def start(self) -> None:
        """Begin to show the text: in a private chat, "Thinking..." at once. The first ``write`` does so too.

        Raises ``UsageError`` if the writer has finished.
        """
        if self._closed:
            raise UsageError("this writer is closed; create another one for another text")
        if self._task is None and self._call is not None:
            self._task = asyncio.create_task(self._run(), name="stepwell-writer")

    def write(self, text: str) -> None:
        """Add to the text. Never waits. Raises ``UsageError`` if the writer has finished."""
        check_instance(text, str, "write() takes a text, got {}")
        self.start()
        if text:
            self._parts.append(text)
            self._written.set()

    async def finish(self, text: str | None = None, **params: Any) -> list[dict[str, Any]]:
        """Stop showing, and return the calls that make the text complete and lasting, each a dict with ``method``.

        The first one edits the shown message, or sends one. A text that is too long for a message has several calls.
        No call is returned for a text without words.

        :param text: replaces what was written.
        :param params: more parameters of the last message, such as ``reply_markup``.
        """
        await self._stop()
        return self._last_calls(self.text if text is None else text, params)

    async def flush(self) -> None:
        """Send what was written as a message of its own, and begin a new text: before another message to the chat.

        Waits until Telegram has accepted it. Telegram removes a draft when a message is sent.

        Raises ``UsageError`` for a writer that shows nothing.
        """
        await self._stop()
        if self._call is None:
            raise UsageError("flush() needs a function that makes calls: Writer(client.try_call, chat)")
        for call in self._last_calls(self.text, {}):
            await self._send_for_good(self._call, call)
        self._closed, self._task, self._shown, self._plain = False, None, None, False
        self._parts.clear()
        self._written.clear()
        self.draft_id = self.draft_id % (2**31 - 1) + 1
        if self.message_id is not None:
            await self._note_message(None)
        self.start()

    async def close(self) -> None:
        """Stop showing and complete nothing. A draft disappears; a message stays as it is shown."""
        await self._stop()

    # Internal

    async def _stop(self) -> None:
        """Stop the task, but not a call under way. Raises the error of ``on_message_id``."""
        self._closed = True
        task = self._task
        if task is None:
            return
        if not self._calling:
            task.cancel()
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.cancelled():
            task.result()

    def _last_calls(self, text: str, more: dict[str, Any]) -> list[dict[str, Any]]:
        if not text.strip():
            return []
        formatting = {} if self._mode is None else {"parse_mode": self._mode}
        first, *others = fit([{"method": "sendMessage", **self._params, "text": text, **formatting, **more}])
        for each in (first, *others):
            # The default of a bot is not for texts whose formatting was read here.
            each.setdefault("parse_mode", None)
        if self.message_id is None:
            return [first, *others]
        edited = {name: first[name] for name in _EDITED if name in first}
        return [{"method": "editMessageText", "message_id": self.message_id, **edited}, *others]

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time
        failures = 0
        if not self.shows_drafts and self.message_id is None:
            await self._written.wait()
            await asyncio.sleep(FIRST_AFTER)
        while not self._closed:
            frame = self._frame()
            if (frame is None or frame == self._shown) and (await self._is_written_in_time() or frame is None):
                continue
            began = now()
            self._calling = True
            try:
                shows = await self._show(frame)
                failures, pause = 0, began + self._every - now()
            except BotUnavailable as error:
                failures += 1
                shows, pause = True, max(error.retry_after or backoff(failures, *PAUSES), self._every)
            finally:
                self._calling = False
            if self._closed or not shows:
                return
            await asyncio.sleep(max(pause, 0.0))

    async def _is_written_in_time(self) -> bool:
        """Wait for new text. Return ``False`` if the same draft must be sent again before there is any."""
        self._written.clear()
        try:
            async with asyncio.timeout(DRAFT_AGAIN if self.shows_drafts else None):
                return await self._written.wait()
        except TimeoutError:
            return False

    def _frame(self) -> FormattedText | None:
        """Return what to show now: of a draft the end, of a message the beginning; ``None`` for nothing."""
        # Telegram removes spaces at the end, so a text with more of them looks the same.
        text = self.text.rstrip()
        if not text:
            # Telegram shows "Thinking..." for an empty draft.
            return FormattedText("", []) if self.shows_drafts else None
        entities: list[Entity] = []
        if self._mode is not None and not self._plain:
            # Markup that is not closed yet may not be readable. It is shown as it is.
            text, entities = read_formatting(text, self._mode) or (text, entities)
        pieces = [piece for piece in split(text, entities, first=MAX_TEXT - len(_MORE)) if piece[0].strip()]
        if not pieces:
            return None
        if self.shows_drafts or len(pieces) == 1:
            return pieces[-1]
        beginning, entities = pieces[0]
        return FormattedText(beginning + _MORE, entities)

    async def _show(self, frame: FormattedText) -> bool:
        """Send a frame. Return whether more can be shown."""
        try:
            await self._send(frame)
        except BotUnavailable:
            raise
        except BotApiError as error:
            reason = error.description
            if is_unmodified(reason):
                pass
            elif is_unparsable(reason) and frame.entities:
                self._plain = True
                return True
            elif self.message_id is not None and ("not found" in reason or "can't be edited" in reason):
                # A user has deleted it.
                self.message_id, self._shown = None, None
                return True
            else:
                logger.warning("a text is shown when it is complete: %s", error)
                return False
        self._shown = frame
        return True

    async def _send(self, frame: FormattedText) -> None:
        call = self._call
        assert call is not None
        shown: dict[str, Any] = {"text": frame.text, **({"entities": frame.entities} if frame.entities else {})}
        if self.shows_drafts:
            where = {name: self._params[name] for name in ("chat_id", "message_thread_id") if name in self._params}
            # What the user has stopped stays in the chat until the message comes.
            stop = {"can_stop": True, "keep_on_stop": True} if self._can_stop else {}
            await call("sendMessageDraft", **where, draft_id=self.draft_id, **shown, **stop)
        elif self.message_id is None:
            sent = await call("sendMessage", **self._params, **shown)
            await self._note_message(sent["message_id"])
        else:
            about = {name: self._params[name] for name in _EDITED if name in self._params}
            await call("editMessageText", message_id=self.message_id, **about, **shown)

    async def _note_message(self, message_id: int | None) -> None:
        self.message_id = message_id
        if self.on_message_id is not None:
            result = self.on_message_id(message_id)
            if inspect.isawaitable(result):
                await result

    async def _send_for_good(self, make: MakeCall, call: dict[str, Any]) -> None:
        failures = 0
        while True:
            try:
                await make_call(make, call)
                return
            except BotUnavailable as error:
                failures += 1
                await asyncio.sleep(error.retry_after or backoff(failures, *PAUSES))
