"""Bot API methods that send and stop polls, and the votes of users."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from math import inf
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.formatting.texts import formatted_text
from stepwell.botapi.keyboards import markup_of
from stepwell.botapi.methods.messages.edits import editable
from stepwell.botapi.methods.messages.locations import location_of, venue_of
from stepwell.botapi.methods.messages.media import KINDS, media_object
from stepwell.botapi.methods.messages.sending import deliver
from stepwell.botapi.params import Params
from stepwell.botapi.world import Bot, Room, World

__all__ = ["METHODS", "close_later", "is_closed", "vote"]

MAX_QUESTION, MAX_OPTION, MAX_OPTIONS = 300, 100, 12
MAX_EXPLANATION, MAX_DESCRIPTION = 200, 1024
#: Seconds after which a timer looks at the clock again. A bot may give a date that is too large for a timer.
LONGEST = 3600


def send_poll(call: Call) -> dict[str, Any]:
    params = call.params
    kind = params.text("type") or "regular"
    if kind not in ("regular", "quiz"):
        raise bad_request("unsupported poll type specified")
    question = _text(params, "question", MAX_QUESTION)
    if not question:
        raise bad_request("poll question must be non-empty")
    options = _options(call)
    poll = {
        "id": str(secrets.randbits(62)),
        **question,
        "options": options,
        "total_voter_count": 0,
        "is_closed": params.flag("is_closed"),
        "is_anonymous": params.flag("is_anonymous", default=True),
        "type": kind,
        "allows_multiple_answers": params.flag("allows_multiple_answers"),
        "allows_revoting": params.flag("allows_revoting", default=kind == "regular"),
        "members_only": params.flag("members_only"),
        **({"country_codes": codes} if (codes := params.texts("country_codes")) else {}),
        **(_quiz(call, len(options)) if kind == "quiz" else {}),
        **_closing(call),
        **_text(params, "description", MAX_DESCRIPTION),
        **_media(call, params, "media"),
    }
    message = deliver(call, poll=poll)
    close_later(call.world, call.bot, poll)
    return message


def _options(call: Call) -> list[dict[str, Any]]:
    given = call.params.json("options", list) or []
    options = [each if isinstance(each, dict) else {"text": each} for each in given]
    if not all(isinstance(each.get("text"), str) for each in options):
        raise bad_request("can't parse options: expected an Array of InputPollOption")
    if not options:
        raise bad_request("poll must have at least 1 option")
    if len(options) > MAX_OPTIONS:
        raise bad_request(f"poll can't have more than {MAX_OPTIONS} options")
    texts = [_text(Params(each), "text", MAX_OPTION, "poll options") for each in options]
    if not all(texts):
        raise bad_request("poll options must be non-empty")
    return [
        {"persistent_id": str(at), **text, "voter_count": 0, **_media(call, Params(each), "media")}
        for at, (each, text) in enumerate(zip(options, texts, strict=True))
    ]


def _quiz(call: Call, options: int) -> dict[str, Any]:
    params = call.params
    correct = params.json("correct_option_ids", list) or list(params.numbers("correct_option_id").values())
    if not correct or not all(type(each) is int and 0 <= each < options for each in correct):
        raise bad_request("wrong correct option ID specified")
    explanation = _text(params, "explanation", MAX_EXPLANATION)
    media = _media(call, params, "explanation_media")
    return {"correct_option_ids": correct, "correct_option_id": correct[0], **explanation, **media}


def _closing(call: Call) -> dict[str, int]:
    period = call.params.number("open_period", 0)
    if period:
        return {"open_period": period, "close_date": int(call.world.clock()) + period}
    return call.params.numbers("close_date")


def _text(params: Params, name: str, limit: int, what: str = "") -> dict[str, Any]:
    """Return a text of a poll and its entities; empty if it is not given."""
    too_long = f"{what or f'poll {name}'} length must not exceed {limit}"
    text, entities = formatted_text(
        params, name, f"{name}_entities", f"{name}_parse_mode", limit=limit, too_long=too_long
    )
    return {name: text, **({f"{name}_entities": entities} if entities else {})} if text.strip() else {}


def _media(call: Call, params: Params, name: str) -> dict[str, Any]:
    """Return the PollMedia object of an InputMedia object."""
    item = params.json(name, dict)
    if item is None:
        return {}
    given, kind = Params(item), str(item.get("type"))
    if kind in KINDS:
        return {name: media_object(call, kind, given, "media")}
    if kind == "location":
        return {name: {"location": location_of(given)}}
    if kind == "venue":
        return {name: {"venue": venue_of(given)}}
    if kind == "link":
        return {name: {"link": {"url": given.required("url")}}}
    raise bad_request(f'can\'t parse InputMedia: type "{kind}" is unsupported')


def stop_poll(call: Call) -> dict[str, Any]:
    message = editable(call, "message with poll to stop")
    if "poll" not in message:
        raise bad_request("message with poll to stop not found")
    if message["poll"]["is_closed"]:
        raise bad_request("poll has already been closed")
    poll = {**message["poll"], "is_closed": True}
    call.world.change(call.room(), message, poll=poll, reply_markup=markup_of(call.params))
    call.world.update(call.bot, "poll", poll)
    return poll


def is_closed(world: World, poll: dict[str, Any]) -> bool:
    """Return whether a poll accepts no more votes."""
    return bool(poll["is_closed"]) or poll.get("close_date", inf) <= world.clock()


def close_later(world: World, bot: Bot, poll: dict[str, Any]) -> None:
    """Close a poll of a bot at its ``close_date``, if it has one."""
    if "close_date" in poll and not poll["is_closed"]:
        left = max(min(poll["close_date"], int(world.clock()) + LONGEST) - world.clock(), 0.0)
        close = partial(_close_if_due, world, bot, poll["id"])
        world.timers[poll["id"]] = asyncio.get_running_loop().call_later(left, close)


def _close_if_due(world: World, bot: Bot, poll_id: str) -> None:
    del world.timers[poll_id]
    # A forwarded poll is in several messages.
    found = [
        (room, message)
        for room in world.rooms.values()
        for message in room.messages.values()
        if message.get("poll", {}).get("id") == poll_id and not message["poll"]["is_closed"]
    ]
    if not found:
        return
    poll = found[0][1]["poll"]
    if not is_closed(world, poll):
        close_later(world, bot, poll)
        return
    for room, message in found:
        world.change(room, message, poll={**message["poll"], "is_closed": True})
    world.update(bot, "poll", {**poll, "is_closed": True})


def vote(world: World, room: Room, message: dict[str, Any], user: dict[str, Any], chosen: list[int]) -> None:
    """Set the vote of a user; an empty one is retracted. The bot that sent the poll gets updates."""
    poll = message["poll"]
    votes = room.votes.setdefault(message["message_id"], {})
    if chosen:
        votes[user["id"]] = chosen
    else:
        votes.pop(user["id"], None)
    counts = [sum(at in each for each in votes.values()) for at in range(len(poll["options"]))]
    options = [{**option, "voter_count": count} for option, count in zip(poll["options"], counts, strict=True)]
    poll = {**poll, "options": options, "total_voter_count": len(votes)}
    world.change(room, message, poll=poll)
    bot = world.sender(message)
    if bot is None:
        return
    world.update(bot, "poll", poll)
    if not poll["is_anonymous"]:
        ids = [options[at]["persistent_id"] for at in chosen]
        answer = {"poll_id": poll["id"], "user": dict(user), "option_ids": chosen, "option_persistent_ids": ids}
        world.update(bot, "poll_answer", answer)


METHODS: dict[str, Method] = {"sendPoll": send_poll, "stopPoll": stop_poll}
