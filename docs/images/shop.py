"""The shop in the pictures: conversations and runs as a storage has them after some days."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from itertools import pairwise
from typing import Any

from stepwell.fsm import FSM, Flow, state
from stepwell.nodes import BatchNode, Node, NodeFlow, Parked, RunFailed, Wait, every
from stepwell.operate.edits import Edit, edit
from stepwell.operate.record import read
from stepwell.storage import Storage

__all__ = ["Order", "PastClock", "fill", "flows"]

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
#: How many conversations rest in each state, and for how long at most.
RESTING = {"item": (34, 40 * MINUTE), "address": (12, 3 * HOUR), "payment": (7, 6 * DAY), "paid": (128, 9 * DAY)}
#: The users have the numbers after this one.
FIRST = 40
NAMES = ("Anna", "Bob", "Chen", "Dana", "Emil", "Femi", "Gita", "Hugo")
CITIES = ("Rome", "Oslo", "Lagos", "Kyoto")
STATES = tuple(RESTING)


class Order(Flow, name="order"):
    """An order in a chat."""

    item = state(to=["address"])
    address = state(to=["payment", "item"], timeout=4 * HOUR, on_timeout="item")
    payment = state(to=["paid", "address"])
    paid = state(to=[])
    default_state = item


class Pause(Node):
    """Takes a while."""

    async def exec(self, prepared: Any) -> None:
        await asyncio.sleep(random.uniform(0.02, 0.2))


class Charge(Pause):
    """Fails: the card is declined."""

    async def exec(self, prepared: Any) -> None:
        await super().exec(prepared)
        raise RuntimeError("the card was declined: insufficient funds")


class Approve(Wait):
    """Asks a person."""

    def prep(self, shared: dict[str, Any]) -> Any:
        return {"question": "Refund this order?", "order": shared["order"], "amount": shared["amount"]}


class Pack(BatchNode):
    """Fails at the box that is missing."""

    def prep(self, shared: dict[str, Any]) -> Any:
        return range(12)

    async def exec(self, item: int) -> int:
        await asyncio.sleep(0.02)
        if item == 7:
            raise RuntimeError("no more boxes of this size")
        return item


def flows() -> list[Any]:
    """Return all flows."""
    return [
        Order,
        _chain("charging", Pause(name="check stock"), Charge(2), Pause(name="send receipt")),
        _chain("refund", Pause(name="load order"), Approve("approved"), Pause(name="pay back")),
        _chain("packing", Pause(name="count"), Pack(), Pause(name="label")),
    ]


def _chain(name: str, *nodes: Any) -> NodeFlow:
    for one, other in pairwise(nodes):
        one >> other
    return NodeFlow(nodes[0], name=name)


class PastClock:
    """A clock that can be set back."""

    def __init__(self) -> None:
        self.back: float = 0.0

    def __call__(self) -> float:
        return time.time() - self.back


async def fill(storage: Storage, clock: PastClock) -> None:
    """Write conversations and runs of the last days."""
    chance = random.Random(7)
    fsm = FSM("shop", storage=storage, flows=[Order], run_timers=False)
    user = FIRST
    for resting, (count, longest) in RESTING.items():
        for number in range(count):
            user += 1
            age = longest * (1 - number / count) ** 3 + 20
            steps = STATES[: STATES.index(resting) + 1]
            clock.back = age + 300.0 * (len(steps) - 1)
            for name in steps:
                await _move(fsm, user, name, chance)
                clock.back -= chance.uniform(20, 300)
    clock.back = 26 * HOUR
    old = 1 + sum(count for count, _ in RESTING.values()) - RESTING["paid"][0] + FIRST
    address = storage.address("shop", (old, old))
    version = (await read(storage, address)).version
    # As a release leaves it that removed the state.
    await edit(storage, address, Edit(state="voucher"), version=version, who="the pictures")
    _, charging, refund, packing = flows()
    orders = iter(range(1001, 1100))
    for flow, count, longest in ((charging, 3, 4 * HOUR), (refund, 5, 2 * DAY), (packing, 1, HOUR)):
        for number in range(count):
            clock.back = longest * (1 - number / count)
            order = next(orders)
            shared = {"order": order, "amount": 10 * chance.randint(1, 9), "api_key": "sk-1"}
            with contextlib.suppress(RuntimeError, Parked, RunFailed):
                await flow.run(shared, storage=storage, flow_id=f"{flow.name}-{order}")
    clock.back = 90
    for number in range(4):
        shared = {"order": next(orders), "amount": 20}
        await refund.submit(shared, storage=storage, flow_id=f"refund-queued-{number}", partition="eu", priority=number)
    clock.back = 0
    await every(3600, charging, name="nightly").declare(storage)


async def _move(fsm: FSM, user: int, name: str, chance: random.Random) -> None:
    async with fsm.conversation(key=(user, user)) as ctx:
        if name == "item":
            ctx.start_flow(Order)
            ctx.update_data(name=chance.choice(NAMES), item="tea", count=chance.randint(1, 5))
        else:
            ctx.transition(name)
        if name == "address":
            ctx.update_data(to={"city": chance.choice(CITIES), "lines": ("High Street 1", "2nd floor")})
        if name == "payment":
            ctx.update_data(card_number="4111 1111 1111 1111")
