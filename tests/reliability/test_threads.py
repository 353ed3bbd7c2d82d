"""A thread of LangGraph that several killed and stopped workers run has one branch and loses no message."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from stepwell import Storage
from tests.reliability.dose import dose, seeded
from tests.reliability.thread_roles import THREAD, talking
from tests.reliability.workers import Worker, Workers


async def test_killed_and_stopped_workers_do_not_fork_a_thread(storage: Storage, url: str, workers: Workers) -> None:
    from stepwell.adapters.langgraph import StepwellSaver

    choose = seeded()
    names = iter(range(1_000_000))
    running: list[Worker] = []
    ended: list[Worker] = []

    def start() -> None:
        running.append(workers.start("talk", url, name=str(next(names))))

    for _ in range(2):
        start()
    for worker in running:
        await worker.wait_for("answered")
    for _ in range(dose("THREAD_KILLS", 4, 200)):
        await asyncio.sleep(choose.uniform(0.02, 0.2))
        worker = choose.choice(running)
        if choose.random() < 0.3:
            await worker.kill()
            running.remove(worker)
            ended.append(worker)
            start()
        else:
            worker.signal(signal.SIGSTOP)
            await asyncio.sleep(choose.uniform(0.02, 0.3))
            worker.signal(signal.SIGCONT)
    for worker in running:
        await worker.kill()
    saver = StepwellSaver(storage)
    found = [each async for each in saver.alist(THREAD)]
    parents = [each.parent_config["configurable"]["checkpoint_id"] for each in found if each.parent_config]
    assert len(set(parents)) == len(parents) == len(found) - 1, "the thread has two branches"
    messages = (await talking(saver).aget_state(THREAD)).values["messages"]
    answered = [line[1] for worker in running + ended for line in worker.reported("answered")]
    stale = sum(len(worker.reported("stale")) for worker in running + ended)
    for message in answered:
        assert f"answer to {message}" in messages
    print(f"{len(answered)} answered, {stale} stale, {len(found)} checkpoints")
    assert answered


async def test_two_processes_fork_a_thread_of_the_official_saver_but_none_with_a_fence(
    storage: Storage, url: str, workers: Workers, tmp_path: Path
) -> None:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    from stepwell.adapters.langgraph import StepwellSaver

    slow, quick = (workers.start("race", url, name=name, folder=str(tmp_path)) for name in ("slow", "quick"))
    for worker in (slow, quick):
        await worker.wait_for("done")
    # With the official saver both report success, and one of the answers is lost.
    assert ["answered", "official"] in slow.reported()
    assert ["answered", "official"] in quick.reported()
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "official.db")) as saver:
        assert await _branches(saver) == 2
        messages = (await talking(saver).aget_state(THREAD)).values["messages"]
        assert len([message for message in messages if message.startswith("answer")]) == 1
    assert ["stale", "ours"] in slow.reported()
    assert ["answered", "ours"] in quick.reported()
    ours = StepwellSaver(storage)
    assert await _branches(ours) == 1
    messages = (await talking(ours).aget_state(THREAD)).values["messages"]
    assert messages == ["slow", "quick", "answer to quick"]


async def _branches(saver: Any) -> int:
    """Return the number of checkpoints that are no parent."""
    found = [each async for each in saver.alist(THREAD)]
    parents = {each.parent_config["configurable"]["checkpoint_id"] for each in found if each.parent_config}
    return len({each.config["configurable"]["checkpoint_id"] for each in found} - parents)
