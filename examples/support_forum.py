"""A support bot: each user gets a topic in the team's forum, and the team answers there.

BOT_TOKEN=... SUPPORT_FORUM=-1001234567890 python examples/support_forum.py

The bot must be an administrator of the forum that may manage topics. Two flows, with two kinds of keys in one
machine: the user's conversation stores the topic, and the topic's conversation stores the user. A handler of the user
may enter the topic's conversation, but not the reverse: two handlers that wait for each other would be a deadlock.
"""

import asyncio
import os

from aiogram import Bot, Dispatcher, F
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.enums import ChatType
from aiogram.filters import Command
from aiogram.types import Message

from stepwell import Storage
from stepwell.adapters.aiogram import fsm_flow, fsm_state, setup
from stepwell.fsm import FSM, Context, Flow, keys, state


class Request(Flow, name="request"):
    """The conversation of a user; its data names the topic."""

    waiting = state(to=[])
    default_state = waiting


class Desk(Flow, name="desk"):
    """The conversation of a topic; its data names the user."""

    working = state(to=["closed"])
    closed = state(to=["working"])
    default_state = working


def make_dispatcher(storage: Storage | str, forum: int) -> Dispatcher:
    """Return the bot over any storage, for one forum."""
    dispatcher = Dispatcher(disable_fsm=True)
    # A private chat has no topics, so its key is (chat, 0).
    fsm = FSM("support_bot", storage=storage, flows=[Request, Desk], key=keys.ChatTopic(strict_topics=True))
    setup(dispatcher, fsm)
    private = F.chat.type == ChatType.PRIVATE
    in_forum = F.chat.id == forum

    @dispatcher.message(private, Command("start"))
    async def start(message: Message) -> None:
        await message.answer("Write your question; the team reads it here.")

    @dispatcher.message(private, fsm_flow(None))
    async def first(message: Message, ctx: Context, bot: Bot) -> None:
        assert message.from_user is not None
        topic = await bot.create_forum_topic(forum, message.from_user.full_name)
        ctx.start_flow(Request)
        ctx.update_data(topic=topic.message_thread_id)
        # The conversation of the topic.
        async with fsm.conversation(key=(forum, topic.message_thread_id)) as desk:
            desk.start_flow(Desk)
            desk.update_data(person=message.chat.id)
        await message.copy_to(forum, message_thread_id=topic.message_thread_id)
        await message.answer("Thank you. The team will answer you here.")

    @dispatcher.message(private, fsm_flow(Request))
    async def more(message: Message, ctx: Context, bot: Bot) -> None:
        topic: int = ctx.data["topic"]
        ctx.update_data(messages=ctx.data.get("messages", 1) + 1)
        async with fsm.conversation(key=(forum, topic)) as desk:
            if desk.state == "closed":
                desk.transition("working")
                await bot.reopen_forum_topic(forum, topic)
        await message.copy_to(forum, message_thread_id=topic)

    @dispatcher.message(in_forum, Command("solved"), fsm_state(Desk.working))
    async def solved(message: Message, ctx: Context, bot: Bot) -> None:
        ctx.transition("closed")
        await bot.send_message(ctx.data["person"], "The team says that this is solved. Write again if it is not.")
        await bot.close_forum_topic(forum, ctx.key[1])

    @dispatcher.message(in_forum, fsm_flow(Desk), F.text | F.photo | F.document)
    async def answered(message: Message, ctx: Context) -> None:
        # A change, so that this update is remembered and not copied again when it is redelivered.
        ctx.update_data(answers=ctx.data.get("answers", 0) + 1)
        await message.copy_to(ctx.data["person"])

    return dispatcher


async def main() -> None:
    server = TelegramAPIServer.from_base(os.environ.get("BOT_API", "https://api.telegram.org"))
    bot = Bot(os.environ["BOT_TOKEN"], session=AiohttpSession(api=server))
    dispatcher = make_dispatcher(os.environ.get("STORAGE", "sqlite:///support.db"), int(os.environ["SUPPORT_FORUM"]))
    await dispatcher.start_polling(bot, handle_as_tasks=False)


if __name__ == "__main__":
    asyncio.run(main())
