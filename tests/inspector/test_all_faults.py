"""Twelve planted faults: each is found on the overview and set right in at most four clicks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from playwright.async_api import Locator, expect

from stepwell import State
from stepwell.errors import RunStuck
from stepwell.fsm import FSM
from stepwell.nodes import Node, NodeFlow, linear, worker
from stepwell.nodes.control import ending
from stepwell.operate.runs import show_run
from stepwell.record import PROCESSES
from stepwell.storage import Storage
from stepwell.storage.presence import HISTORY
from stepwell.telegram.engine import updates_aside, updates_in_inbox
from stepwell.turns import Turn, Turns
from tests.constants import Constants
from tests.inspector import desk, shop
from tests.inspector.visit import Visit
from tests.turns.people import People
from tests.until import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: The most clicks from the overview until a fault is set right.
MOST = 4


class Pay(Node):
    """Pays, which must not happen twice."""

    replay = "never"
    began: asyncio.Event
    may_end: asyncio.Event

    async def exec(self, prepared: Any) -> str:
        self.began.set()
        await self.may_end.wait()
        return "receipt"

    def post(self, shared: dict[str, Any], prepared: Any, done: Any) -> None:
        shared["receipt"] = done


def paying() -> NodeFlow:
    """Return a flow whose node pays."""
    return linear(Pay(name="Pay"), name="paying")


async def plant(storage: Storage) -> None:
    """Write all faults."""
    await shop.fill(storage)
    await desk.fill(storage)
    Pay.began, Pay.may_end = asyncio.Event(), asyncio.Event()

    async def nothing(journal: Any, **options: Any) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        # As a kill does: the runner writes nothing more.
        patch.setattr(ending, "_interrupt", nothing)
        for flow_id in ("pay-1", "pay-2"):
            running = asyncio.create_task(paying().run({}, storage=storage, flow_id=flow_id, keep=True))
            await Pay.began.wait()
            Pay.began.clear()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    Pay.may_end.set()
    for flow_id in ("pay-1", "pay-2"):
        with pytest.raises(RunStuck):
            await paying().resume(flow_id, storage=storage)
    dead = {
        "kind": "worker", "of": ["charging"], "host": "web-1", "pid": 4711, "presence": "gone", "ended": False,
        "minutes": [], "columns": [],
    }  # fmt: skip
    await storage.set_state(PROCESSES, "dead", State(HISTORY, None, dead))


class Desk:
    """Counts the clicks of an operator."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.clicks = 0

    async def click(self, where: Locator) -> None:
        self.clicks += 1
        await where.click()

    async def problem(self, text: str) -> None:
        """Click on a problem of the overview."""
        await self.visit.open("overview")
        self.clicks = 0
        await self.click(
            self.visit.card("Needs attention").get_by_role("link", name=re.compile(f"^(?!Show: ).*{text}"))
        )

    async def row(self, name: str) -> None:
        """Click on the link in the row of a list."""
        await self.click(self.visit.page.locator("#content").get_by_role("link", name=name, exact=True))

    async def choose(self, card: str, row: str) -> None:
        """Click on the box of a row."""
        await self.click(self.visit.card(card).get_by_role("row", name=row).get_by_role("checkbox"))

    async def press(self, name: str, confirm: str | None = None, **filled: str) -> None:
        """Press a button, fill the fields of its dialog, and confirm it."""
        await self.click(self.visit.page.locator("#content").get_by_role("button", name=name, exact=True))
        for label, value in filled.items():
            await self.visit.dialog.get_by_label(label, exact=True).fill(value)
        await self.click(self.visit.dialog.get_by_role("button", name=confirm or name, exact=True))
        await expect(self.visit.dialog).to_have_count(0)


