"""StepwellSession as the memory of agents, with a model that answers without a network."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, ModelResponse, RunConfig, Runner, SQLiteSession, Usage
from agents.memory import Session, SessionSettings
from agents.models.interface import Model
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from stepwell.adapters.openai_agents import StepwellSession
from stepwell.errors import InvalidOption
from tests.backends import Backend

#: It forks, because importing the framework takes seconds.
WORKERS = """
import asyncio, os, sys
from stepwell.adapters.openai_agents import StepwellSession

async def main(url, name):
    session = StepwellSession("ann", url)
    async with session.storage:
        for number in range(50):
            text = f"{name} {number}"
            await session.add_items([{"role": "user", "content": text}, {"role": "assistant", "content": text}])

child = os.fork()
asyncio.run(main(sys.argv[1], "a" if child else "b"))
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


class Counting(Model):
    """Answers with the number of items that it gets."""

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:  # noqa: A002 - their name
        text = ResponseOutputText(text=f"{len(input)} items", type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id="message", content=[text], role="assistant", status="completed", type="message"
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def said(number: int) -> Any:
    return {"role": "user", "content": f"message {number}"}


@pytest.mark.every_backend
async def test_an_agent_remembers_earlier_turns(backend: Backend) -> None:
    storage = backend.storage()
    agent = Agent(name="counter", model=Counting())
    answers = []
    for turn in range(3):
        # Each turn on another worker.
        session = StepwellSession("ann", storage)
        assert isinstance(session, Session)
        quiet = RunConfig(tracing_disabled=True)
        answers.append((await Runner.run(agent, f"turn {turn}", session=session, run_config=quiet)).final_output)
    assert answers == ["1 items", "3 items", "5 items"]
    items = await StepwellSession("ann", storage).get_items()
    assert [item["content"] for item in items[::2]] == ["turn 0", "turn 1", "turn 2"]  # type: ignore[typeddict-item]
    assert await StepwellSession("ben", storage).get_items() == []


async def test_every_method_does_what_the_official_session_does(backend: Backend, tmp_path: Path) -> None:
    mine, official = StepwellSession("ann", backend.storage()), SQLiteSession("ann", tmp_path / "official.db")
    for session in (mine, official):
        found: list[Any] = [await session.pop_item(), await session.get_items()]
        await session.add_items([])
        await session.add_items([said(number) for number in range(5)])
        found += [await session.get_items(), await session.get_items(2), await session.get_items(limit=9)]
        found += [await session.get_items(limit=0), await session.pop_item(), await session.get_items(limit=2)]
        await session.add_items([said(9), {"role": "assistant", "content": [{"type": "output_text", "text": "ü"}]}])
        found.append(await session.get_items(limit=3))
        await session.clear_session()
        await session.clear_session()
        found += [await session.get_items(), await session.pop_item()]
        await session.add_items([said(1)])
        found.append(await session.get_items())
        if session is mine:
            expected = found
    assert found == expected
    official.close()


@pytest.mark.parametrize("items", ["hello", {"role": "user"}, [None], ["hello"], [object()]])
async def test_items_that_are_not_dicts_are_refused(items: Any) -> None:
    session = StepwellSession("ann", "memory://")
    with pytest.raises(InvalidOption, match="takes a list of dicts"):
        await session.add_items(items)
    assert await session.get_items() == []
    await session.storage.close()


async def test_the_settings_limit_the_items(backend: Backend) -> None:
    session = StepwellSession("ann", backend.storage(), session_settings=SessionSettings(limit=2))
    await session.add_items([said(number) for number in range(5)])
    assert await session.get_items() == [said(3), said(4)]
    assert await session.get_items(1) == [said(4)]


async def test_two_workers_add_at_once_and_lose_nothing(shared_backend: Backend) -> None:
    url = shared_backend.place()
    workers = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKERS, url)
    assert await workers.wait() == 0
    items = await StepwellSession("ann", shared_backend.storage(url)).get_items()
    texts = [item["content"] for item in items]  # type: ignore[typeddict-item]
    for name in ("a", "b"):
        assert [text for text in texts if text[0] == name] == [f"{name} {number // 2}" for number in range(100)]
    # The items of one call stay together.
    assert texts[::2] == texts[1::2]
