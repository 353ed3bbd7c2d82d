"""A support desk: the bot answers what it knows, and hands over to a person in a topic of the group of the team.

stepwell play support.py
SUPPORT_TEAM=-1001234567890 BOT_TOKEN=... stepwell run support.py

The bot must be an administrator of the group that may manage topics.
"""

import os

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
    fsm_state,
    keyboard,
    keys,
    state,
)

#: The group of the team; by default the first group of the playground.
TEAM = int(os.environ.get("SUPPORT_TEAM", "-1001"))
ANSWERS = {"open": "We are open from 9 to 18, every day.", "price": "A cup of tea is 3 EUR.", "where": "1 Main Street."}


class Handed(Flow, name="handed over"):
    """The chat of a person whom the team answers; its data names the topic."""

    asking = state(to=[])
    default_state = asking


class Desk(Flow, name="desk"):
    """A topic of the team; its data names the chat of the person."""

    working = state(to=["solved"])
    solved = state(to=[])
    default_state = working


def is_private(ctx: Context) -> bool:
    return ctx.key is not None and ctx.key[0] > 0


def is_team(ctx: Context) -> bool:
    return ctx.key is not None and ctx.key[0] == TEAM


def answer(ctx: Context) -> None:
    """Answer what the bot knows, or offer a person."""
    question = ctx.text or ""
    known = next((known for word, known in ANSWERS.items() if word in question.lower()), None)
    if known is None:
        ctx.update_data(question=question)
        ctx.answer("I do not know that.", reply_markup=keyboard([[button("Ask a person", data="person")]]))
    else:
        ctx.answer(known)


def make_router(storage: Storage | str) -> Router:
    # The key of a topic is (TEAM, topic), and that of a private chat (chat, 0).
    fsm = FSM("support_desk", storage=storage, flows=[Handed, Desk], key=keys.ChatTopic(strict_topics=True))
    # Updates that were only answered are remembered too, so that nothing is passed on twice.
    router = Router(fsm, remember="answers")
    people, team = router.scope(is_private), router.scope(is_team)

    @people.on(command("start"))
    async def start(ctx: Context) -> None:
        ctx.answer("Ask me something. When are you open? What is the price?")

    @people.on(content(), fsm_state(Handed.asking))
    async def pass_on(ctx: Context) -> None:
        topic = ctx.data["topic"]
        desk = await fsm.storage.get_state(fsm.bot, (TEAM, topic))
        if desk is None or desk.state == Desk.solved:
            ctx.clear_flow()
            answer(ctx)
            return
        message = {"from_chat_id": ctx.key[0], "message_id": ctx.update.message_id}
        ctx.call("copyMessage", chat_id=TEAM, message_thread_id=topic, **message)

    @people.on(content())
    async def ask(ctx: Context) -> None:
        answer(ctx)

    @people.on(callback("person"), fsm_state(None))
    async def hand_over(ctx: Context) -> None:
        assert ctx.update.user is not None
        name, question = ctx.update.user.first_name, ctx.data["question"]
        topic = (await ctx.bot.create_forum_topic(chat_id=TEAM, name=name))["message_thread_id"]
        # The topic is written first. If the process dies then, this handler runs again, with another topic.
        async with fsm.conversation(key=(TEAM, topic)) as desk:
            desk.start_flow(Desk)
            desk.update_data(person=ctx.key[0])
        ctx.start_flow(Handed)
        ctx.update_data(topic=topic)
        ctx.call("sendMessage", chat_id=TEAM, message_thread_id=topic, text=f"{name} asks: {question}")
        ctx.edit("The team has your question, and answers here.")

    @team.on(command("solved"), fsm_state(Desk.working))
    async def solved(ctx: Context) -> None:
        """The question is answered"""
        ctx.transition("solved")
        ctx.call("sendMessage", chat_id=ctx.data["person"], text="The team says that this is solved. I am here again.")
        ctx.call("closeForumTopic", chat_id=TEAM, message_thread_id=ctx.key[1])

    @team.on(content(), fsm_state(Desk.working))
    async def reply(ctx: Context) -> None:
        message = {"from_chat_id": TEAM, "message_id": ctx.update.message_id}
        ctx.call("copyMessage", chat_id=ctx.data["person"], **message)

    return router
