"""Reactions to messages."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.objects import Room
from stepwell.botapi.world import World, WorldEvent

__all__ = ["METHODS", "react"]

#: Separated by spaces.
_EMOJI = (
    "👍 👎 ❤ 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤️‍🔥 🌚 🌭 💯 🤣 ⚡ 🍌 🏆 💔 🤨 😐 🍓 "
    "🍾 💋 🖕 😈 😴 😭 🤓 👻 👨‍💻 👀 🎃 🙈 😇 😨 🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 💊 🙊 😎 👾 🤷‍♂️ 🤷 🤷‍♀️ 😡"
)
#: The variation selector after some emoji, which clients may leave out.
_SELECTOR = "\ufe0f"
EMOJI: frozenset[str] = frozenset(_EMOJI.replace(_SELECTOR, "").split())


def set_reaction(call: Call) -> bool:
    room, number = call.room(), call.params.number("message_id", 0)
    reactions = [_checked(each) for each in call.params.objects("reaction")]
    if number not in room.messages:
        raise bad_request("message to react not found")
    if len(reactions) > 1:
        raise bad_request("REACTIONS_TOO_MANY")
    react(call.world, room, number, call.bot.user, reactions)
    return True


def _checked(reaction: dict[str, Any]) -> dict[str, Any]:
    kind = reaction.get("type")
    if kind == "custom_emoji" and reaction.get("custom_emoji_id"):
        return {"type": kind, "custom_emoji_id": str(reaction["custom_emoji_id"])}
    if kind != "emoji":
        raise bad_request("can't parse ReactionType: invalid reaction type specified")
    if str(reaction.get("emoji")).replace(_SELECTOR, "") not in EMOJI:
        raise bad_request("REACTION_INVALID")
    return {"type": kind, "emoji": reaction["emoji"]}


def react(world: World, room: Room, message_id: int, actor: dict[str, Any], reactions: list[dict[str, Any]]) -> None:
    """Set the reactions of a user or a bot to a message.

    Bots get updates for the reactions of users, in a channel only with the counts.
    """
    by_actor = room.reactions.setdefault(message_id, {})
    old = by_actor.pop(actor["id"], [])
    if reactions:
        by_actor[actor["id"]] = reactions
    about = {"chat": dict(room.chat), "message_id": message_id, "date": int(world.clock())}
    counts = Counter(json.dumps(each, sort_keys=True) for chosen in by_actor.values() for each in chosen)
    counted = [{"type": json.loads(kind), "total_count": count} for kind, count in counts.items()]
    world.publish(WorldEvent("reacted", None, room, {**about, "reactions": counted}))
    if actor["is_bot"]:
        return
    if room.type == "channel":
        world.broadcast(room, "message_reaction_count", {**about, "reactions": counted})
    else:
        change = {**about, "user": dict(actor), "old_reaction": old, "new_reaction": reactions}
        world.broadcast(room, "message_reaction", change)


METHODS: dict[str, Method] = {"setMessageReaction": set_reaction}
