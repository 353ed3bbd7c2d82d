"""A moderator of a group: newcomers press a button or leave, and whoever advertises three times is silent for a day.

stepwell play moderation.py

In Telegram the bot must be an administrator that may delete messages and ban users.
"""

import re
import time

from stepwell import Storage
from stepwell.fsm import (
    FSM,
    Context,
    Flow,
    Router,
    button,
    callback,
    command,
    content,
    fsm_flow,
    fsm_state,
    keyboard,
    state,
    text,
)

SECONDS = 120
STRIKES = 3
DAY = 24 * 3600
SPAM = re.compile(r"casino|crypto gift|t\.me/\w+", re.IGNORECASE)


async def remove(ctx: Context) -> None:
    chat, user = ctx.key
    # They may join again after a minute.
    ctx.call("banChatMember", chat_id=chat, user_id=user, until_date=int(time.time()) + 60)
    ctx.answer(f"{ctx.data['name']} did not answer, and was removed.")
    ctx.clear_flow()


class Newcomer(Flow, name="newcomer"):
    asked = state(to=[], timeout=SECONDS, on_timeout=remove)
    default_state = asked


class Silenced(Flow, name="silenced"):
    silent = state(to=[], timeout=DAY)
    default_state = silent


def joins(ctx: Context) -> bool:
    """Whether somebody joins; whom a member adds is trusted."""
    return any(member["id"] == ctx.key[1] for member in ctx.update.event["new_chat_members"])


def make_router(storage: Storage | str) -> Router:
    # The key is that of one user in one group.
    router = Router(FSM("moderator", storage=storage, flows=[Newcomer, Silenced]))

    @router.on(content("new_chat_members"), joins, fsm_flow(None))
    async def ask(ctx: Context) -> None:
        name = ctx.update.event["from"]["first_name"]
        ctx.start_flow(Newcomer)
        ctx.update_data(name=name)
        rows = [[button("I am a person", data="person")]]
        ctx.answer(f"Welcome, {name}! Press the button within {SECONDS} seconds.", reply_markup=keyboard(rows))

    @router.on(callback("person"), fsm_state(Newcomer.asked))
    async def accept(ctx: Context) -> None:
        ctx.edit(f"Welcome, {ctx.data['name']}!")
        ctx.clear_flow()

    @router.on(callback("person"))
    async def somebody_else(ctx: Context) -> None:
        ctx.answer_callback("This button is for the newcomer.", show_alert=True)

    @router.on(content(edited=True), fsm_flow(Newcomer) | fsm_flow(Silenced))
    async def hush(ctx: Context) -> None:
        ctx.call("deleteMessage", chat_id=ctx.key[0], message_id=ctx.update.message_id)

    # An edit can make advertising of an old message.
    @router.on(text(SPAM, edited=True))
    async def strike(ctx: Context) -> None:
        chat, user = ctx.key
        member = await ctx.bot.get_chat_member(chat_id=chat, user_id=user)
        if member["status"] in ("creator", "administrator"):
            return
        ctx.call("deleteMessage", chat_id=chat, message_id=ctx.update.message_id)
        name = ctx.update.event["from"]["first_name"]
        strikes = ctx.profile["strikes"] = ctx.profile.get("strikes", 0) + 1
        if strikes < STRIKES:
            ctx.answer(f"No advertising please, {name}. Strike {strikes} of {STRIKES}.")
        else:
            ctx.profile["strikes"] = 0
            ctx.start_flow(Silenced)
            ctx.answer(f"{name} is silent for a day.")

    @router.on(command("strikes"))
    async def show(ctx: Context) -> None:
        """Your strikes"""
        ctx.answer(f"You have {ctx.profile.get('strikes', 0)} of {STRIKES} strikes.")

    return router
