"""Conversations with an agent, as an operator sees them: their turns, messages, questions and failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, get_args

from stepwell import Storage
from stepwell.engine import (
    TURNS,
    Address,
    Get,
    Query,
    Stored,
    decode_key,
    displayed,
    encode_key,
    log_tag,
    masked_text,
    quoted,
    to_json,
)
from stepwell.errors import StepwellError, StoredDataError
from stepwell.operate.audit import ChangedThing, record_change
from stepwell.operate.record import keys_of
from stepwell.operate.runs import shown_value
from stepwell.operate.search import pages
from stepwell.turns import Decided, FailedTurn, Message, Turns, TurnStatus
from stepwell.turns.engine import WORKING_PARTS, State, status_of

__all__ = [
    "STATES",
    "ConversationView",
    "ListedConversation",
    "NoConversation",
    "decide",
    "drop",
    "last_entries",
    "listed_conversations",
    "reply",
    "retry",
    "show_conversation",
    "stop",
]

#: How many characters of an entry of a history are shown.
LONGEST: Final = 10_000
#: The states of a conversation.
STATES: Final[tuple[str, ...]] = get_args(State)


class NoConversation(StepwellError, LookupError):
    """The storage has no such conversation of turns."""

    def __init__(self, bot: str, key: str) -> None:
        self.bot: str = bot
        self.key: str = key
        super().__init__(
            f"bot {quoted(bot)} has no turns in the conversation {displayed(key)}; stepwell turns lists those it has"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationView:
    """One conversation."""

    bot: str
    #: The conversation as text, such as ``(42,0)``.
    key: str
    #: The name of its ``Turns``.
    name: str
    address: Address
    written_at: float
    #: ``None`` if it cannot be read.
    status: TurnStatus | None
    damage: str | None = None
    #: The ids of its chats.
    chats: tuple[str, ...] = ()

    @property
    def since(self) -> float | None:
        """When its turn has begun, or when the oldest message was taken that waits."""
        status = self.status
        if status is None:
            return None
        return status.started if status.waiting == () or status.started is not None else status.waiting[0].at

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON, with secrets in texts masked."""
        about = {"bot": self.bot, "conversation": self.key, "name": self.name, "written_at": self.written_at}
        status = self.status
        if status is None:
            return {**about, "damage": self.damage}
        return {
            **about,
            "state": status.state,
            "turn": status.turn,
            "attempt": status.attempt,
            "started": status.started,
            "stopping": status.stopping,
            "spent": status.spent,
            "messages": [_message(each) for each in status.messages],
            "waiting": [_message(each) for each in status.waiting],
            "shuts_at": status.shuts_at,
            "questions": [{**asdict(each), "text": masked_text(each.text)} for each in status.questions],
            "tools": [asdict(each) for each in status.tools],
            "text": masked_text(status.text),
            "unsent": status.unsent,
            "send_at": status.send_at,
            "failed": [
                {**asdict(each), "error": masked_text(each.error), "texts": [*map(masked_text, each.texts)]}
                for each in status.failed
            ],
        }


class ListedConversation(NamedTuple):
    """One conversation of a list."""

    conversation: ConversationView
    #: How many were read so far, with those that do not match.
    looked: int


async def listed_conversations(
    storage: Storage,
    bot: str | None = None,
    *,
    state: str | None = None,
    failed: bool = False,
    after: str | None = None,
    on_look: Callable[[int], None] | None = None,
    on_page: Callable[[str], None] | None = None,
) -> AsyncIterator[ListedConversation]:
    """Yield the conversations of a bot or of all, those in a state, or those with failed turns.

    A state is found by an index, and failed turns of one bot too. ``after``: the key of the record of a conversation,
    as text; the list continues behind it. ``on_look`` is called with the number of records read, after each page;
    before that, ``on_page`` is called with the key of the last one.
    """
    options: dict[str, Any] = {} if state is None else {"state": state}
    query = Query(TURNS, tag=log_tag(bot, "failed") if failed and bot is not None else None, **options)
    looked = 0
    async for page in pages(storage, query, after):
        for address, stored in page:
            looked += 1
            of_bot = decode_key(address.key)[0]
            if bot not in (None, of_bot) or (failed and log_tag(of_bot, "failed") not in stored.tags):
                continue
            found = await _view(storage, address)
            if found is None or (state is not None and (found.status is None or found.status.state != state)):
                continue
            if not failed or (found.status is not None and found.status.failed):
                yield ListedConversation(found, looked)
        if on_page is not None and page:
            on_page(page[-1][0].key)
        if on_look is not None:
            on_look(looked)


