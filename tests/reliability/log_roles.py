"""The roles of workers that write to a log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count

from stepwell import Log, Storage
from stepwell.log import tail

Report = Callable[..., None]
KEY = ("chat", 42)


async def append(storage: Storage, report: Report, *, name: str, tasks: int, each: int, lease: float) -> None:
    """Append numbered values in several tasks; without an end if ``each`` is 0."""
    # The claim of a killed worker must not hold up the test.
    tail.LEASE = lease  # type: ignore[misc]
    choose = random.Random(name)
    log = Log(storage, "bot", KEY)

    async def one(task: int) -> None:
        values = ((name, task, number) for number in count())
        for _ in range(each) if each else count():
            batch = [next(values) for _ in range(choose.randint(1, 3))]
            numbers = await log.append(*batch)
            for number, value in zip(numbers, batch, strict=True):
                report("appended", number, value)

    await asyncio.gather(*(one(task) for task in range(tasks)))
