"""Broadcasts: one message to many chats, as a durable run of a node flow."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from stepwell._secrets import quoted
from stepwell.errors import BotApiError, BotBlocked, BotUnavailable, InvalidOption, UnknownRun, UsageError
from stepwell.fsm import BotMethods
from stepwell.nodes import BatchNode, Event, NodeFlow
from stepwell.options import check, check_text
from stepwell.storage import Storage
from stepwell.storage.state_storage import StateStorage
from stepwell.telegram.sending.limits import ChatId
from stepwell.texts import fit, make_call

__all__ = ["BroadcastResult", "broadcast", "cancel_broadcast"]

#: A text, or a call without its ``chat_id``: ``{"method": "sendPhoto", "photo": file_id}``.
Content: TypeAlias = str | Mapping[str, Any]
#: The same for every chat, or a function of the chat. It may be a coroutine function.
ContentOf: TypeAlias = Content | Callable[[ChatId], Content | Awaitable[Content]]
#: Gets the number of finished chats and the number of all.
OnProgress: TypeAlias = Callable[[int, int], Any]

#: Seconds for which the result of a finished broadcast is kept: 30 days.
KEEP_RESULT = 30 * 24 * 3600
#: Codes of refusals that have nothing to do with the chat: an invalid token, an unknown method.
_FOR_ALL_CHATS = (401, 404)


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastResult:
    """The numbers of a finished broadcast.

    Example::

        async with BotClient(find_token()) as bot:
            result: BroadcastResult = await broadcast(bot, [42, 43], "Hello!", flow_id="news-7", storage=storage)
            print(result.sent, "got it,", result.blocked, "have blocked the bot")
    """

    sent: int
    #: Chats that the bot cannot write to any more.
    blocked: int
    #: Chats whose message was refused for another reason.
    failed: int
    blocked_chats: tuple[ChatId, ...]
    #: The description of each failure, by chat.
    errors: Mapping[ChatId, str]


async def broadcast(
    client: BotMethods,
    chats: Iterable[ChatId] | None,
    text_or_call: ContentOf,
    *,
    storage: Storage | str,
    flow_id: str,
    concurrency: int = 10,
    on_progress: OnProgress | None = None,
    keep: float = KEEP_RESULT,
) -> BroadcastResult:
    """Send a message to many chats at the rate of the client, and return how many got it::

        result = await broadcast(client, chats, "We are back!", storage="sqlite:///bot.db", flow_id="news-7")

    ``text_or_call`` is a text, a call without its ``chat_id``, or a function that gets the chat and returns one of
    them. Chats that are listed twice get one message.

    The broadcast is a durable run. If the process is killed or the task is cancelled, the same call resumes it: chats
    whose message was sent get no second one, except for the last few. A finished broadcast is not sent again: the call
    returns its result. ``chats=None`` resumes with the stored list.

    :param client: a ``BotClient``, or the client of a bot that runs: ``ctx.bot``.
    :param flow_id: the id of this broadcast. Another message needs another id.
    :param concurrency: how many calls are at the client at once. The answers of a bot that uses the same client wait
        behind them.
    :param on_progress: called with the numbers of finished and of all chats, after each chat.
    :param keep: for how many seconds the result stays in the storage.

    Raises ``UsageError`` if the id belongs to a broadcast with other chats or another message, ``RunBusy`` if it is
    running elsewhere, and ``BotUnavailable`` if Telegram is unavailable for longer than the patience of the client.
    ``BotApiError`` is raised only for refusals that concern all chats, such as an invalid token. After any of these
    errors, the same call resumes the broadcast.
    """
    # Without an id, the same call would send the broadcast again.
    check_text(flow_id, "broadcast(flow_id=...) takes the id of the broadcast, a text such as 'news-7', got {}")
    listed = None if chats is None else _checked_chats(chats)
    identity = {
        "chats": None if listed is None else _digest(sorted(map(str, listed))),
        "message": None if callable(text_or_call) else _digest(_call_to(0, text_or_call)),
    }
    check = _Check(flow_id, identity)
    flow = NodeFlow(_Send(client, listed, text_or_call, check, concurrency), name="broadcast", keep=keep)

    def on_event(event: Event) -> None:
        if event.kind == "node.progress" and on_progress is not None:
            on_progress(event.done or 0, event.total or 0)

    watching = None if on_progress is None else on_event
    if listed is None:
        try:
            shared = await flow.resume(flow_id, storage=storage, on_event=watching)
        except UnknownRun:
            raise UsageError(
                f"there is no broadcast {quoted(flow_id)} in this storage; give its chats to start it"
            ) from None
    else:
        shared = await flow.run(
            {"broadcast": identity},
            storage=storage,
            flow_id=flow_id,
            params={"broadcast": identity},
            if_exists="resume",
            on_event=watching,
        )
    check(shared.get("broadcast"))
    blocked, failed = shared["blocked"], shared["failed"]
    return BroadcastResult(
        sent=shared["sent"],
        blocked=len(blocked),
        failed=len(failed),
        blocked_chats=tuple(blocked),
        errors=dict(failed),
    )


async def cancel_broadcast(flow_id: str, *, storage: Storage | str) -> None:
    """Give up a broadcast for good: remove its run, with its list of chats and its result.

    If it is running, in this process or in another one, it stops with ``RecordReplaced`` after the next few messages.

    Example::

        await cancel_broadcast("news-7", storage="sqlite:///bot.db")
    """
    states = StateStorage(storage)
    try:
        await states.cleanup(flow_id)
    finally:
        if isinstance(storage, str):
            await states.storage.close()


class _Send(BatchNode[ChatId, list[str] | None]):
    """Sends to each chat. The result is ``None``, or the kind and the description of a refusal."""

    def __init__(
        self, client: BotMethods, chats: list[ChatId] | None, content: ContentOf, check: _Check, concurrency: int
    ) -> None:
        super().__init__(name="send", concurrency=concurrency)
        self.client = client
        self.chats = chats
        self.content = content
        self.check = check

    def prep(self, shared: dict[str, Any]) -> list[ChatId]:
        self.check(shared.get("broadcast"))
        if self.chats is None:
            raise UsageError(
                f"broadcast {quoted(self.check.flow_id)} ended before its list of chats was stored, and no "
                "message was sent; "
                "give its chats again"
            )
        return self.chats

    async def exec(self, chat: ChatId) -> list[str] | None:
        # A resumed run has the params that it was started with.
        self.check(self.params.get("broadcast"))
        content = self.content
        if callable(content):
            made = content(chat)
            content = await made if inspect.isawaitable(made) else made
        try:
            for call in fit([_call_to(chat, content)]):
                await make_call(self.client.call, call)
        except BotUnavailable:
            raise
        except BotBlocked as error:
            return ["blocked", error.description]
        except BotApiError as error:
            if error.code in _FOR_ALL_CHATS:
                raise
            return ["failed", error.description]
        return None

    def post(self, shared: dict[str, Any], chats: list[ChatId], results: list[list[str] | None]) -> None:
        refused = [(chat, *result) for chat, result in zip(chats, results, strict=True) if result is not None]
        shared["sent"] = len(chats) - len(refused)
        shared["blocked"] = [chat for chat, kind, _ in refused if kind == "blocked"]
        shared["failed"] = [[chat, description] for chat, kind, description in refused if kind == "failed"]


@dataclass(frozen=True, slots=True)
class _Check:
    """Compares the stored chats and message of a run with those of this call; ``None`` is not compared."""

    flow_id: str
    identity: Mapping[str, str | None]

    def __call__(self, stored: Any) -> None:
        if not isinstance(stored, Mapping):
            raise UsageError(f"run {quoted(self.flow_id)} is not a broadcast; give the broadcast another flow_id")
        for what, mine in self.identity.items():
            if None not in (mine, stored[what]) and mine != stored[what]:
                hint = "; chats=None resumes it with its stored list" if what == "chats" else ""
                raise UsageError(
                    f"broadcast {quoted(self.flow_id)} was started with {_OTHER[what]}{hint}. Give a new "
                    "broadcast another "
                    "flow_id, or remove the old one with cancel_broadcast()"
                )


_OTHER = {"chats": "another list of chats", "message": "another message"}


def _call_to(chat: ChatId, content: object) -> dict[str, Any]:
    """Return the call that sends to a chat."""
    if isinstance(content, str) and content:
        return {"method": "sendMessage", "chat_id": chat, "text": content}
    if isinstance(content, Mapping) and isinstance(content.get("method"), str):
        return {**content, "chat_id": chat}
    raise InvalidOption(
        'a broadcast takes a text, a call such as {"method": "sendMessage", "text": "Hello"}, or a function of the '
        f"chat that returns one of them, not {quoted(content)}"
    )


def _checked_chats(chats: Iterable[ChatId]) -> list[ChatId]:
    if isinstance(chats, str | bytes) or not isinstance(chats, Iterable):
        raise InvalidOption(f"broadcast() takes a list of chats, not {quoted(chats)}")
    listed = list(dict.fromkeys(chats))
    for chat in listed:
        check(
            type(chat) is int or (isinstance(chat, str) and chat),
            "{} is not a chat; a chat is its number, or the @name of a group or channel",
            chat,
        )
    return listed


def _digest(value: object) -> str:
    # Files have no JSON; two calls that differ only in a file are not distinguished.
    text = json.dumps(value, sort_keys=True, default=lambda other: type(other).__name__)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
