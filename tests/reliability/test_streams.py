"""Streams and agents whose workers are killed: another process goes on, and readers can tell the attempts apart."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from stepwell import Storage
from stepwell.errors import UnknownRun
from stepwell.nodes import NodeFlow, StreamEntry
from tests.reliability.dose import dose, seeded
from tests.reliability.stream_roles import speech
from tests.reliability.workers import Workers

COUNT = 300


class Reader:
    """Follows the stream of a run, and reconnects now and then."""

    def __init__(self, flow: NodeFlow, flow_id: str) -> None:
        self.flow, self.flow_id = flow, flow_id
        self.entries: list[StreamEntry] = []
        self._more = asyncio.Event()

    async def follow(self) -> None:
        while True:
            last = self.entries[-1].number if self.entries else 0
            before = len(self.entries)
            try:
                async with aclosing(self.flow.stream(self.flow_id, after=last)) as stream:
                    async for entry in stream:
                        self.entries.append(entry)
                        self._more.set()
                        if len(self.entries) - before >= 97:
                            break
                    else:
                        return
            except UnknownRun:
                await asyncio.sleep(0.01)

    async def until(self, attempts: int) -> None:
        """Wait until it has seen so many attempts of the second node."""
        async with asyncio.timeout(60):
            while len(self.attempts("story")) < attempts:
                self._more.clear()
                await self._more.wait()

    def attempts(self, node: str) -> list[list[int]]:
        """Return the numbered tokens of each attempt of a node, as a reader tells them apart."""
        found: dict[str, list[int]] = {}
        for entry in self.entries:
            if entry.value[0] == node:
                assert entry.step == f"{self.flow_id}/{node}/1"
                found.setdefault(entry.execution, []).append(entry.value[1])
        return list(found.values())


async def test_a_reader_gets_each_token_of_the_finished_attempt_after_kills(
    storage: Storage, url: str, workers: Workers
) -> None:
    choose = seeded()
    flow = speech(storage, lambda *_: None, COUNT)
    for run in range(dose("STREAMS", 1, 20)):
        reader = Reader(flow, f"run-{run}")
        reading = asyncio.create_task(reader.follow())
        seen = 0
        for _ in range(dose("STREAM_KILLS", 1, 3)):
            stop = choose.randrange(1, COUNT)
            worker = workers.start("speak", url, flow_id=f"run-{run}", count=COUNT, stop=stop)
            await worker.wait_for("stopped")
            if choose.random() < 0.8 or not seen:
                # Otherwise the values of the last moment are lost.
                await reader.until(seen + 1)
            await worker.kill()
            seen = len(reader.attempts("story"))
        worker = workers.start("speak", url, flow_id=f"run-{run}", count=COUNT)
        await worker.wait_for("done")
        await asyncio.wait_for(reading, 60)
        assert worker.reported("done")
        numbers = [entry.number for entry in reader.entries]
        assert numbers == sorted(set(numbers))
        *killed, finished = reader.attempts("story")
        assert finished == [*range(COUNT)]
        assert killed and len(killed) >= seen
        for attempt in killed:
            assert attempt == [*range(len(attempt))] and len(attempt) < COUNT
        # A node that has completed is not run again.
        assert reader.attempts("greeting") == reader.attempts("end") == [[*range(5)]]
        assert [entry async for entry in flow.stream(f"run-{run}")] == reader.entries


async def test_an_agent_of_a_killed_process_goes_on_in_another_one(url: str, workers: Workers) -> None:
    killed = workers.start("sell", url, flow_id="order", hang=True)
    await killed.wait_for("hangs")
    await killed.kill()
    assert [call for _, call in killed.reported("called")] == ["model 0", "price tea", "model 1", "ship tea"]
    other = workers.start("sell", url, flow_id="order", hang=False)
    await other.wait_for("answer")
    assert other.reported("answer") == [["answer", "sold"]]
    # Only the call that was running is made again.
    assert [call for _, call in other.reported("called")] == ["ship tea", "model 2"]
