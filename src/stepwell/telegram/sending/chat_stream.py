"""A text that a node of a run writes into a chat."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from stepwell.fsm.bot import BotMethods
from stepwell.fsm.conversation.stream import writer_of
from stepwell.nodes.engine import durable_step
from stepwell.options import check_instance
from stepwell.texts import Writer, make_call

__all__ = ["chat_stream"]


@asynccontextmanager
async def chat_stream(
    client: BotMethods, chat_id: int | str, *, name: str = "", can_stop: bool = False, **params: Any
) -> AsyncGenerator[Writer]:
    """Show a text in a chat while this block writes it, and send it whole at the end of the block.

    In a node of a durable run the text belongs to the step: if the step runs again, after an error or a crash, it
    continues with the same message.

    :param name: distinguishes the texts that one step writes into one chat.
    :param can_stop: show a button to stop, in a private chat. The bot gets the update ``stopped_message_generation``.
    :param params: parameters of ``sendMessage``, such as ``parse_mode="CommonMark"`` and ``message_thread_id``.

    Raises ``BotApiError`` if Telegram refuses the whole text, and ``BotUnavailable`` if it cannot be sent for now.

    Example::

        def teller(client: BotClient, model):
            class Tell(Node):
                async def exec(self, question):
                    async with chat_stream(client, question["chat"], parse_mode="CommonMark") as out:
                        async for token in model(question["text"]):
                            out.write(token)
                    return out.text
            return Tell()
    """
    check_instance(client, BotMethods, "chat_stream(client) takes a BotClient, got {}")
    step = durable_step()
    storage, what = (None, None) if step is None else (step.storage, (step.id, step.mark, chat_id, name))
    call = {**params, "chat_id": chat_id}
    async with await writer_of(client, storage, what, call, can_stop=can_stop) as writer:
        yield writer
    for each in await writer.finish():
        await make_call(client.call, each)
