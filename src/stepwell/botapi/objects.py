"""Chats, their topics and invite links; files and invoices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from stepwell.botapi.bots import Bot

__all__ = ["Draft", "Invite", "PendingInvoice", "Room", "StoredFile", "Topic"]


@dataclass(slots=True, eq=False)
class StoredFile:
    """A file that was uploaded, or named by its URL."""

    id: str
    #: ``photo``, ``document``, ``video`` and so on, or ``thumbnail``.
    kind: str
    name: str
    media_type: str
    content: bytes
    #: Its object in messages, such as Video; empty until it is sent.
    json: dict[str, Any]

    @property
    def base(self) -> dict[str, Any]:
        """The fields that the objects of all kinds of files have."""
        size = {"file_size": len(self.content)} if self.content else {}
        return {"file_id": self.id, "file_unique_id": self.id, **size}


@dataclass(slots=True, eq=False)
class PendingInvoice:
    """An invoice that users can pay."""

    #: The bot that gets the queries and the payment.
    bot: Bot
    #: The Invoice object.
    json: dict[str, Any]
    payload: str
    #: The parts of OrderInfo that the user must give.
    needs: tuple[str, ...] = ()
    #: Whether the bot gives shipping options for an address.
    is_flexible: bool = False
    max_tip: int = 0
    #: Seconds between two payments of a subscription; 0 for a single payment.
    subscription: int = 0


@dataclass(slots=True, eq=False)
class Invite:
    """An invite link."""

    #: The ChatInviteLink object.
    json: dict[str, Any]
    #: The number of users who joined with it.
    uses: int = 0
    #: The users who wait for an approval.
    requests: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Topic:
    """A topic of a forum."""

    id: int
    name: str
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """A message that a bot is still writing, as its user sees it in a private chat.

    Example::

        from stepwell.botapi import Draft

        draft = Draft(7, {"text": "Once upon"}, until=1_700_000_030.0, can_stop=True)
        assert draft.json()["draft_id"] == 7
    """

    id: int
    #: ``text`` and ``entities``, or ``rich_message``, as in a message.
    content: dict[str, Any]
    #: When it disappears, in seconds since 1970.
    until: float
    #: The topic, 0 for none.
    thread: int = 0
    #: Whether it has a Stop button.
    can_stop: bool = False
    #: Whether it stays in the chat when the button is pressed.
    keep_on_stop: bool = False

    def json(self) -> dict[str, Any]:
        """Return the draft as JSON, with the names of the parameters of ``sendMessageDraft``."""
        topic = {"message_thread_id": self.thread} if self.thread else {}
        flags = {"can_stop": self.can_stop, "keep_on_stop": self.keep_on_stop}
        return {"draft_id": self.id, **topic, **self.content, **flags}


@dataclass(slots=True, eq=False)
class Room:
    """A chat. The private chats of one user with two bots are two rooms with the same id."""

    #: The Chat object in every message.
    chat: dict[str, Any]
    #: User id to status: ``creator``, ``administrator``, ``member``, ``restricted``, ``left``, ``kicked``.
    members: dict[int, str] = field(default_factory=dict, repr=False)
    #: By id, oldest first.
    messages: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)
    topics: dict[int, Topic] = field(default_factory=dict, repr=False)
    #: User id to further fields of the ChatMember object: rights, permissions, ``until_date``.
    details: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)
    #: The fields that only ``getChat`` returns: description, permissions, primary invite link.
    full: dict[str, Any] = field(default_factory=dict, repr=False)
    #: The votes in polls: message id to user id to the chosen options.
    votes: dict[int, dict[int, list[int]]] = field(default_factory=dict, repr=False)
    #: Message id to user or bot id to the ReactionType objects.
    reactions: dict[int, dict[int, list[dict[str, Any]]]] = field(default_factory=dict, repr=False)
    #: The ids of the pinned messages, the newest last.
    pins: list[int] = field(default_factory=list, repr=False)
    #: By link.
    invites: dict[str, Invite] = field(default_factory=dict, repr=False)
    #: By the id of their message.
    invoices: dict[int, PendingInvoice] = field(default_factory=dict, repr=False)
    #: What bots are writing, by topic; 0 for none.
    drafts: dict[int, Draft] = field(default_factory=dict, repr=False)
    #: The current reply keyboard.
    keyboard: dict[str, Any] | None = field(default=None, repr=False)
    #: The id of the supergroup that this group was upgraded to.
    moved_to: int | None = None
    ids: Iterator[int] = field(default_factory=lambda: count(1), repr=False)

    @property
    def id(self) -> int:
        """The chat's id in the Bot API."""
        number: int = self.chat["id"]
        return number

    @property
    def type(self) -> str:
        """``private``, ``group``, ``supergroup`` or ``channel``."""
        kind: str = self.chat["type"]
        return kind