async def show_conversation(storage: Storage, bot: str, key: str) -> ConversationView:
    """Return one conversation, given as people write it: ``42`` is a private chat, ``-100,7`` a topic.

    Raises ``NoConversation``.
    """
    keys = keys_of(key)
    if any(type(each) is int for each in keys):
        number = next(each for each in keys if type(each) is int)
        keys.insert(0, (number, 0))
    for each in keys:
        found = await _view(storage, storage.address(TURNS, (bot, each)))
        if found is not None:
            return found
    raise NoConversation(bot, key)


async def last_entries(storage: Storage, view: ConversationView, count: int) -> list[tuple[int, str | None, str]]:
    """Return the last entries of the history, the newest first: number, role if there is one, and masked text.

    Entries that cannot be read are left out.
    """
    found: list[tuple[int, str | None, str]] = []
    with suppress(StoredDataError):
        for entry in await _turns_of(storage, view).history(_conversation(view)).entries(last=count):
            value = entry.value
            plain = isinstance(value, dict) and isinstance(value.get("content"), str)
            text = value["content"] if plain else to_json(shown_value(value)).decode()
            role = value.get("role") if plain else None
            found.append((entry.number, role if isinstance(role, str) else None, masked_text(text[:LONGEST])))
    return found[::-1]


async def stop(storage: Storage, view: ConversationView, *, who: str) -> bool:
    """Stop the turn that was shown; ``False`` if it has ended."""
    turn = None if view.status is None else view.status.turn
    if turn is None or not await _turns_of(storage, view).stop(_conversation(view), turn=turn):
        return False
    await _record(storage, view, who, f"stopped the turn {turn} of {view.bot} {view.key}")
    return True


async def decide(
    storage: Storage, view: ConversationView, choice: str, *, question: int | None, by: int | str | None, who: str
) -> Decided:
    """Answer a question of the turn that was shown."""
    turn = None if view.status is None else view.status.turn
    decided = await _turns_of(storage, view).decide(
        _conversation(view), choice, by=by, name=who, question=question, turn=turn
    )
    if decided:
        after = {"answer": choice, **({} if by is None else {"in the name of": by})}
        await _record(storage, view, who, f"answered a question of {view.bot} {view.key}", after)
    return decided


async def reply(storage: Storage, view: ConversationView, text: str, *, who: str) -> None:
    """Store a message to the chat of a conversation; a worker sends it, after the calls that are not sent yet."""
    await _turns_of(storage, view).reply(_conversation(view), text)
    await _record(storage, view, who, f"replied in {view.bot} {view.key}", {"text": text})


async def retry(storage: Storage, view: ConversationView, failed: FailedTurn, *, who: str) -> bool:
    """Let the messages of a failed turn wait for a turn again; ``False`` if somebody has done so or dropped it."""
    done = await _turns_of(storage, view).retry(failed.id)
    if done:
        await _record(storage, view, who, f"retried the failed turn {failed.id} of {view.bot} {view.key}")
    return done


async def drop(storage: Storage, view: ConversationView, failed: FailedTurn, *, who: str) -> bool:
    """Remove a failed turn with its messages; ``False`` if it is gone."""
    done = await _turns_of(storage, view).drop(failed.id)
    if done:
        before = {"error": failed.error, "messages": list(failed.texts)}
        what = f"dropped the failed turn {failed.id} of {view.bot} {view.key}"
        await _record(storage, view, who, what, before=before)
    return done


async def _record(
    storage: Storage,
    view: ConversationView,
    who: str,
    what: str,
    after: dict[str, Any] | None = None,
    *,
    before: dict[str, Any] | None = None,
) -> None:
    stored: Stored | None = await storage.perform(Get(view.address))
    subject = ChangedThing("turn", view.bot, view.key, () if stored is None else stored.tags)
    await record_change(storage, who, what, subject, before=before, after=after)


async def _view(storage: Storage, address: Address) -> ConversationView | None:
    stored: Stored | None = await storage.perform(Get(address, WORKING_PARTS))
    if stored is None:
        return None
    bot, conversation = decode_key(address.key)
    status, damage, name = None, None, ""
    try:
        name = storage.seal(address).open_head(stored.head).place.flow or ""
        status = status_of(storage, address, stored)
    except StoredDataError as error:
        damage = str(error)
    return ConversationView(
        bot=bot, key=encode_key(conversation), name=name, address=address,
        written_at=stored.written_at, status=status, damage=damage,
        chats=tuple(tag[5:].partition(" ")[0] for tag in stored.tags if tag.startswith("chat:")),
    )  # fmt: skip


def _turns_of(storage: Storage, view: ConversationView) -> Turns:
    """Return turns without a handler, which read and write the records of those of the bot."""
    return Turns(view.bot, storage=storage, name=view.name)


def _conversation(view: ConversationView) -> Any:
    return decode_key(view.address.key)[1]


def _message(message: Message) -> dict[str, Any]:
    user = message.user
    return {"text": masked_text(message.text), "user": None if user is None else user.id, "at": message.at}
