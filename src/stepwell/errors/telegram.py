"""Errors of calls to Telegram's Bot API. None of them contains the bot's token."""

from __future__ import annotations

from stepwell.errors.base import StepwellError


class BotApiError(StepwellError):
    """The Bot API refused a call. The same call would be refused again.

    Example::

        async def greet(bot: BotClient, chat: int):
            try:
                await bot.call("sendMessage", chat_id=chat, text="Hello!")
            except BotApiError as error:
                print(error.method, error.code, error.description)
    """

    def __init__(
        self,
        method: str,
        code: int | None,
        description: str,
        *,
        retry_after: float | None = None,
        migrate_to_chat_id: int | None = None,
    ) -> None:
        #: The name of the called method.
        self.method: str = method
        #: The error code of the Bot API, ``None`` if there was no answer.
        self.code: int | None = code
        #: The description in the answer, or the reason for having none.
        self.description: str = description
        #: Seconds until Telegram accepts calls again, where it says so.
        self.retry_after: float | None = retry_after
        #: The new id of a group that became a supergroup.
        self.migrate_to_chat_id: int | None = migrate_to_chat_id
        super().__init__(self._message())

    def _message(self) -> str:
        if self.code == 401 or (self.code == 404 and self.method == "getMe"):
            return (
                f"{self.method} was refused: the token is not valid ({self.code} {self.description}); "
                "copy the token of the bot from @BotFather again"
            )
        if self.migrate_to_chat_id is not None:
            return (
                f"{self.method} was refused: {self.code} {self.description}; "
                f"use the new chat id {self.migrate_to_chat_id} from now on"
            )
        return f"{self.method} was refused: {self._answer}"

    @property
    def _answer(self) -> str:
        return self.description if self.code is None else f"{self.code} {self.description}"


class BotBlocked(BotApiError):
    """The bot cannot write to this chat: it was blocked or removed, or the user's account is deleted.

    Example::

        async def greet(bot: BotClient, chat: int):
            try:
                await bot.call("sendMessage", chat_id=chat, text="Hello!")
            except BotBlocked:
                await fsm.forget(chat=chat)
    """


class BotUnavailable(BotApiError, ConnectionError):
    """The Bot API gave no usable answer within the patience of the client. The call may be retried later.

    Example::

        async def greet(bot: BotClient, chat: int):
            try:
                await bot.call("sendMessage", chat_id=chat, text="Hello!")
            except BotUnavailable:
                print("Telegram does not answer; try again later")
    """

    def _message(self) -> str:
        later = "later" if self.retry_after is None else f"in {self.retry_after:g} s"
        return f"{self.method} was not accepted: {self._answer}; try it again {later}"
