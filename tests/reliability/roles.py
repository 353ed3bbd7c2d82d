"""The roles of a worker: what it does with a storage, and what it reports."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.registration import Registration, handlers

from stepwell import State, Storage
from stepwell.errors import Busy, Conflict, LeaseLost, StepwellError
from stepwell.fsm import FSM, Context, Router
from stepwell.record import Change
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Claimed, Get, Guard, Release
from tests.until import until

BOT = "bot"
Report = Callable[..., None]


async def merge(storage: Storage, report: Report, *, name: str, tasks: int, each: int, keys: int) -> None:
    """Merge different fields in many tasks, all into the same few keys."""

    async def one(task: int) -> None:
        for number in range(each):
            field = f"{name}-{task}-{number}"
            merged = await storage.update_data(BOT, number % keys, {field: number})
            assert merged[field] == number
            report("merged", number % keys, field)

    await asyncio.gather(*(one(task) for task in range(tasks)))


async def write(storage: Storage, report: Report, *, keys: list[int], seed: int) -> None:
    """Write records whose parts all contain the same number, one higher each time, until killed."""
    choose = random.Random(seed)

    async def one(key: int) -> None:
        while True:
            async with Slot(storage, BOT, key, wait=30, lease=0.5) as slot:
                number = slot.data.get("number", 0) + 1
                slot.flow, slot.state = "flow", f"s{number}"
                slot.data = agreeing(number)
                await slot.commit(memo=number, parts={"part": number}, tags=(f"t{number}",))
            report("wrote", key, number)
            if choose.random() < 0.3:
                number += 1
                await storage.set_state(BOT, key, State("flow", f"s{number}", agreeing(number)))
                report("wrote", key, number)

    await asyncio.gather(*(one(key) for key in keys))


def agreeing(number: int) -> dict[str, Any]:
    """Return data that shows if only a part of a write was applied."""
    return {"number": number, "twice": number * 2, "text": "x" * (number * 37 % 3000), f"only{number % 5}": number}


async def hold(storage: Storage, report: Report, *, key: int, lease: float, go: str) -> None:
    """Hold a key until a file appears, then write."""
    try:
        async with Slot(storage, BOT, key, lease=lease) as slot:
            report("holds")
            await until(lambda: Path(go).exists())
            slot.data["by"] = "the suspended holder"
            await slot.commit()
            report("committed")
    except StepwellError as error:
        report("refused", type(error).__name__)


async def cross(storage: Storage, report: Report, *, first: int, second: int, wait: float, meet: str) -> None:
    """Hold one key, wait until another worker holds the other, and then claim that too."""
    try:
        async with Slot(storage, BOT, first, wait=wait):
            report("holds")
            Path(meet, str(first)).touch()
            await until(lambda: Path(meet, str(second)).exists())
            async with Slot(storage, BOT, second, wait=wait):
                report("both")
    except Busy:
        report("busy")


async def converse(
    storage: Storage,
    report: Report,
    *,
    deliveries: list[tuple[int, int, int]],
    at_once: int,
    lease: float,
    pause: float,
) -> None:
    """Handle messages, each given by its number, user and update id. The handler stores the ids that it has handled."""
    router = Router(FSM(BOT, storage=storage, flows=[], lease=lease))
    window = asyncio.Semaphore(at_once)

    @router.on()
    async def store_id(ctx: Context) -> None:
        began = time.monotonic()
        seen = ctx.data.get("seen", [])
        await asyncio.sleep(pause)
        ctx.update_data(seen=[*seen, ctx.update.update_id])
        ctx.answer(f"{ctx.update.update_id}")
        report("handled", ctx.update.update_id, began, time.monotonic())

    async def deliver(number: int, user: int, update_id: int) -> None:
        person = {"id": user, "is_bot": False, "first_name": "A"}
        message = {"message_id": 1, "date": 1, "from": person, "chat": {"id": user, "type": "private"}, "text": "hi"}
        async with window:
            calls = await handled(router, {"update_id": update_id, "message": message})
        report("acknowledged", number, [call["text"] for call in calls])

    await asyncio.gather(*(deliver(*delivery) for delivery in deliveries))


async def register(storage: Storage, report: Report, *, update: dict[str, Any], hang: str = "") -> None:
    """Answer one update as the registration bot, then wait for the kill; ``hang``: hang before or after the commit."""
    router = Router(FSM("registration_bot", storage=storage, flows=[Registration], lease=0.5))

    def hangs(ctx: Context | None = None) -> bool:
        report("hangs")
        time.sleep(600)
        return False

    if hang == "holding":
        router.on(hangs)(hangs)
    router.include(handlers)
    calls = await handled(router, update)
    if hang == "committed":
        hangs()
    report("answered", [call["text"] for call in calls])
    await asyncio.Event().wait()


async def handled(router: Router, update: dict[str, Any]) -> list[dict[str, Any]]:
    while True:
        try:
            return await router.handle(update)
        except LeaseLost:
            # The lease is short for a busy machine. Nothing was written, so the update is delivered again.
            continue


async def history(storage: Storage, report: Report, *, tasks: int, each: int, keys: int, seed: int) -> None:
    """Run random operations on a few keys, and report time and result of each."""
    done: list[tuple[Any, ...]] = []

    async def one(task: int) -> None:
        choose = random.Random(seed * 1000 + task)
        for _ in range(each):
            key = choose.randrange(keys)
            kind = choose.choices(["get", "merge", "replace", "delete", "claim"], [4, 4, 1, 1, 3])[0]
            await OPERATIONS[kind](storage, done, key)

    await asyncio.gather(*(one(task) for task in range(tasks)))
    for entry in done:
        report("op", *entry)


Done = list[tuple[Any, ...]]


async def _get(storage: Storage, done: Done, key: int) -> None:
    start = time.monotonic()
    found = await storage.perform(Get(storage.address(BOT, key)))
    _saw(storage, done, key, "get", start, found)


async def _merge(storage: Storage, done: Done, key: int) -> None:
    await _apply(storage, done, key, "merge", None)


async def _replace(storage: Storage, done: Done, key: int) -> None:
    await _apply(storage, done, key, "replace", None)


async def _delete(storage: Storage, done: Done, key: int) -> None:
    await _apply(storage, done, key, "delete", None)


async def _claim(storage: Storage, done: Done, key: int) -> None:
    address = storage.address(BOT, key)
    token = storage.ids()
    start = time.monotonic()
    claimed = await storage.perform(Claim(address, token, 30.0))
    if isinstance(claimed, Claimed):
        _saw(storage, done, key, "claim", start, claimed.record)
        await asyncio.sleep(0)
        await _apply(storage, done, key, "merge", Guard(token, claimed.base), held_from=time.monotonic())


async def _apply(
    storage: Storage, done: Done, key: int, kind: str, guard: Guard | None, held_from: float | None = None
) -> None:
    address = storage.address(BOT, key)
    write = storage.ids()
    if kind == "delete":
        change = Change(write=write, delete=True)
    else:
        change = Change(write=write, replace=kind == "replace", set=storage.seal(address).fields({"write": write}))
    start = time.monotonic()
    try:
        applied = await storage.perform(Apply(address, change, guard))
    except Conflict:
        if guard is not None and guard.token is not None:
            # Nothing was written, and the claim must still be released.
            await storage.perform(Release(address, guard.token))
        return
    # A delete without a record writes nothing. It counts as a read that found no record.
    kind = "nothing" if applied.version.write != write else kind
    done.append((kind, key, start, time.monotonic(), *applied.version, held_from))


def _saw(storage: Storage, done: Done, key: int, kind: str, start: float, record: Any) -> None:
    if record is None:
        done.append((kind, key, start, time.monotonic(), None, None, None))
        return
    data = storage.seal(storage.address(BOT, key)).data(record.fields)
    # The data must be that of the write with this version.
    assert data["write"] == record.version.write, "version and data come from different writes"
    done.append((kind, key, start, time.monotonic(), *record.version, None))


OPERATIONS = {"get": _get, "merge": _merge, "replace": _replace, "delete": _delete, "claim": _claim}