async def test_twelve_planted_faults_are_each_found_and_set_right_in_at_most_four_clicks(
    visits: Any, constants: Constants, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants(processes_died=0.0, presence_first=0.01)
    visit: Visit = await visits(fill=plant, allow_write=True, name="otto")
    person, storage = Desk(visit), visit.storage

    # The overview may show its counts of a moment ago.
    stuck, updates = "runs? (is|are) stuck", "updates? of desk (has|have) failed"

    async def status(flow_id: str) -> str:
        return (await show_run(storage, flow_id)).status

    async def a_failed_run() -> None:
        monkeypatch.setattr(shop.Charge, "declined", False)
        monkeypatch.setattr(shop.Pack, "exec", lambda self, item: item)
        await person.problem("2 runs have failed")
        await person.click(visit.page.get_by_label("Choose all of this page"))
        await person.press("Retry")
        assert {await status("charge-1"), await status("pack-1")} == {"queued"}

    async def a_stuck_run() -> None:
        await person.problem(stuck)
        await person.row("pay-1")
        await person.press("Retry")
        assert await status("pay-1") == "queued"

    async def an_unknown_effect() -> None:
        await person.problem(stuck)
        await person.row("pay-2")
        await person.press("Complete a call", "Complete", **{"Result (JSON, or else a text)": "receipt 7"})
        assert await status("pay-2") == "queued"

    async def a_question_of_a_run() -> None:
        await person.problem("1 run waits for an answer")
        await person.row("approve-1")
        await person.press("Answer", **{"Answer (JSON, or else a text)": "yes"})
        await expect(visit.card("Waits")).to_contain_text("An answer is stored")

    async def a_question_of_a_turn() -> None:
        await person.problem("1 turn of turns waits for the answer")
        await person.row("(42,0)")
        await person.press("Answer")
        await expect(visit.page.locator("#toasts")).to_contain_text("The answer was accepted.")

    async def failed_turns() -> None:
        await person.problem("2 conversations of desk have failed turns")
        await person.click(visit.page.get_by_label("Choose all of this page"))
        await person.press("Retry")
        await expect(visit.page.locator("#content")).to_contain_text("No conversation matches.")

    async def refused_answers() -> None:
        await person.problem("2 answers of desk have been refused")
        await person.click(visit.card("Refused answers").get_by_label("Choose all of this page"))
        await person.press("Resend")
        await expect(visit.card("Refused answers")).to_have_count(0)

    async def a_poison_update() -> None:
        await person.problem(updates)
        await person.choose("Failed updates", "its process has ended each time")
        await person.press("Retry")
        assert [each.chat for each in await updates_in_inbox(storage, "desk")] == [46]

    async def a_failed_update() -> None:
        await person.problem(updates)
        await person.choose("Failed updates", "its handler raised ValueError")
        await person.press("Drop")
        assert await updates_aside(storage, "desk") == []

    async def a_wrong_state() -> None:
        await person.problem("1 conversation of shop in 'voucher'")
        await person.row("(44,44)")
        await person.press("Set state")
        assert (await storage.get_state("shop", (44, 44))).state == "item"

    async def a_full_queue() -> None:
        await person.problem("1 run of approval waits in the queue, and no worker")
        await person.row("queued-1")
        await person.press("Cancel the run", **{"Type queued-1 to confirm": "queued-1"})
        assert await status("queued-1") == "cancelled"

    async def a_dead_worker() -> None:
        await person.problem("the worker of charging has died")
        await expect(visit.card("Needs attention")).to_contain_text("process 4711 on web-1")
        # It is started again below.

    faults: list[Callable[[], Awaitable[None]]] = [
        a_dead_worker, a_failed_run, a_stuck_run, an_unknown_effect, a_question_of_a_run, a_question_of_a_turn,
        failed_turns, refused_answers, a_poison_update, a_failed_update, a_wrong_state, a_full_queue,
    ]  # fmt: skip
    for fault in faults:
        await fault()
        assert (fault.__name__, person.clicks <= MOST) == (fault.__name__, True)
    assert len(faults) == 12
    async with AsyncExitStack() as stack:
        turns, people = Turns("desk", storage=storage, collect=0.0), People()

        @turns.handler
        async def answer(turn: Turn) -> None:
            await turn.ask("Refund 40 €?") if "refund" in turn.text else turn.answer("It works again.")

        flows = [*shop.flows()[1:], paying()]
        await stack.enter_async_context(turns.worker(send=people.send, drain=0))
        await stack.enter_async_context(worker(flows, storage=storage))
        await stack.enter_async_context(FSM("desk", storage=storage, flows=[], send=people.send))
        await until(lambda: [text for text in people.texts if text == "It works again."], lambda found: len(found) == 2)
        await until(
            lambda: [text for text in people.texts if text.startswith("Your order")], lambda sent: len(sent) == 2
        )
        for flow_id in ("charge-1", "pack-1", "pay-1", "pay-2", "approve-1"):
            await until(lambda flow_id=flow_id: status(flow_id), lambda found: found == "finished")
        await visit.open("overview")
        wrong = re.compile("failed|stuck|died|refused|no worker|does not have")
        await expect(visit.card("Needs attention")).not_to_contain_text(wrong)
