"""Replay a chat: erase it, restore its records as they were before it, and send everything again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from stepwell.engine import quoted
from stepwell.errors import UsageError
from stepwell.playground.events.group import EventGroup
from stepwell.playground.events.undo import erase
from stepwell.playground.played import Play

__all__ = ["Replay", "replay"]

#: Seconds to wait for the answers to one update.
TIMEOUT = 10.0
#: Seconds without an event after which an update counts as handled: one with fewer answers than before, or none.
QUIET = 0.5
_STEP = 0.01
_RESENT = frozenset({"message_id", "date", "chat", "from", "text", "entities", "message_thread_id", "is_topic_message"})


@dataclass(slots=True)
class Replay:
    """The result of a replay."""

    steps: int = 0
    #: For each step whose answers differ: what was sent, the answers before, and the answers now.
    differences: list[tuple[str, list[str], list[str]]] = field(default_factory=list)


async def replay(play: Play, chat: int) -> Replay:
    """Send all messages and presses of a chat again, with its timers. Raise ``UsageError`` if a step is impossible."""
    groups = [group for group in play.observer.timeline.of_chat(chat) if group.kind in ("update", "timer", "edit")]
    if not any(group.update for group in groups):
        raise UsageError("there is no message in this chat to replay; send one first")
    await play.observer.connected()
    if play.process.status != "running":
        raise UsageError("the bot is not running; restart it first")
    for (bot, key), snapshot in _before(groups).items():
        await play.observer.restore(bot, key, snapshot)
    erase(play, groups)
    done = Replay()
    ids: dict[int, int] = {}
    for group in groups:
        before = _answers(group, chat)
        new = await _send(play, group, ids)
        if new is None:
            continue
        done.steps += 1
        await _handled(new, chat, len(before))
        if (now := _answers(new, chat)) != before:
            done.differences.append((group.title, before, now))
    return done


def _before(groups: list[EventGroup]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the snapshot of each record before the first write."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for group in groups:
        if group.bot is not None and group.key is not None and group.before is not None:
            found.setdefault((group.bot, group.key), group.before)
    return found


async def _send(play: Play, group: EventGroup, ids: dict[int, int]) -> EventGroup | None:
    """Repeat an update or a timer, and return its new group; ``None`` if it is not repeated."""
    timeline = play.observer.timeline
    last = timeline.groups[-1].n if timeline.groups else 0
    if group.kind == "timer":
        assert group.bot is not None
        assert group.key is not None
        await play.observer.time_out(group.bot, group.key)
    elif group.update is not None and group.again:
        play.world.redeliver(play.bot, ids.get(group.update["update_id"]))
    elif group.update is None or not await _act(play, group):
        return None
    # A timer is reported a little later.
    for _ in range(int(TIMEOUT / _STEP)):
        new = next((each for each in timeline.of_chat(group.chat) if each.n > last), None)
        if new is not None:
            if group.update is not None and new.update is not None:
                ids[group.update["update_id"]] = new.update["update_id"]
            return new
        await asyncio.sleep(_STEP)
    return None


async def _act(play: Play, group: EventGroup) -> bool:
    assert group.update is not None
    message, query = group.update.get("message"), group.update.get("callback_query")
    if group.user is None or (message is None and query is None):
        return False
    person = play.person(str(group.chat), group.user, group.thread)
    if message is not None:
        fields = {name: value for name, value in message.items() if name not in _RESENT}
        if "text" not in message and not fields.keys() - {"forum_topic_created"}:
            return False
        await person.send(message.get("text"), **fields)
        return True
    assert query is not None
    for shown in reversed(person.messages):
        for button in person.buttons_on(shown):
            if button.data is not None and button.data == query["data"]:
                await person.push(button, shown)
                return True
    raise UsageError(f"the replay stopped: the bot sent no button with the data {quoted(query['data'])} this time")


async def _handled(group: EventGroup, chat: int, expected: int) -> None:
    """Wait until an update has its answers, has failed, or nothing more happens."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + TIMEOUT
    seen, changed_at = -1, loop.time()
    while loop.time() < give_up:
        if len(group.events) != seen:
            seen, changed_at = len(group.events), loop.time()
        if group.error is not None or (expected and len(_answers(group, chat)) >= expected):
            return
        # A handler that has written nothing yet may be slow.
        if loop.time() - changed_at > QUIET and (seen or not expected):
            return
        await asyncio.sleep(_STEP)


def _answers(group: EventGroup, chat: int) -> list[str]:
    """Return the texts that the bot sent to the chat."""
    return [
        str(call.get("text", call.get("caption", "")))
        for call in group.own_calls
        if str(call.get("chat_id")) == str(chat)
        and str(call["method"]).startswith("send")
        # Neither a draft nor a chat action is a message.
        and isinstance(call["answer"].get("result"), dict | list)
    ]
