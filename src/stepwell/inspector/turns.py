"""Conversations with an agent: the list, one conversation with its turn, and what people do about it."""

from __future__ import annotations

from typing import Any, Final

from stepwell import Storage
from stepwell.engine import quoted
from stepwell.errors import UsageError
from stepwell.inspector import requests
from stepwell.inspector.flows import KnownFlows
from stepwell.inspector.records import places
from stepwell.inspector.requests import Action, Enough, Given, Params, View, chosen, limited, text
from stepwell.inspector.subject import Subject
from stepwell.operate import turns as operate
from stepwell.operate.turns import STATES, ConversationView, listed_conversations, show_conversation
from stepwell.turns import FailedTurn
from stepwell.web.display import as_json

__all__ = ["ACTIONS", "VIEWS"]

#: How many entries of the history are shown.
ENTRIES = 10


async def turns(subject: Subject, params: Params) -> dict[str, Any]:
    """Return a page of conversations: of a bot, in a state, or with failed turns."""
    state, bot = params.get("state") or None, params.get("bot") or None
    if state is not None and state not in STATES:
        raise UsageError(f"{quoted(state)} is not a state of a turn; choose one of {', '.join(STATES)}")
    page: dict[str, Any] = {"rows": [], "after": None, "looked": 0, "complete": True}
    rows = page["rows"]
    try:
        found = listed_conversations(
            subject.storage, bot, state=state, failed=params.get("failed") == "1",
            after=params.get("after") or None, on_look=limited(page), on_page=lambda key: page.update(after=key),
        )  # fmt: skip
        async for each in found:
            rows.append(_row(each.conversation))
            page["looked"] = each.looked
            if len(rows) == requests.PAGE:
                return page | {"after": each.conversation.address.key}
    except Enough:
        return page | {"complete": False}
    return page | {"after": None}


def _row(view: ConversationView) -> dict[str, Any]:
    shown = as_json(view.as_json())
    asked = [each["text"] for each in shown.get("questions", ()) if not each["answered"]]
    return {
        "bot": view.bot,
        "key": view.key,
        "name": view.name,
        "written_at": view.written_at,
        "state": shown.get("state", "unreadable"),
        "stopping": shown.get("stopping", False),
        "attempt": shown.get("attempt"),
        "since": view.since,
        "waiting": len(shown.get("waiting", ())),
        "failed": len(shown.get("failed", ())),
        "asks": asked[0] if asked else None,
        "damage": view.damage,
    }


async def turn(subject: Subject, params: Params) -> dict[str, Any]:
    """Return one conversation with its turn."""
    view = await show_conversation(subject.storage, params.get("bot", ""), params.get("key", ""))
    others = await places(subject.storage, view.chats, [view.bot], ("turn", view.key))
    return {**await _turn_json(subject.storage, view), "places": others}


async def _turn_json(storage: Storage, view: ConversationView) -> dict[str, Any]:
    """Return a conversation as the page shows it."""
    shown: dict[str, Any] = as_json(view.as_json())
    names = ("number", "role", "text")
    entries = [dict(zip(names, each, strict=True)) for each in await operate.last_entries(storage, view, ENTRIES)]
    about = {"key": view.key, "since": view.since, "chats": view.chats, "damage": view.damage}
    return {**shown, **about, "history": as_json(entries)}


async def _view(storage: Storage, given: Given) -> ConversationView:
    return await show_conversation(storage, text(given, "bot"), text(given, "key"))


async def _done(storage: Storage, view: ConversationView, outcome: str) -> dict[str, Any]:
    return {"outcome": outcome, "turn": await _turn_json(storage, await show_conversation(storage, view.bot, view.key))}


async def stop_turn(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Stop the turn with the id that the page has shown."""
    shown = text(given, "turn")
    view = await _view(storage, given)
    running = None if view.status is None else view.status.turn
    stopped = running == shown and await operate.stop(storage, view, who=who)
    return await _done(storage, view, "stopped" if stopped else "too late")


async def decide(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Answer a question of the turn that the page has shown."""
    shown, choice, number, by = text(given, "turn"), text(given, "choice"), given.get("question"), given.get("by")
    if type(number) is not int:
        raise UsageError("question must be the number of a question")
    if by is not None and not isinstance(by, int | str):
        raise UsageError("by must be the id of an approver")
    view = await _view(storage, given)
    if view.status is None or view.status.turn != shown:
        return await _done(storage, view, "too late")
    decided = await operate.decide(storage, view, choice, question=number, by=by, who=who)
    return await _done(storage, view, str(decided))


async def reply(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Send a message to the chat of a conversation."""
    message = text(given, "text")
    view = await _view(storage, given)
    await operate.reply(storage, view, message, who=who)
    return await _done(storage, view, "stored")


async def _each_failed(storage: Storage, given: Given) -> list[tuple[ConversationView, FailedTurn | None]]:
    """Return the failed turns that were chosen, all of a conversation without a turn; ``None`` for one that is gone."""
    found: list[tuple[ConversationView, FailedTurn | None]] = []
    for bot, key, shown in chosen(given, "bot", "key", "turn"):
        view = await _view(storage, {"bot": bot, "key": key})
        known = () if view.status is None else view.status.failed
        wanted = [failed for failed in known if shown in (None, failed.id)]
        found += [(view, failed) for failed in wanted] or [(view, None)]
    return found


async def retry_turns(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Let the messages of failed turns wait for a turn again: of one, or of all in some conversations."""
    found = await _each_failed(storage, given)
    return _counted([each is not None and await operate.retry(storage, view, each, who=who) for view, each in found])


async def drop_turns(storage: Storage, flows: KnownFlows, who: str, given: Given) -> dict[str, Any]:
    """Remove failed turns with their messages."""
    found = await _each_failed(storage, given)
    return _counted([each is not None and await operate.drop(storage, view, each, who=who) for view, each in found])


def _counted(done: list[bool]) -> dict[str, Any]:
    return {"done": sum(done), "late": len(done) - sum(done)}


VIEWS: Final[dict[str, View]] = {"turns": turns, "turn": turn}
ACTIONS: Final[dict[str, Action]] = {
    "stop_turn": stop_turn,
    "decide": decide,
    "reply_turn": reply,
    "retry_turns": retry_turns,
    "drop_turns": drop_turns,
}
