"""An agent in a group: it reads along, and answers when it is addressed or replied to.

stepwell play group.py

In Telegram, turn its privacy mode off at @BotFather (/setprivacy), so that it reads along. A script plays the model.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

from stepwell import Storage
from stepwell.fsm import FSM, BotMethods, Context, Router, Update, text
from stepwell.turns import Turn, Turns

#: How many messages of the group the model gets.
REMEMBERED = 30


async def model(told: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Answer the last message that the model was told, piece by piece."""
    speakers = sorted({each["name"] for each in told if each["role"] == "user"})
    for piece in re.split("(?<= )", f"Messages that I have read: {len(told)}, by {', '.join(speakers)}."):
        await asyncio.sleep(0.05)
        yield piece


def said(update: Update) -> dict[str, Any]:
    """A message of the group, as the model gets it."""
    assert update.user is not None
    return {"role": "user", "name": update.user.first_name, "content": update.text or ""}


def make_router(storage: Storage | str) -> Router:
    username = ""

    def is_addressed(update: Update) -> bool:
        """Whether a message is for the bot: in private, with its name, or as a reply to it."""
        if update.text is None or update.command is not None or update.chat is None or update.user is None:
            return False
        replied = (update.event.get("reply_to_message") or {}).get("from", {}).get("username")
        return update.chat.type == "private" or f"@{username}" in update.text or replied == username

    router = Router(FSM("group_agent", storage=storage, flows=[]))
    turns = Turns("group_agent", storage=storage, on_busy="queue", accepts=is_addressed)
    turns.attach(router)

    @router.on_startup
    async def introduce(bot: BotMethods) -> None:
        nonlocal username
        username = (await bot.get_me())["username"]

    def is_for_others(ctx: Context) -> bool:
        return ctx.update.user is not None and not is_addressed(ctx.update)

    @router.on(text(), is_for_others)
    async def read_along(ctx: Context) -> None:
        await turns.history(ctx.update).append(said(ctx.update))

    @turns.handler
    async def answer(turn: Turn) -> None:
        asked = [said(message.update) for message in turn.messages]
        known = await turn.history.read(last=REMEMBERED)
        # The answer shows which message it is for.
        async with turn.stream(reply_parameters={"message_id": turn.messages[-1].message_id}) as out:
            async for piece in model(known + asked):
                out.write(piece)
        turn.history.append(*asked, {"role": "assistant", "content": out.text})

    return router
