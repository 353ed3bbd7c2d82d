"""A storage as an operator finds it: conversations, one of them in a removed state, and runs that wait or failed."""

from __future__ import annotations

import contextlib
from typing import Any

from stepwell.fsm import FSM, Flow, state
from stepwell.nodes import BatchNode, Node, NodeFlow, Parked, RunFailed, Wait, every
from stepwell.operate.edits import Edit, edit
from stepwell.operate.record import read
from stepwell.storage import Storage

#: A value that would be markup.
MARKUP = "<img src=x onerror=alert(1)>"


class Order(Flow, name="order"):
    """The flow of the bot."""

    item = state(to=["address"])
    address = state(to=["paid"], timeout=600, on_timeout="item")
    paid = state(to=[])
    default_state = item


class Charge(Node):
    """Fails until the card is valid."""

    declined = True

    def exec(self, prepared: Any) -> None:
        if self.declined:
            raise RuntimeError(f"the card was declined {MARKUP}")


class Approve(Wait):
    """Asks a person."""

    def prep(self, shared: dict[str, Any]) -> Any:
        return {"text": "Approve it?", "token": "123:abc"}


class Pack(BatchNode):
    """Fails at the third of five items."""

    max_retries = 1

    def prep(self, shared: dict[str, Any]) -> Any:
        return range(5)

    def exec(self, item: int) -> int:
        if item == 2:
            raise RuntimeError("no more boxes")
        return item


def flows() -> list[Any]:
    """Return all flows."""
    count = Node(name="Count")
    count >> Pack()
    return [
        Order,
        NodeFlow(Charge(), name="charging"),
        NodeFlow(Approve("approved"), name="approval"),
        NodeFlow(count, name="packing"),
    ]


async def fill(storage: Storage) -> None:
    """Write the records and runs."""
    fsm = FSM("shop", storage=storage, flows=[Order], run_timers=False)
    for user, name in ((42, "Anna"), (43, "Bob"), (44, MARKUP)):
        async with fsm.conversation(key=(user, user)) as ctx:
            ctx.start_flow(Order)
            ctx.update_data(name=name, password="hunter2", to={"city": "Rome", "lines": (1, 2)})
            if user != 44:
                ctx.transition("address")
    address = storage.address("shop", (44, 44))
    version = (await read(storage, address)).version
    # As a release leaves it that removed the state.
    await edit(storage, address, Edit(state="voucher"), version=version, who="the test")
    _, charging, approval, packing = flows()
    for flow, flow_id in ((charging, "charge-1"), (approval, "approve-1"), (packing, "pack-1")):
        with contextlib.suppress(RuntimeError, Parked, RunFailed):
            await flow.run({"order": flow_id, "api_key": "sk-1"}, storage=storage, flow_id=flow_id, keep=True)
    await approval.submit({}, storage=storage, flow_id="queued-1", partition="eu", priority=3)
    await every(3600, charging, name="nightly").declare(storage)
