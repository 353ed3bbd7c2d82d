"""StepwellSession as the memory of agents, with a model that answers without a network."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, ModelResponse, RunConfig, Runner, SQLiteSession, Usage
from agents.memory import Session, SessionSettings
from agents.models.interface import Model
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from stepwell import open_storage, sync
from stepwell.adapters.openai_agents import StepwellSession
from stepwell.errors import InsideLoop, InvalidOption, OutcomeUnknown, StorageClosed
from stepwell.log import Log
from tests.backends import Backend
from tests.until import until

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


async def test_settings_may_be_a_dict_and_have_defaults_as_in_the_official_session(tmp_path: Path) -> None:
    for make in (
        lambda **given: StepwellSession("ann", "memory://", **given),
        lambda **given: SQLiteSession("ann", **given),
    ):
        assert make().session_settings == SessionSettings()
        session = make(session_settings={"limit": 2})
        assert session.session_settings == SessionSettings(limit=2)
        await session.add_items([said(number) for number in range(5)])
        assert await session.get_items() == [said(3), said(4)]
        assert len(await session.get_items(-1)) == 5
        session.close()
        with pytest.raises(TypeError, match="limitt"):
            make(session_settings={"limitt": 2})


@contextmanager
def loop_of_thread() -> Iterator[None]:
    """Close the loop that ``Runner.run_sync`` uses at the end; it stays open between two calls."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def run_sync(session: StepwellSession, *texts: str) -> list[Any]:
    """Run an agent in a thread without a running loop, as a web framework does."""
    agent, quiet = Agent(name="counter", model=Counting()), RunConfig(tracing_disabled=True)
    with loop_of_thread():
        return [Runner.run_sync(agent, text, session=session, run_config=quiet).final_output for text in texts]


@pytest.mark.every_backend
async def test_a_session_with_a_url_works_in_every_loop_and_thread(shared_backend: Backend) -> None:
    session = StepwellSession("ann", shared_backend.place())
    await session.add_items([said(0)])
    assert await asyncio.to_thread(run_sync, session, "turn 0", "turn 1") == ["2 items", "4 items"]
    assert len(await asyncio.to_thread(asyncio.run, session.get_items())) == 5
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(asyncio.to_thread(asyncio.run, session.add_items([said(number)] * 2)))
    items = (await session.get_items())[5:]
    assert len(items) == 16
    assert items[::2] == items[1::2]
    session.close()
    assert not session.storage.is_open
    with pytest.raises(StorageClosed):
        await session.get_items()


def test_a_session_with_a_url_works_in_run_sync_and_then_in_another_loop_of_the_thread(tmp_path: Path) -> None:
    session = StepwellSession("ann", f"sqlite:///{tmp_path}/agents.db")
    agent, quiet = Agent(name="counter", model=Counting()), RunConfig(tracing_disabled=True)
    with loop_of_thread():
        assert Runner.run_sync(agent, "Hello", session=session, run_config=quiet).final_output == "1 items"
        assert len(asyncio.run(session.get_items())) == 2
        asyncio.run(session.storage.close())


async def test_a_session_works_in_other_loops_while_that_of_its_storage_runs(backend: Backend) -> None:
    storage = backend.storage()
    session = StepwellSession("ann", storage)
    await session.add_items([said(0)])
    assert await asyncio.to_thread(run_sync, session, "Hello") == ["2 items"]
    assert len(await asyncio.to_thread(asyncio.run, session.get_items())) == 3
    session.close()
    # It belongs to the program.
    assert storage.loop is asyncio.get_running_loop()


def test_a_storage_opened_by_sync_serves_the_sessions_of_all_threads(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path}/agents.db")
    sync(storage.open())
    answers = []

    def work(number: int) -> None:
        answers.extend(run_sync(StepwellSession(f"user {number}", storage), "Hello"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["1 items"] * 4
    sync(storage.close())


def test_a_call_ends_with_an_error_if_the_loop_of_the_storage_stops_meanwhile(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path}/agents.db")
    session = StepwellSession("ann", storage)
    loop = asyncio.new_event_loop()
    raised: list[BaseException] = []

    def add() -> None:
        try:
            asyncio.run(session.add_items([said(0)]))
        except BaseException as error:
            raised.append(error)

    async def begin() -> None:
        async with Log(storage, "openai-agents", "ann").claim():
            adding.start()
            # The call waits for the claim.
            await until(lambda: any(task.get_coro().__name__ == "append" for task in asyncio.all_tasks()))
            loop.stop()
            await asyncio.sleep(0)

    adding = threading.Thread(target=add)
    began = loop.create_task(begin())
    loop.run_forever()
    adding.join()
    assert [type(error) for error in raised] == [OutcomeUnknown]
    loop.run_until_complete(began)
    loop.run_until_complete(storage.close())
    loop.close()


async def test_close_does_not_block_the_loop_of_the_storage() -> None:
    session = StepwellSession("ann", "memory://")
    async with session.storage:
        await session.add_items([said(0)])
        with pytest.raises(InsideLoop, match=r"await session\.storage\.close"):
            session.close()
        assert await session.get_items() == [said(0)]


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
