"""The Bot API calls of a context. They are collected, and returned by the ``Router``."""

from __future__ import annotations

from typing import Any

from stepwell.errors import ContextClosed, InvalidOption, UsageError
from stepwell.fsm import keys
from stepwell.fsm.conversation.block import CLOSED, Block
from stepwell.fsm.conversation.extension import extension_of
from stepwell.fsm.conversation.framework_objects import PLAIN, as_plain
from stepwell.fsm.conversation.parameters import PARAMETERS, check_parameters

__all__ = ["Calls"]


class Calls(Block):
    """The methods of ``Context`` that call the Bot API."""

    __slots__ = ()

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The Bot API calls collected so far."""
        return self._collected()

    def answer(self, text: str, **params: Any) -> None:
        """Send a message to the chat of the update. A timer answers in the last chat of the conversation.

        Raises ``UsageError`` if the update has no chat.
        """
        update = self.update
        if update.raw is not None:
            where = keys.answer_to(update)
        else:
            # A timer, or a conversation with key=.
            where = extension_of(self._record).where or keys.answer_to_key(self._fsm.key, self.key)
        if not where:
            raise UsageError("this update has no chat to answer in; use call('sendMessage', chat_id=...)")
        if not isinstance(text, str):
            raise _no_text("answer", text)
        self.call("sendMessage", **{**keys.params_of(where), "text": text, **params})

    def answer_callback(self, text: str | None = None, **params: Any) -> None:
        """Answer a pressed button, which stops its loading animation and may show a text.

        Without it the runner of the bot stops the animation. Telegram takes one answer: after 3 seconds the runner has
        given it, and the text is not shown.

        Raises ``UsageError`` if the update is not a callback query.
        """
        callback_id = self.update.callback_id
        if callback_id is None:
            raise UsageError("answer_callback() is for callback queries, and this update is not one; use answer()")
        if text is not None and not isinstance(text, str):
            raise _no_text("answer_callback", text)
        shown = {} if text is None else {"text": text}
        self.call("answerCallbackQuery", **{"callback_query_id": callback_id, **shown, **params})

    def edit(self, text: str, **params: Any) -> None:
        """Edit the message whose button was pressed. Its buttons are removed, unless ``reply_markup=`` is given.

        Raises ``UsageError`` if no button was pressed.
        """
        update = self.update
        if update.inline_message_id is not None:
            message: dict[str, Any] = {"inline_message_id": update.inline_message_id}
        elif update.callback_id is not None and update.chat is not None and update.message_id is not None:
            message = {"chat_id": update.chat.id, "message_id": update.message_id}
        else:
            raise UsageError(
                "edit() changes the message whose button was pressed, and this update has none; use answer(), or "
                "call('editMessageText', chat_id=..., message_id=..., text=...)"
            )
        if not isinstance(text, str):
            raise _no_text("edit", text)
        if update.business_connection_id is not None:
            message["business_connection_id"] = update.business_connection_id
        self.call("editMessageText", **{**message, "text": text, **params})

    def call(self, method: str, **params: Any) -> None:
        """Call any method of the Bot API. Raises ``InvalidOption`` for a parameter that looks misspelled.

        Keyboards and other objects of aiogram, python-telegram-bot and telebot are accepted like the Bot API's dicts.
        """
        known = PARAMETERS.get(method)
        # No Python call in the usual case.
        if known is not None and not known.issuperset(params):
            check_parameters(method, params)
        for name, value in params.items():
            if type(value) not in PLAIN:
                params[name] = as_plain(value)
        self._collected().append({"method": method, **params})

    def _collected(self) -> list[dict[str, Any]]:
        if self._record is CLOSED:
            raise ContextClosed
        if self._calls is None:
            raise UsageError("only a Router collects calls; send the message with your own client here")
        return self._calls


def _no_text(method: str, given: object) -> InvalidOption:
    if given is None:
        return InvalidOption(f"{method}() got None instead of a text; does the function that makes the text return it?")
    return InvalidOption(f"{method}() takes a text, got {type(given).__name__}; write {method}(str(...))")
