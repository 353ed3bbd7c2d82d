"""A turn, as its handler sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from stepwell.codec.effects import Replay
from stepwell.errors import UsageError
from stepwell.fsm import BotMethods, keys
from stepwell.fsm.engine import Peer, check_parameters
from stepwell.options import check_instance
from stepwell.turns.base import AttemptBase
from stepwell.turns.history import History
from stepwell.turns.message import Message
from stepwell.turns.running.bot import TurnBot
from stepwell.turns.running.budget import Usage
from stepwell.turns.running.question import Decision
from stepwell.turns.running.stream import Stream

__all__ = ["Turn"]


class Turn:
    """The unit of a chat with an agent: the messages of a person, and all that happens until they are answered.

    A handler gets it. After a crash the handler runs again with the same messages, and the tools that have ended give
    their stored results.

    Example::

        @turns.handler
        async def answer(turn):
            if await turn.ask(f"Delete {turn.text}?", approvers=[42], timeout="24h"):
                await turn.tool(delete, turn.text, replay="never")
                turn.answer("Deleted.")
    """

    def __init__(self, attempt: AttemptBase, messages: list[Message], history: History) -> None:
        self._attempt = attempt
        #: The messages of the turn, oldest first, with those that ``steered()`` has returned.
        self.messages: list[Message] = messages
        #: The entries of the conversation; what is appended is stored with the end of the turn.
        self.history: History = history
        #: Set when the turn is to stop. The handler is cancelled at its next ``await``.
        self.stopped: asyncio.Event = asyncio.Event()

    @property
    def id(self) -> str:
        """A random id, the same for all attempts."""
        return self._attempt.turn_id

    @property
    def attempt(self) -> int:
        """1, or more if the process of an earlier attempt has died."""
        return self._attempt.number

    @property
    def conversation(self) -> Any:
        """The key of the conversation."""
        return self._attempt.conversation

    @property
    def text(self) -> str:
        """The texts of all messages, one below the other."""
        return "\n".join(message.text for message in self.messages if message.text)

    @property
    def chat(self) -> Peer | None:
        """The chat of the last message, where answers go."""
        return self.messages[-1].chat

    @property
    def user(self) -> Peer | None:
        """Who has sent the last message."""
        return self.messages[-1].user

    @property
    def bot_name(self) -> str:
        """The name of the bot, as the turns have it."""
        return self._attempt.record.bot

    @property
    def bot(self) -> Any:
        """The client of the bot, to call the Bot API at once. Raises ``UsageError`` if the worker has none.

        Before it sends a message to the chat of the turn, the text of a stream so far is sent as a message of its own.
        It is the same with aiogram and python-telegram-bot, whose own bot is its attribute ``native``.
        """
        client = self._attempt.client
        if client is None:
            raise UsageError("this worker has no client of a bot; give one: turns.worker(send=..., client=client)")
        return TurnBot(client, self._attempt) if isinstance(client, BotMethods) else client

    def answer(self, text: str, **params: Any) -> None:
        """Send a message to the chat with the end of the turn. Raises ``UsageError`` if the messages have no chat."""
        check_instance(text, str, "answer() takes a text, got {type}")
        self.call("sendMessage", **self.where, text=text, **params)

    def call(self, method: str, **params: Any) -> None:
        """Make a call of the Bot API with the end of the turn."""
        check_instance(method, str, "call() takes the name of a method of the Bot API, got {type}")
        check_parameters(method, params)
        self._attempt.output({"method": method, **params})

    @property
    def where(self) -> dict[str, Any]:
        """The chat, topic and business connection of the last message, as parameters of a call.

        Raises ``UsageError`` if the messages have no chat.
        """
        where = self.messages[-1].where
        if not where:
            raise UsageError(
                "the messages of this turn have no chat to answer in; use call('sendMessage', chat_id=...)"
            )
        return keys.params_of(where)

    @asynccontextmanager
    async def stream(self, **params: Any) -> AsyncIterator[Stream]:
        """Write an answer piece by piece: ``async with turn.stream() as out: out.write("...")``.

        ``params``: further parameters of the message, such as ``parse_mode``.
        """
        with self._attempt.busy():
            yield await self._attempt.new_stream(params)

    async def flush(self) -> None:
        """Send the text that was streamed so far as a message of its own, before another message to the chat.

        Questions and ``turn.bot`` do so by themselves. What is streamed later is a new message.
        """
        await self._attempt.flush()

    async def steered(self) -> list[Message]:
        """Return the messages that came meanwhile, with ``on_busy="steer"``, and make them part of this turn.

        Call it where the model can take a further message of the user: after all results of tools. What comes after
        the last call becomes the next turn.
        """
        return await self._attempt.steered()

    async def tool(self, function: Callable[..., Any], /, *args: Any, replay: Replay = "never", **kwargs: Any) -> Any:
        """Call a function that acts on the world, and return its result.

        The result is stored, and given again if the handler runs again. With ``replay="never"`` the intent is stored
        before: if the process dies in between, the next attempt raises ``UnknownOutcome`` and does not call it.
        ``replay="safe"``: it is called again.
        """
        return await self._attempt.call_tool(function, args, kwargs, replay=replay)

    async def call_tool(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        replay: Replay = "never",
        name: str | None = None,
        call_id: str | None = None,
        shown: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Call a function as ``tool`` does, for the adapter of an agent framework.

        ``name``: what it is called in lists and errors. ``call_id``: by what a later attempt finds the stored result,
        instead of by the position of the call. ``shown``: returns what pages show of a result.
        """
        return await self._attempt.call_tool(
            function, tuple(args), kwargs or {}, replay=replay, name=name, call_id=call_id, shown=shown
        )

    async def keep(self, value: Any) -> None:
        """Store a value for later attempts of this turn, which find it in ``kept``. It goes with the end of the turn.

        So a handler can continue where the process has died: ``await turn.keep(answer_of_the_model)``.
        """
        await self._attempt.keep(value)

    @property
    def kept(self) -> list[Any]:
        """The values that this turn has kept, in this attempt and in earlier ones, oldest first."""
        return self._attempt.kept()

    async def spent(self, cost: float | Usage, *, id: str | None = None) -> None:  # noqa: A002 - as elsewhere
        """Count what a request to a model has cost, in dollars or as a ``Usage``; without a budget it does nothing.

        It is stored at once, so that a crash does not lose it. If the turn has used up the budget, and more than was
        reserved for it, the next call stops it: call ``spent(0)`` before further requests. ``id``: a cost with the same
        id counts once, also in a later attempt.
        """
        await self._attempt.spent(cost, id=id)

    async def ask(
        self,
        text: str,
        *,
        options: Sequence[str] = ("Yes", "No"),
        approvers: Iterable[int | str] | None = None,
        timeout: float | timedelta | str | None = None,
        about: Any = None,
        reply: bool = False,
        **params: Any,
    ) -> Decision:
        """Ask in the chat, and wait for the answer, which is true for the first option.

        The question is stored, so that it survives a restart; meanwhile no claim is held. ``approvers``: the ids of
        those who may answer; without it everybody in the chat. ``timeout``: seconds, or a text such as ``"24h"``, after
        which the decision is false. ``about``: what is to be approved; a later attempt that asks about something else
        asks anew. ``reply``: answered by a message instead of a button.
        """
        decision: Decision = await self._attempt.ask(
            text, options=options, approvers=approvers, timeout=timeout, about=about, reply=reply, params=params
        )
        return decision

    def __repr__(self) -> str:
        return f"<Turn {self.id} of {self.conversation!r}, attempt {self.attempt}>"
