"""Links that start a bot, with a payload."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Literal

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption
from stepwell.options import check, check_choice

__all__ = ["decode_payload", "encode_payload", "start_link"]

#: Telegram's limits of a payload, in characters.
_LONGEST = {"start": 64, "startgroup": 64, "startapp": 512}


def start_link(bot: str, payload: str = "", *, to: Literal["start", "startgroup", "startapp"] = "start") -> str:
    """Return a link that opens a bot, which then gets ``/start`` with the payload: ``ctx.args``.

    ``to``: the private chat, a group that the user chooses, or the main Mini App. A payload has the characters A-Z,
    a-z, 0-9, ``_`` and ``-``; ``encode_payload`` makes one of any text. Do not trust it: everybody can write a link.

    Example::

        assert start_link("my_bot", "friend-42") == "https://t.me/my_bot?start=friend-42"
    """
    name = bot.removeprefix("@")
    check(re.fullmatch(r"[A-Za-z0-9_]{3,32}", name), "start_link({}): pass the username of the bot", bot)
    check_choice(to, tuple(_LONGEST), "to= is 'start', 'startgroup' or 'startapp', not {}")
    if not re.fullmatch(r"[A-Za-z0-9_-]*", payload):
        raise InvalidOption(
            f"the payload {quoted(payload)} has other characters than A-Z, a-z, 0-9, _ and -; pass encode_payload(...)"
        )
    if len(payload) > _LONGEST[to]:
        raise InvalidOption(
            f"the payload has {len(payload)} characters, and Telegram accepts {_LONGEST[to]}; pass the id of a record"
        )
    return f"https://t.me/{name}?{to}={payload}" if payload or to != "start" else f"https://t.me/{name}"


def encode_payload(text: str) -> str:
    """Return a text as a payload of a link. The 64 characters have room for 48 bytes.

    Example::

        assert decode_payload(encode_payload("order 7/42")) == "order 7/42"
    """
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_payload(payload: str) -> str | None:
    """Return the text of an encoded payload, such as ``ctx.args``; ``None`` if it was not made by ``encode_payload``.

    Example::

        @router.on(command("start"))
        async def start(ctx):
            ctx.update_data(came_from=decode_payload(ctx.args))
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", payload):
        return None
    try:
        return urlsafe_b64decode(payload + "=" * (-len(payload) % 4)).decode()
    except ValueError:
        return None
