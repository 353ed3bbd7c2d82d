"""A simulation runs a program in virtual time, in an order that the seed chooses, and repeats it."""

from __future__ import annotations

import asyncio
import datetime
import os
import random
import secrets
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.errors import UsageError
from stepwell.fsm import FSM, Router, command
from stepwell.nodes import Node, NodeFlow
from stepwell.testing.simulation import SimulatedProcess, Simulation

HERE = Path(__file__).name
ROOT = Path(__file__).parents[2]


def run(main: Callable[[Simulation], Coroutine[Any, Any, Any]], seed: int = 1, **options: Any) -> Simulation:
    simulation = Simulation(seed, **options)
    simulation.run(main(simulation))
    return simulation


async def everything(simulation: Simulation) -> None:
    """Use what programs use: tasks, timeouts, queues, locks, threads, randomness and a storage."""
    queue: asyncio.Queue[int] = asyncio.Queue(3)
    lock = asyncio.Lock()

    async def produce(number: int) -> None:
        for _ in range(5):
            await asyncio.sleep(random.random())
            await queue.put(number)

    async def consume() -> None:
        while True:
            number = await queue.get()
            async with lock:
                await asyncio.sleep(random.uniform(0, 0.3))
                simulation.note("consumer", str(number))

    async with asyncio.TaskGroup() as group:
        consumers = [group.create_task(consume()) for _ in range(2)]
        await asyncio.gather(*(produce(number) for number in range(3)))
        await asyncio.sleep(10)
        for task in consumers:
            task.cancel()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.sleep(7200)
    assert await asyncio.to_thread(sum, [1, 2]) == 3
    done, _ = await asyncio.wait({asyncio.create_task(asyncio.sleep(delay)) for delay in (3, 1, 2)})
    assert len(done) == 3
    async with MemoryStorage() as storage:
        router = Router(FSM("bot", storage=storage, flows=[]))

        @router.on(command("start"))
        async def begin(ctx: Any) -> None:
            ctx.profile["seen"] = True
            ctx.answer("Hello")

        person = {"id": 42, "is_bot": False, "first_name": "Ann"}
        message = {"message_id": 1, "chat": {"id": 42, "type": "private"}, "from": person, "text": "/start"}
        await router.handle({"update_id": 1, "message": message})
        simulation.note("storage", storage.ids())


def test_the_same_seed_gives_the_same_run() -> None:
    one, two = run(everything), run(everything)
    assert (one.checksum, one.trace) == (two.checksum, two.trace)
    others = {run(everything, seed).text() for seed in range(2, 22)}
    assert len(others) == 20, "other seeds give other runs"


