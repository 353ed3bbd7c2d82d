"""A message of a person, as a turn gets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from stepwell.fsm import Update, keys
from stepwell.fsm.engine import Peer, as_plain
from stepwell.turns.record import is_web

__all__ = ["Message", "WebUpdate", "is_message", "web_update"]

#: The kinds of updates that are messages.
_KINDS: Final = ("message", "business_message")


class WebUpdate(Update):
    """A message or a press of a button on a page, in the form of an update of the Bot API; ``web_update`` makes it."""

    __slots__ = ()


def web_update(raw: Mapping[str, Any]) -> WebUpdate:
    """Return an update of a page. Its ids, and those of its user and chat, may be texts."""
    made, message = WebUpdate(dict(raw)), raw.get("message")
    event = raw["callback_query"] if message is None else message
    chat = (event["message"] if message is None else message)["chat"]
    made.update_id = cast(int, raw["update_id"])
    made.user, made.chat = Peer(event["from"]["id"], event["from"]), Peer(chat["id"], chat)
    # There are no other handlers on a page, so a text that begins with a slash is for the turns too.
    made.command = None
    return made


class Message:
    """A message of a person: ``text``, ``user``, ``chat``, and the update of the Bot API it came in.

    Example::

        @turns.handler
        async def answer(turn):
            for message in turn.messages:
                if photo := message.event.get("photo"):
                    turn.answer(f"a picture of {photo[-1]['width']} pixels")
    """

    __slots__ = ("at", "update")

    def __init__(self, update: Update, at: float) -> None:
        #: The update, as handlers of a Router get it.
        self.update: Update = update
        #: When it was taken, on the storage's clock, in seconds since 1970.
        self.at: float = at

    @classmethod
    def of(cls, raw: Any, at: float) -> Message:
        """Return a message for an update."""
        event = raw.get("message") if isinstance(raw, Mapping) else None
        if isinstance(event, dict) and isinstance(event.get("chat"), dict) and is_web(event["chat"].get("id")):
            return cls(web_update(raw), at)
        return cls(Update.of(raw), at)

    @property
    def event(self) -> Any:
        """The message as Bot API JSON."""
        return self.update.event

    @property
    def text(self) -> str:
        """The text, or the caption of a picture; empty if there is none."""
        return self.update.text or self._text("caption")

    @property
    def user(self) -> Peer | None:
        """Who has sent it."""
        return self.update.user

    @property
    def chat(self) -> Peer | None:
        """The chat that it was sent to."""
        return self.update.chat

    @property
    def message_id(self) -> int | None:
        """Its id in the chat."""
        return self.update.message_id

    @property
    def album(self) -> str | None:
        """What the pictures of one album have in common."""
        return self._text("media_group_id") or None

    @property
    def forwarded(self) -> bool:
        """Whether it was forwarded. Several forwarded messages arrive one after the other."""
        return self._field("forward_origin") is not None

    @property
    def where(self) -> keys.Where:
        """Where an answer goes."""
        return keys.answer_to(self.update)

    @property
    def stored(self) -> dict[str, Any]:
        """The message as values that can be stored."""
        raw = self.update.raw
        return {"update": dict(raw) if isinstance(raw, Mapping) else as_plain(raw), "at": self.at}

    def _field(self, name: str) -> Any:
        return _field(self.event, name)

    def _text(self, name: str) -> str:
        found = self._field(name)
        return found if isinstance(found, str) else ""

    def __repr__(self) -> str:
        return f"<Message {self.message_id}>"


def _field(event: Any, name: str) -> Any:
    return event.get(name) if isinstance(event, Mapping) else getattr(event, name, None)


def is_message(update: Update) -> bool:
    """Return whether an update is a message of a person that is no command: what turns take by default."""
    if update.kind not in _KINDS or update.user is None or update.command is not None:
        return False
    return update.user.is_bot is not True and update.has()
