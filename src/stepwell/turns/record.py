"""The record of a conversation: which turn runs, which messages wait, and the names of its parts.

All writers decide on the table that they have read, and are refused if another one was faster. The runner of a turn
holds the claim, and messages are admitted beside it without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from stepwell import Storage
from stepwell.engine import (
    KEEP,
    Address,
    Change,
    Head,
    Keep,
    OpenedHead,
    Place,
    Range,
    Seal,
    Stored,
    Struct,
    decoder,
    to_json,
)

__all__ = [
    "HANDLED",
    "MOST_HANDLED",
    "MOST_STOPS",
    "ROOM_TO_END",
    "WORKING_PARTS",
    "Answer",
    "CollectWindow",
    "OpenQuestion",
    "Running",
    "State",
    "StopReason",
    "TurnTable",
    "WaitingMessage",
    "change_of",
    "draft_id_of",
    "failed_part",
    "is_web",
    "kept_prefix",
    "live_prefix",
    "message_part",
    "question_part",
    "send_part",
    "table_of",
    "text_part",
    "tool_prefix",
    "transcript_part",
]

State: TypeAlias = Literal["collecting", "running", "asking", "idle"]
#: Why a turn is stopped: a person has said so, or a new message with the policy of that name.
StopReason: TypeAlias = Literal["stop", "interrupt", "rollback"]

#: The part with the ids of the updates of ended turns, and how many it has.
HANDLED: Final = "h"
MOST_HANDLED: Final = 1000
#: How many updates that said stop are known.
MOST_STOPS: Final = 10
#: How much larger than its limit a record may become by messages, and by writes under the claim: a conversation whose
#: history is full still takes messages, and ends its turns. In items of the largest size.
ROOM: Final = 4
ROOM_TO_END: Final = 16
#: All parts but the entries of the history, whose names begin with a digit.
WORKING_PARTS: Final = Range("a")


class WaitingMessage(Struct, frozen=True, array_like=True, gc=False):
    """A message that waits for a turn, or belongs to the running one. Its content is a part."""

    seq: int
    #: The id of its update.
    id: int | str | None
    message_id: int | None
    #: The messages of one burst become one turn.
    burst: int
    #: Its size in bytes, and when it was admitted.
    size: int
    at: float
    album: str | None = None
    #: Others that belong to it are probably under way: the rest of its album or of a long text, forwarded messages.
    more: bool = False
    #: The failed turn that it belongs to, which is tried again with what its tools have returned.
    again: str | None = None
    #: The ids of the updates that have edited it.
    edits: tuple[int | str, ...] = ()

    @property
    def ids(self) -> tuple[int | str, ...]:
        """The ids of its updates."""
        return self.edits if self.id is None else (self.id, *self.edits)


class CollectWindow(Struct, frozen=True, array_like=True, gc=False):
    """The time in which messages are collected."""

    opened: float
    shut: float


class Answer(Struct, frozen=True, array_like=True, gc=False):
    """An answer to a question."""

    #: The option or the text; ``None``: nobody has answered in time.
    choice: str | None
    by: int | str | None
    #: Whose it is, for people.
    name: str
    at: float
    #: The id of the update that brought it, if it is a message.
    update: int | str | None = None


class OpenQuestion(Struct, frozen=True, array_like=True):
    """A question of the running turn. Its text is a part."""

    number: int
    digest: str
    options: tuple[str, ...]
    approvers: tuple[int | str, ...] | None
    #: It is answered by a message.
    reply: bool
    deadline: float | None
    answer: Answer | None = None


class Running(Struct, frozen=True):
    """The turn that runs, or waits for an answer."""

    id: str
    attempt: int
    messages: tuple[WaitingMessage, ...]
    started: float
    #: The token of the claim under which it runs.
    runner: str = ""
    #: When a worker must look after it.
    check: float | None = None
    #: It waits for answers, without a claim.
    asking: bool = False
    #: Its runner has left it to the next one, and the attempt goes on.
    paused: bool = False
    stop: StopReason | None = None
    #: A question was answered since the handler has last looked.
    answered: bool = False
    questions: tuple[OpenQuestion, ...] = ()
    #: The ids of the updates whose messages were answers.
    replies: tuple[int | str, ...] = ()
    #: The id of the message that shows its stream.
    shown: int | None = None
    #: How often its text was completed before another message, such as a question.
    cuts: int = 0
    #: What its requests to models have cost, by their ids, in billionths of a dollar.
    costs: Mapping[str, int] | None = None

    @property
    def cost(self) -> int:
        """What it has cost so far."""
        return sum((self.costs or {}).values())

    @property
    def ids(self) -> tuple[int | str, ...]:
        """The ids of the updates that belong to the turn."""
        return tuple(found for each in self.messages for found in each.ids) + self.replies


class TurnTable(Struct, frozen=True, omit_defaults=True):
    """The extension of the record of a conversation."""

    turn: Running | None = None
    window: CollectWindow | None = None
    waiting: tuple[WaitingMessage, ...] = ()
    #: The number of the next message, and of the next call to send.
    next: int = 1
    next_call: int = 1
    #: When to send calls again that could not be sent, and how often that has failed.
    send_at: float | None = None
    send_failures: int = 0
    #: The numbers of the calls that ``Turns.reply`` has added and that are not sent yet.
    added: tuple[int, ...] = ()
    #: The turns that have failed, oldest first.
    failed: tuple[str, ...] = ()
    #: Its turns are kept as pages show them, because one of its messages came from a page. How many were kept.
    transcribed: bool = False
    transcripts: int = 0
    #: The ids of the last updates that said stop, also those that stopped nothing.
    stops: tuple[int | str, ...] = ()
    #: The last write under a claim, which finds itself here if its answer was lost.
    write: str = ""

    @property
    def state(self) -> State:
        """The state in the head, by which lists find the record."""
        if self.turn is not None:
            return "asking" if self.turn.asking else "running"
        return "collecting" if self.waiting else "idle"

    @property
    def timers(self) -> dict[str, float]:
        """When a worker must look at the record."""
        timers = {}
        if self.turn is not None:
            if self.turn.check is not None:
                timers["turn"] = self.turn.check
        elif self.waiting:
            timers["window"] = self.waiting[0].at if self.window is None else self.window.shut
        if self.send_at is not None:
            timers["send"] = self.send_at
        return timers

    @property
    def ids(self) -> set[int | str]:
        """The ids of the updates that wait or belong to the running turn."""
        ids = () if self.turn is None else self.turn.ids
        return {*ids, *(found for each in self.waiting for found in each.ids)}


_decode_table = decoder(TurnTable)


def table_of(seal: Seal, stored: Stored | None) -> TurnTable:
    """Return the table of a record. Raises ``CorruptRecord``."""
    extension = "" if stored is None else seal.open_head(stored.head).extension
    table: TurnTable = _decode_table(extension) if extension else TurnTable()
    return table


def change_of(
    storage: Storage,
    address: Address,
    name: str,
    table: TurnTable,
    *,
    now: float,
    parts: Mapping[str, str | None],
    tags: tuple[str, ...] | Keep = KEEP,
    room: int = ROOM,
) -> Change:
    """Return the change that stores a table, and parts beside it. ``now``: the time on the backend's clock.

    ``room``: by how many items the record may become larger than its limit.
    """
    seal, timers = storage.seal(address), table.timers
    opened = OpenedHead(Place(name, table.state), timers, to_json(table).decode())
    head: Head = seal.head(opened)
    limit = seal.limit + room * storage.limits.item
    return storage.change(address, head=head, deadline=opened.next_timer(now), parts=parts, tags=tags, limit=limit)


def draft_id_of(turn: str) -> int:
    """Return the id of the draft that shows the stream of a turn."""
    return int(turn[:7], 16) + 1


def message_part(seq: int) -> str:
    """Return the name of the part with a message."""
    return f"i:{seq:016}"


def send_part(number: int) -> str:
    """Return the name of the part with a call that is not sent yet."""
    return f"s:{number:016}"


def question_part(turn: str, number: int) -> str:
    """Return the name of the part with the text of a question."""
    return f"q:{turn}:{number:04}"


def text_part(turn: str) -> str:
    """Return the name of the part with the text that a turn has written so far."""
    return f"w:{turn}"


def tool_prefix(turn: str) -> str:
    """Return the beginning of the names of the parts with the effects of a turn."""
    return f"o:{turn}:"


def kept_prefix(turn: str) -> str:
    """Return the beginning of the names of the parts with the values that a turn has kept."""
    return f"k:{turn}:"


def live_prefix(turn: str) -> str:
    """Return the beginning of the names of the parts with what a running turn has shown so far."""
    return f"d:{turn}:"


def transcript_part(number: int) -> str:
    """Return the name of the part with what an ended turn has shown. It is in front of the working parts."""
    return f"T:{number:012}"


def is_web(chat: Any) -> bool:
    """Return whether the id of a chat is that of a page, to which nothing is sent: it reads the transcript."""
    return isinstance(chat, str) and chat.startswith("web:")


def failed_part(turn: str) -> str:
    """Return the name of the part with a failed turn."""
    return f"f:{turn}"