def test_the_same_seed_gives_the_same_run_whatever_the_hashes_of_texts_are() -> None:
    program = "from tests.testing.test_simulation import *; print(run(everything, 7).checksum)"

    def checksum(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert {checksum("1"), checksum("2")} == {run(everything, 7).checksum}


def test_the_same_seed_gives_the_same_run_on_every_machine_and_version_of_python() -> None:
    async def main(simulation: Simulation) -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(2)

        async def work() -> None:
            while True:
                number = await queue.get()
                await asyncio.sleep(random.random())
                simulation.note(str(asyncio.current_task().get_name()), str(number))  # type: ignore[union-attr]
                queue.task_done()

        async with asyncio.TaskGroup() as group:
            workers = {group.create_task(work()) for _ in range(4)}
            for number in range(20):
                await queue.put(number)
            await queue.join()
            for task in workers:
                task.cancel()

    checksums = ["76-f1f739a8-2.825110", "76-e7b55b9b-2.906971"]
    assert [run(main, seed).checksum for seed in (1, 2)] == checksums


def test_a_day_takes_no_time() -> None:
    began = time.process_time()

    async def main(simulation: Simulation) -> None:
        for _ in range(24 * 60):
            await asyncio.sleep(60)
        assert 86400 <= simulation.now < 86402

    run(main)
    assert time.process_time() - began < 2


def test_seeds_choose_which_task_is_next_and_some_keep_the_order_of_asyncio() -> None:
    orders: set[tuple[int, ...]] = set()

    async def main(simulation: Simulation) -> None:
        order: list[int] = []

        async def task(number: int) -> None:
            order.append(number)

        await asyncio.gather(*map(task, range(4)))
        orders.add(tuple(order))

    for seed in range(300):
        run(main, seed)
    assert len(orders) > 20
    orders.clear()
    for seed in range(20):
        run(main, seed, disorder=0)
    assert orders == {(0, 1, 2, 3)}


def test_callbacks_keep_their_order() -> None:
    async def main(simulation: Simulation) -> None:
        order: list[int] = []
        for number in range(10):
            asyncio.get_running_loop().call_soon(order.append, number)
        await asyncio.sleep(1)
        assert order == list(range(10))

    for seed in range(20):
        run(main, seed, disorder=1)


# What is an error, with its line

BAD: dict[str, Callable[[], Any]] = {
    "time.time": lambda: time.time(),
    "time.monotonic": lambda: time.monotonic(),
    "time.perf_counter": lambda: time.perf_counter_ns(),
    "datetime.now": lambda: datetime.datetime.now(datetime.UTC),
    "date.today": lambda: datetime.date.today(),
    "time.sleep": lambda: time.sleep(1),
    "os.urandom": lambda: os.urandom(3),
    "uuid4": uuid.uuid4,
    "secrets": lambda: secrets.token_hex(),
    "thread": lambda: threading.Thread(target=int).start(),
    "create_task": lambda: asyncio.get_running_loop().create_task(asyncio.sleep(60)),
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_program_takes_from_outside_is_an_error_that_names_the_line(name: str) -> None:
    async def main(simulation: Simulation) -> None:
        if name == "uuid4":
            uuid.uuid4()
        else:
            BAD[name]()

    simulation = Simulation(1)
    with pytest.raises(AssertionError, match="the simulation with seed 1 has found") as error:
        simulation.run(main(simulation))
    (found,) = simulation.found
    assert found.line is not None
    assert HERE in found.line
    assert found.line in str(error.value)


def test_the_values_are_virtual_and_repeatable_if_they_are_allowed() -> None:
    seen: list[Any] = []

    async def main(simulation: Simulation) -> None:
        assert time.time() == pytest.approx(1_700_000_000.0, abs=0.01)
        await asyncio.sleep(3600)
        assert datetime.datetime.now(datetime.UTC).timestamp() == pytest.approx(time.time(), abs=0.01)
        assert time.time() == pytest.approx(1_700_003_600.0, abs=0.01)
        assert type(datetime.datetime(2024, 1, 1)) is type(datetime.datetime.now())
        assert isinstance(datetime.datetime.now(), datetime.datetime)
        before = time.monotonic()
        time.sleep(60)
        assert time.monotonic() - before >= 60
        seen.append((uuid.uuid4(), secrets.token_hex(), random.Random().random(), random.random()))

    for _ in range(2):
        run(main, 3, strict=False)
    assert seen[0] == seen[1]
    run(main, 3, allow=("clock", "randomness", "blocking"))


def test_the_clock_and_randomness_are_real_again_after_a_simulation() -> None:
    state = random.getstate()

    async def main(simulation: Simulation) -> None:
        random.random()

    run(main)
    assert time.time() > 1_750_000_000
    assert random.getstate() == state
    assert datetime.datetime.now().year > 2024
    assert threading.Thread.start.__module__ == "threading"


def test_a_thread_of_a_library_keeps_the_real_clock_while_a_simulation_runs() -> None:
    begun, slept, seen = threading.Event(), threading.Event(), []

    def export() -> None:
        begun.wait(60)
        time.sleep(0.01)
        seen.append(time.time())
        slept.set()

    async def main(simulation: Simulation) -> None:
        before = asyncio.get_running_loop().time()
        begun.set()
        # Not time.sleep(): the event is real, and so is the thread.
        assert slept.wait(60)
        assert asyncio.get_running_loop().time() == pytest.approx(before, abs=0.001)

    thread = threading.Thread(target=export)
    thread.start()
    run(main)
    thread.join()
    assert seen[0] > 1_750_000_000


def test_a_failed_task_that_nobody_awaits_is_an_error() -> None:
    async def main(simulation: Simulation) -> None:
        async def fail() -> None:
            raise ValueError("lost")

        task = asyncio.create_task(fail())
        await asyncio.wait([task])

    with pytest.raises(AssertionError, match="nobody has awaited it: ValueError: lost"):
        run(main)


def test_a_program_that_waits_for_ever_is_an_error_that_names_its_tasks() -> None:
    async def main(simulation: Simulation) -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match=f"waits for ever: .*{HERE}"):
        run(main)


def test_a_program_that_never_ends_is_an_error() -> None:
    async def main(simulation: Simulation) -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="has not ended after 1000 steps"):
        run(main, most_steps=1000)


