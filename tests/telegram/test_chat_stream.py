"""A node of a run streams into a chat, and continues with the same message when it runs again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import InvalidOption
from stepwell.nodes import Node, NodeFlow, step
from stepwell.telegram import BotClient, chat_stream
from tests.telegram.documented_api import DocumentedAPI
from tests.telegram.virtual_time import VirtualTimeLoop

USER, GROUP, TOKEN = 42, -1001234567890, "42:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
WORDS = [f"word{number} " for number in range(50)]
TEXT = "".join(WORDS).rstrip()


def play(scene: Callable[[DocumentedAPI, BotClient], Awaitable[None]]) -> DocumentedAPI:
    """Run a scene with a server and a client in virtual time."""

    async def run() -> DocumentedAPI:
        async with DocumentedAPI().serving() as api, BotClient(TOKEN, api=api.url) as client:
            await scene(api, client)
        return api

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())


class Tell(Node[Any, Any]):
    """Writes two texts; the first attempt fails in the middle of the first one."""

    def __init__(self, client: BotClient, chat: int) -> None:
        super().__init__(max_retries=2)
        self.client = client
        self.chat = chat

    async def exec(self, prep_res: Any) -> str:
        async with chat_stream(self.client, self.chat) as out:
            for number, word in enumerate(WORDS):
                out.write(word)
                await asyncio.sleep(0.1)
                if step().attempt == 1 and number == 30:
                    raise ConnectionError
        async with chat_stream(self.client, self.chat, name="second", parse_mode="CommonMark") as second:
            second.write("**Bye.**")
        return out.text


@pytest.mark.parametrize("chat", [USER, GROUP])
def test_a_node_that_runs_again_continues_with_the_same_message(chat: int) -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        async with MemoryStorage() as storage:
            await NodeFlow(Tell(client, chat), name="tell").run({}, storage=storage)

    api = play(scene)
    assert api.texts(chat) == [TEXT, "Bye."]
    assert len(api.times("sendMessage")) == 2
    assert api.statuses() == {200}
    drafts = {each["draft_id"] for _, method, each, _ in api.requests if method == "sendMessageDraft"}
    assert len(drafts) == (0 if chat == GROUP else 1)


def test_outside_of_a_run_it_streams_too() -> None:
    async def scene(api: DocumentedAPI, client: BotClient) -> None:
        async with chat_stream(client, USER) as out:
            out.write("Hello")
        with pytest.raises(InvalidOption, match="takes a BotClient"):
            async with chat_stream(None, USER):  # type: ignore[arg-type]
                pass

    assert play(scene).texts(USER) == ["Hello"]
