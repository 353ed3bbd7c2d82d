"""A group of events: an update, a timer or an edit, and what followed from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stepwell.web.display import as_json

__all__ = ["EventGroup", "GroupEvent", "label_of"]


@dataclass(slots=True, eq=False)
class GroupEvent:
    """An event of a group: a write, a Bot API call, an error, a timer or a note."""

    #: ``record``, ``call``, ``error``, ``timer`` or ``note``.
    kind: str
    title: str
    at: float
    json: dict[str, Any] | None = None
    failed: bool = False
    #: The record before the write, as a snapshot; ``None`` if it is not known. It is not sent to the page.
    before: dict[str, Any] | None = None
    #: The number of calls that it stands for. Of a draft, only the last state is kept.
    times: int = 1


@dataclass(slots=True, eq=False)
class EventGroup:
    """An update to the bot, a timer, a job, an edit or a note, with all that followed from it."""

    n: int
    #: ``update``, ``timer``, ``job`` (a write without an update), ``edit`` (on the page), ``call`` (before the first
    #: update) or ``note``.
    kind: str
    title: str
    #: When it was delivered, in seconds since 1970.
    at: float
    #: The user and the chat; ``None`` if not known.
    user: int | None = None
    chat: int | None = None
    who: str = ""
    update: dict[str, Any] | None = None
    #: The JSON of a call.
    about: dict[str, Any] | None = None
    #: The update was delivered before.
    again: bool = False
    #: The call was refused.
    failed: bool = False
    #: The machine and the key of the conversation.
    bot: str | None = None
    key: str | None = None
    #: The flow and the state that timed out.
    flow: str | None = None
    state: str | None = None
    #: When the bot began to handle it.
    started: float | None = None
    #: The machine has handled this update before.
    duplicate: bool = False
    events: list[GroupEvent] = field(default_factory=list)

    @property
    def begin(self) -> float:
        """When it was handled, or delivered if the bot does not report it."""
        return self.at if self.started is None else self.started

    @property
    def end(self) -> float:
        """The time of its last event."""
        return max([self.begin, *[event.at for event in self.events]])

    @property
    def thread(self) -> int | None:
        """The topic of its update."""
        message = next((each for each in self._parts() if each.get("is_topic_message")), {})
        thread: int | None = message.get("message_thread_id")
        return thread

    @property
    def error(self) -> str | None:
        """The error that ended it; ``None`` if it did not fail, or if an error handler has answered."""
        last = self._sorted()[-1:]
        return last[0].title if last and last[0].kind == "error" else None

    @property
    def before(self) -> dict[str, Any] | None:
        """The snapshot of the record before its first write; ``None`` if it wrote nothing, or if it is not known."""
        return next((event.before for event in self._sorted() if event.kind == "record"), None)

    @property
    def writes(self) -> bool:
        """Whether it wrote a record."""
        return any(event.kind == "record" for event in self.events)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Its Bot API calls, each with its parameters and its answer, oldest first."""
        return [event.json for event in self._sorted() if event.kind == "call" and event.json is not None]

    @property
    def own_calls(self) -> list[dict[str, Any]]:
        """Its calls without those that a bot has repeated because it was killed before it could confirm the update."""
        if not self.duplicate or self.again:
            return self.calls
        kept: list[dict[str, Any]] = []
        for call in self.calls:
            if not any({**call, "answer": None} == {**each, "answer": None} for each in kept):
                kept.append(call)
        return kept

    def json(self) -> dict[str, Any]:
        """Return the group for the page."""
        return {
            "n": self.n,
            "kind": self.kind,
            "title": self.title,
            "at": self.at,
            "user": self.user,
            "who": self.who,
            "key": self.key,
            "duration": self.end - self.begin if self.events else None,
            "again": self.again,
            "duplicate": ("answered" if self.calls else "silent") if self.duplicate else None,
            "failed": self.failed or any(event.failed for event in self.events),
            "update_id": None if self.update is None else self.update["update_id"],
            "json": as_json(self.update or self.about),
            "events": [
                {
                    "kind": event.kind,
                    "title": event.title,
                    "at": event.at,
                    "json": as_json(event.json),
                    "failed": event.failed,
                }
                for event in self._sorted()
            ],
        }

    def _sorted(self) -> list[GroupEvent]:
        return sorted(self.events, key=lambda event: event.at)

    def _parts(self) -> list[dict[str, Any]]:
        """Return the message of its update, and the message with the pressed button."""
        events = [each for each in (self.update or {}).values() if isinstance(each, dict)]
        return [*events, *[each["message"] for each in events if isinstance(each.get("message"), dict)]]


def label_of(query: dict[str, Any]) -> str | None:
    """Return the text of the button that a callback query is from, if its message shows that."""
    rows = (query.get("message") or {}).get("reply_markup", {}).get("inline_keyboard", [])
    return next((each["text"] for row in rows for each in row if each.get("callback_data") == query["data"]), None)