def test_sockets_and_programs_are_refused() -> None:
    async def main(simulation: Simulation) -> None:
        with pytest.raises(NotImplementedError, match="no sockets"):
            await asyncio.open_connection("127.0.0.1", 1)
        with pytest.raises(NotImplementedError, match="no sockets"):
            await asyncio.create_subprocess_exec("true")

    run(main)


def test_a_simulation_runs_once_and_not_in_another_one() -> None:
    async def nothing() -> None:
        pass

    async def main(simulation: Simulation) -> None:
        with pytest.raises(UsageError, match="runs already"):
            Simulation().run(nothing())

    simulation = run(main)
    with pytest.raises(UsageError, match="runs once"):
        simulation.run(nothing())


def test_a_def_exec_runs_in_place() -> None:
    class Add(Node):
        def exec(self, prep: Any) -> int:
            return threading.get_ident()

        def post(self, shared: Any, prep: Any, exec_res: int) -> None:
            shared["thread"] = exec_res

    async def main(simulation: Simulation) -> None:
        state = await NodeFlow().start(Add).run({})
        assert state["thread"] == threading.get_ident()

    run(main)


# Processes


def test_a_killed_process_runs_nothing_more() -> None:
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            done.append("finally")
            await asyncio.sleep(1)
            done.append("cleanup")

    async def main(simulation: Simulation) -> None:
        process = simulation.process("worker")
        task = process.start(work())
        await asyncio.sleep(5)
        process.kill()
        await asyncio.sleep(100)
        assert not task.done()
        assert done == []

    run(main)


def test_a_process_can_die_at_each_of_its_steps() -> None:
    ends: list[int] = []

    async def main(simulation: Simulation) -> None:
        count = 0

        async def child() -> None:
            nonlocal count
            await asyncio.sleep(1)
            count += 1

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(child())

        process = simulation.process("worker")
        process.dies_at = len(ends) + 1
        process.start(work())
        await asyncio.sleep(60)
        ends.append(count)
        assert process.dead == (process.steps == process.dies_at)

    for _ in range(9):
        run(main, disorder=0)
    assert ends == [0, 0, 0, 0, 0, 1, 2, 3, 3]


def test_a_paused_process_goes_on_later_and_its_clock_has_gone_on() -> None:
    async def main(simulation: Simulation) -> None:
        times: list[float] = []

        async def work() -> None:
            while True:
                times.append(simulation.now)
                await asyncio.sleep(1)

        process = simulation.process("worker")
        process.start(work())
        await asyncio.sleep(2.5)
        process.pause(10)
        await asyncio.sleep(12)
        process.kill()
        assert [int(each) for each in times] == [0, 1, 2, 12, 13]

    run(main)


def test_a_process_has_its_own_clock_and_its_tasks_belong_to_it() -> None:
    async def main(simulation: Simulation) -> None:
        async def child() -> float:
            return time.time()

        async def work() -> float:
            return await asyncio.create_task(child())

        ahead = simulation.process("ahead", skew=100)
        assert await ahead.start(work()) - time.time() == pytest.approx(100, abs=0.01)

    run(main, allow=["clock"])


def test_who_shares_an_object_with_a_dead_process_is_not_held_up() -> None:
    async def main(simulation: Simulation) -> None:
        dead: list[SimulatedProcess] = []
        queue: asyncio.Queue[int] = asyncio.Queue()
        process = simulation.process("worker")
        process.on_death.append(lambda: dead.append(process))

        async def take() -> None:
            await queue.get()

        process.start(take())
        await asyncio.sleep(1)
        process.kill()
        queue.put_nowait(1)
        await asyncio.sleep(1)
        assert dead == [process]

    run(main)


def test_the_trace_is_a_text_and_a_sequence_diagram() -> None:
    async def main(simulation: Simulation) -> None:
        simulation.note("Ann", "/start", to="bot")
        await asyncio.sleep(60)
        simulation.note("bot", "dies; it is killed")

    simulation = run(main)
    first, second = simulation.text().splitlines()
    assert first.endswith("Ann -> bot: /start")
    assert second.startswith("   60.0")
    assert simulation.diagram().splitlines()[:4] == [
        "sequenceDiagram",
        "    participant p0 as Ann",
        "    participant p1 as bot",
        "    p0->>p1: 0.000 /start",
    ]
