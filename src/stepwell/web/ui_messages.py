"""Conversations as messages of the AI SDK 6, and the chunks of its UI message stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from stepwell.engine import masked_text
from stepwell.web.display import as_json

__all__ = ["APPROVED", "Diverged", "StreamedMessage", "answer_id", "open_questions", "ui_messages"]

UiMessage = dict[str, Any]
Part = dict[str, Any]
#: The state of a question that waits for an answer, and the one that a page sets when it was answered there.
ASKED, APPROVED = "approval-requested", "approval-responded"
#: A call of a tool has one of these states at a time, in this order.
_ORDER: Final = {"input-available": 0, ASKED: 1, APPROVED: 2}
_LAST: Final = 3
_UNKNOWN = "The outcome is unknown: the process ended during this call."
#: The characters of the digest of a question that name it, as in the data of a button.
_MARK = 8


def ui_messages(turn: str, messages: Iterable[Mapping[str, Any]], *, ended: bool, tools: bool) -> list[UiMessage]:
    """Return the messages of a turn. ``tools``: also its calls of tools."""
    found: list[UiMessage] = []
    answers = 0
    for place, message in enumerate(messages):
        if "user" in message:
            number, role = message["user"] or f"{turn}.u{place}", "user"
            parts: list[Part] = [{"type": "text", "text": message["text"]}]
            about = {"at": message["at"], "name": message["name"]}
        else:
            number, role, about = answer_id(turn, answers), "assistant", {}
            answers += 1
            shown = (each for each in message["parts"] if tools or "tool" not in each)
            parts = [_part(turn, each, ended=ended) for each in shown]
        found.append({"id": number, "role": role, "metadata": about, "parts": parts})
    return found


def answer_id(turn: str, place: int) -> str:
    """Return the id of a message of the bot. A turn has several if people have written while it ran."""
    return f"{turn}.{place}" if place else turn


def _part(turn: str, part: Mapping[str, Any], *, ended: bool) -> Part:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    if "tool" in part:
        return _tool(part, ended=ended)
    if "ask" in part:
        return _question(turn, part)
    return {"type": "data-call", "data": {"method": part["call"], "params": as_json(part["params"])}}


def _tool(part: Mapping[str, Any], *, ended: bool) -> Part:
    # The name of a function in another one has dots.
    name = part["tool"].rpartition(".")[2]
    shown: Part = {
        "type": f"tool-{name}", "toolCallId": part["id"], "state": "input-available", "input": as_json(part["input"]),
        "providerExecuted": True,
    }  # fmt: skip
    outcome, value = part.get("outcome"), part.get("value")
    if outcome == "returned":
        return shown | {"state": "output-available", "output": as_json(value)}
    if outcome == "raised":
        named = ": ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        return shown | {"state": "output-error", "errorText": masked_text(named)[:1000]}
    if outcome == "unknown" or ended:
        return shown | {"state": "output-error", "errorText": _UNKNOWN}
    return shown


def _question(turn: str, part: Mapping[str, Any]) -> Part:
    mark, options, choice = part["mark"][:_MARK], part["options"], part["choice"]
    approval: dict[str, Any] = {"id": f"{turn}:{part['ask']}:{mark}"}
    shown: Part = {
        "type": "tool-ask", "toolCallId": f"{turn}:ask{part['ask']}", "providerExecuted": True,
        "input": {"question": part["question"], "options": options, "reply": part["reply"]},
    }  # fmt: skip
    if part["open"]:
        # A reply is a message, not an approval.
        state = "input-available" if part["reply"] else ASKED
        return shown | {"state": state} | ({} if part["reply"] else {"approval": approval})
    denied = choice is None or (len(options) == 2 and choice == options[1])
    shown["approval"] = approval | {"approved": not denied}
    shown |= {"choice": choice, "by": part["name"]}
    return shown | ({"state": "output-denied"} if denied else {"state": "output-available", "output": choice})


def open_questions(message: UiMessage) -> list[Part]:
    """Return the questions in a message that wait for an answer."""
    asked = (part for part in message["parts"] if ":ask" in part.get("toolCallId", ""))
    return [part for part in asked if part["state"] in (ASKED, "input-available")]


class Diverged(Exception):
    """A message is no longer what a page has of it, with more at its end."""


class StreamedMessage:
    """A message that a page has, and the chunks that bring it up to date.

    An attempt that runs again after a crash writes its text from the start: until it is longer than what the page has,
    there are no chunks.
    """

    def __init__(self, message_id: str, parts: Sequence[Part] = ()) -> None:
        self.id: str = message_id
        self._parts = [dict(part) for part in parts]
        #: The text that this stream has begun and not ended.
        self._open: int | None = None

    def start(self) -> dict[str, Any]:
        """Return the first chunk."""
        return {"type": "start", "messageId": self.id}

    def chunks(self, parts: Sequence[Part], *, complete: bool) -> list[dict[str, Any]]:
        """Return the chunks that bring the page up to date. Raises ``Diverged`` if none can."""
        found: list[dict[str, Any]] = []
        for place, part in enumerate(parts):
            if place == len(self._parts):
                self._close(found)
                self._begin(found, part)
            elif not self._continue(found, place, part, complete=complete):
                return found
        if complete:
            if len(parts) < len(self._parts):
                raise Diverged
            self._close(found)
        return found

    def _continue(self, found: list[dict[str, Any]], place: int, part: Part, *, complete: bool) -> bool:
        """Continue a part that the page has; ``False`` if the page has more of it."""
        known = self._parts[place]
        if known["type"] != part["type"] or known.get("toolCallId") != part.get("toolCallId"):
            raise Diverged
        if part["type"] == "text":
            behind = known["text"].startswith(part["text"]) and known["text"] != part["text"]
            if behind and not complete:
                return False
            if not part["text"].startswith(known["text"]):
                raise Diverged
            more = part["text"][len(known["text"]) :]
            if more:
                if self._open != place:
                    raise Diverged
                found.append({"type": "text-delta", "id": self._text_id(place), "delta": more})
                known["text"] = part["text"]
        elif part["type"].startswith("tool-"):
            if _rank(part) < _rank(known):
                if complete:
                    raise Diverged
                return False
            if _rank(part) > _rank(known):
                found.extend(_tool_chunks(part)[1:])
                self._parts[place] = dict(part)
        return True

    def _begin(self, found: list[dict[str, Any]], part: Part) -> None:
        place = len(self._parts)
        self._parts.append(dict(part))
        if part["type"] == "text":
            self._open, number = place, self._text_id(place)
            found.append({"type": "text-start", "id": number})
            if part["text"]:
                found.append({"type": "text-delta", "id": number, "delta": part["text"]})
        elif part["type"].startswith("tool-"):
            found.extend(_tool_chunks(part))
        else:
            found.append(part)

    def _close(self, found: list[dict[str, Any]]) -> None:
        if self._open is not None:
            found.append({"type": "text-end", "id": self._text_id(self._open)})
            self._open = None

    def _text_id(self, place: int) -> str:
        return f"{self.id}-{place}"


def _rank(part: Part) -> int:
    return _ORDER.get(str(part.get("state")), _LAST)


def _tool_chunks(part: Part) -> list[dict[str, Any]]:
    """Return the chunks of a call of a tool: its input first, then its state."""
    call = {"toolCallId": part["toolCallId"], "providerExecuted": True}
    chunks: list[dict[str, Any]] = [
        {"type": "tool-input-available", **call, "toolName": part["type"].removeprefix("tool-"), "input": part["input"]}
    ]
    state = part["state"]
    if state == ASKED:
        approval = {"approvalId": part["approval"]["id"], "toolCallId": part["toolCallId"]}
        chunks.append({"type": "tool-approval-request", **approval})
    elif state == "output-available":
        chunks.append({"type": "tool-output-available", **call, "output": part["output"]})
    elif state == "output-error":
        chunks.append({"type": "tool-output-error", **call, "errorText": part["errorText"]})
    elif state == "output-denied":
        chunks.append({"type": "tool-output-denied", "toolCallId": part["toolCallId"]})
    return chunks
