"""Planted faults of runs and conversations: each is found from the overview, and set right with at most four clicks."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from playwright.async_api import expect

from stepwell.nodes import Node, NodeFlow, worker
from stepwell.storage import Storage
from tests.constants import Constants
from tests.inspector import shop

pytestmark = pytest.mark.asyncio(loop_scope="module")
#: The most clicks from the overview until a fault is set right.
MOST_CLICKS = 4


class Pay(Node):
    """Is interrupted in a call that must not be repeated."""

    replay = "never"
    is_killed = True

    async def exec(self, prepared: Any) -> str:
        if self.is_killed:
            raise KeyboardInterrupt
        return "paid"

    def post(self, shared: dict[str, Any], prepared: Any, done: Any) -> None:
        shared["receipt"] = done


class Clicks:
    """Clicks in a page, and counts them."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self.count = 0

    async def __call__(self, role: str, name: str) -> None:
        self.count += 1
        box = self._page.get_by_role("dialog") if await self._page.locator("dialog[open]").count() else self._page
        await box.get_by_role(role, name=name, exact=True).first.click()


async def test_a_failed_run_is_retried(visits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    visit = await visits(allow_write=True)
    click = Clicks(visit.page)
    await click("link", "2 runs have failed")
    monkeypatch.setattr(shop.Charge, "declined", False)
    await click("link", "charge-1")
    await click("button", "Retry")
    await click("button", "Retry")
    assert click.count <= MOST_CLICKS
    async with worker([shop.flows()[1]], storage=visit.storage):
        await expect(visit.card("charge-1")).to_contain_text("finished")


async def test_a_stuck_run_is_completed(visits: Any) -> None:
    flow: NodeFlow = NodeFlow(Pay(), name="paying")
    visit = await visits(allow_write=True, flows=[*shop.flows(), flow])
    await leave_stuck(flow, visit.storage)
    click = Clicks(visit.page)
    await expect(visit.card("Needs attention")).to_contain_text("1 run is stuck")
    await click("link", "1 run is stuck")
    await click("link", "pay-1")
    await click("button", "Complete a call")
    await visit.page.get_by_label("Result").fill("r-815")
    await click("button", "Complete")
    assert click.count <= MOST_CLICKS
    async with worker([flow], storage=visit.storage):
        await expect(visit.card("pay-1")).to_contain_text("finished")
    await expect(visit.card("Shared state")).to_contain_text("r-815")


async def leave_stuck(flow: NodeFlow, storage: Storage) -> None:
    """Store a run whose call has an unknown outcome."""
    with contextlib.suppress(KeyboardInterrupt, Exception):
        await flow.run({}, storage=storage, flow_id="pay-1", keep=True)
    with contextlib.suppress(Exception):
        await flow.resume("pay-1", storage=storage)


async def test_a_conversation_in_a_removed_state_is_moved(visits: Any) -> None:
    visit = await visits(allow_write=True)
    click = Clicks(visit.page)
    await click("link", "1 conversation of shop in 'voucher', a state that the flow 'order' does not have")
    await click("link", "(44,44)")
    await click("button", "Set state")
    await click("button", "Set state")
    assert click.count <= MOST_CLICKS
    await expect(visit.card("shop (44,44)")).not_to_contain_text("not in the flow")


async def test_a_question_that_nobody_answered_is_answered(visits: Any) -> None:
    visit = await visits(allow_write=True)
    click = Clicks(visit.page)
    await click("link", "1 run waits for an answer or for other runs")
    await click("link", "approve-1")
    await click("button", "Answer")
    await visit.page.get_by_role("textbox", name="Answer").fill("yes")
    await click("button", "Answer")
    assert click.count <= MOST_CLICKS
    await expect(visit.card("Waits")).to_contain_text("An answer is stored")


async def test_a_dead_worker_and_its_full_queue_are_found(visits: Any, constants: Constants) -> None:
    constants(presence_first=0.01, presence_every=60, presence_kept=0.2, died=0.2)
    visit = await visits(allow_write=True)
    flow = NodeFlow(Node(), name="mailing")
    died = worker([flow], storage=visit.storage)
    async with died:
        await visit.open("overview")
        await expect(visit.card("Processes")).to_contain_text("mailing")
        # As a process that is killed: it writes nothing any more.
        assert died._presence._task is not None
        died._presence._task.cancel()
        await expect(visit.card("Needs attention")).to_contain_text("the worker of mailing has died")
    for number in range(3):
        await flow.submit({}, storage=visit.storage, flow_id=f"mail-{number}")
    click = Clicks(visit.page)
    await click("link", "3 runs of mailing wait in the queue, and no worker of this flow was seen")
    await expect(visit.card("mailing").get_by_role("row")).to_have_count(4)
    async with worker([flow], storage=visit.storage):
        await visit.open("queues")
        await expect(visit.page.get_by_role("link", name="mailing")).to_have_count(0)
