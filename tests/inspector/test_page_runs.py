"""Runs and queues in a real browser: what needs attention, lists, the timeline, the graph, and the keyboard."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import pairwise
from typing import Any

import pytest
from playwright.async_api import expect

from stepwell.inspector import subject
from stepwell.nodes import Limit, Node, NodeFlow, Parked, Wait, worker
from stepwell.operate.processes import LastHour, Minute
from stepwell.storage import Storage
from tests.constants import Constants
from tests.inspector import shop

pytestmark = pytest.mark.asyncio(loop_scope="module")


#: How many labels of a graph cover a node or another label, and the height of a name.
MEASURED = """() => {
  const boxes = (name) =>
    [...document.querySelectorAll(`.zoom ${name}`)].map((each) => each.getBoundingClientRect());
  const labels = boxes("text.action"), nodes = boxes("g.state > rect:first-of-type");
  const meet = (a, b) =>
    a.left + 1 < b.right && b.left + 1 < a.right && a.top + 1 < b.bottom && b.top + 1 < a.bottom;
  const bad = labels.filter((one, at) =>
    nodes.some((two) => meet(one, two)) || labels.some((two, other) => other > at && meet(one, two)));
  return [bad.length, boxes("g.state text.name")[0].height];
}"""


class Turn(Node):
    """Goes back twice."""

    def post(self, shared: dict[str, Any], prepared: Any, done: Any) -> str:
        count = shared[self.name] = shared.get(self.name, 0) + 1
        return "again" if count < 3 else "ok"


def long_flow() -> NodeFlow:
    """Return a flow of 60 nodes, with edges that lead back and forth between two nodes."""
    nodes: list[Any] = [(Turn if at % 10 == 8 else Node)(name=f"step_{at}") for at in range(60)]
    for one, two in pairwise(nodes):
        if isinstance(one, Turn):
            _ = one - "ok" >> two
        else:
            one >> two
    for at in range(8, 60, 10):
        _ = nodes[at] - "again" >> nodes[at - 1]
    for at in range(3, 50, 7):
        _ = nodes[at] - "skip" >> nodes[at + 5]
    return NodeFlow(nodes[0], name="long")


async def test_the_overview_says_what_is_wrong_and_leads_there(visits: Any) -> None:
    visit = await visits(allow_write=True)
    card = visit.card("Needs attention")
    await expect(card).to_contain_text("2 runs have failed")
    await expect(card).to_contain_text("no worker of this flow was seen")
    await card.get_by_role("link", name="2 runs have failed", exact=True).click()
    await expect(visit.card("Runs").get_by_role("row")).to_have_count(3)
    await visit.open("overview")
    await card.get_by_role("link", name="Show: 1 run of approval waits in the queue").click()
    await expect(visit.page.get_by_role("link", name="queued-1")).to_be_visible()
    await visit.page.get_by_role("link", name="Queues").first.click()
    await expect(visit.card("Queues")).to_contain_text("nobody")


async def test_the_last_hour_is_drawn(visits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    look = subject.look

    async def seen(storage: Storage) -> Any:
        now = time.time() // 60 * 60
        minutes = [Minute(now - 60 * at, at, at % 3, 0.25, 80.0) for at in range(59, 0, -1)]
        return (await look(storage))._replace(hour=LastHour({"worker": minutes}, []))

    monkeypatch.setattr(subject, "look", seen)
    visit = await visits()
    chart = visit.page.get_by_role("img", name="runs a minute: 1 in the last minute, at most 59 in the last hour")
    await expect(chart).to_be_visible()
    await expect(visit.page.get_by_role("img", name=re.compile("wait in the queue: 80 s"))).to_be_visible()


async def test_runs_are_sorted_by_the_address_and_several_are_retried_at_once(
    visits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = await visits(allow_write=True)
    await visit.open("runs")
    await visit.card("Runs").get_by_role("link", name="run", exact=True).click()
    await expect(visit.page).to_have_url(re.compile("sort=run"))
    await expect(visit.card("Runs").get_by_role("row").nth(1)).to_contain_text("approve-1")
    await visit.page.get_by_label("Choose all of this page").check()
    await visit.press("Retry 2")
    monkeypatch.setattr(shop.Charge, "declined", False)
    monkeypatch.setattr(shop.Pack, "exec", lambda self, item: item)
    await visit.confirm("Retry")
    await expect(visit.page.locator("body")).to_contain_text("2 runs: The run is in the queue.")
    _, charging, _, packing = shop.flows()
    async with worker([charging, packing], storage=visit.storage):
        await visit.open("runs?status=finished")
        await expect(visit.card("Runs").get_by_role("row")).to_have_count(3)
    await visit.page.get_by_role("navigation", name="Counts").get_by_role("link", name="parked 1").click()
    await visit.page.get_by_label("Choose approve-1").check()
    await visit.press("Cancel the runs")
    confirm = visit.dialog.get_by_role("button", name="Cancel the run")
    await expect(confirm).to_be_disabled()
    await visit.page.get_by_label("Type 1 to confirm").fill("1")
    await confirm.click()
    await expect(visit.page.get_by_text("No run matches.")).to_be_visible()


async def test_a_wait_of_80_seconds_shows_as_80_seconds(visits: Any) -> None:
    visit = await visits()
    flow: NodeFlow = NodeFlow(Wait("approved"), name="asking")
    now = 1_700_000_000.0
    visit.storage.clock = lambda: now
    try:
        with pytest.raises(Parked):
            await flow.run({}, storage=visit.storage, flow_id="asked", keep=True)
        now += 80
        await flow.answer("asked", "yes", by="anna", storage=visit.storage)
        await flow.resume("asked", storage=visit.storage)
    finally:
        visit.storage.clock = None
    await visit.open("run?id=asked")
    row = visit.card("Timeline").get_by_role("row", name="approved")
    await expect(row.get_by_role("cell", name="80 s", exact=True)).to_be_visible()
    await expect(row).to_contain_text("by anna")
    await expect(row.get_by_role("img")).to_have_attribute("aria-label", re.compile("waited 80 s, ran"))


async def test_the_shared_state_is_edited_and_the_difference_is_shown_before(visits: Any) -> None:
    visit = await visits(allow_write=True)
    await visit.open("run?id=charge-1")
    await visit.press("Change order")
    await visit.page.get_by_label("Value").fill('{"number": 7}')
    diff = visit.dialog.get_by_role("group", name="What changes")
    await expect(diff).to_contain_text('- order: "charge-1"')
    await expect(diff).to_contain_text('+ order: {"number": 7}')
    await visit.confirm("Set")
    await expect(visit.card("Shared state")).to_contain_text("number 7")


async def test_a_graph_of_60_nodes_is_readable(visits: Any) -> None:
    flow = long_flow()
    visit = await visits(flows=[flow])
    await flow.run({}, storage=visit.storage, flow_id="long-1", keep=True)
    await visit.open("run?id=long-1")
    graph = visit.card("Graph")
    await expect(graph.locator("g.state")).to_have_count(60)
    await expect(graph.locator('g.state[data-state="step_8"]')).to_contain_text("3 visits")
    await expect(graph.get_by_text("again ×2").first).to_be_visible()
    # No label covers a node or another label, and names are as large as other texts.
    overlaps, height = await visit.page.evaluate(MEASURED)
    assert (overlaps, height > 11) == (0, True)
    before = (await graph.locator("svg").bounding_box())["width"]
    await visit.press("Zoom in")
    assert (await graph.locator("svg").bounding_box())["width"] > before
    await visit.press("Fit the graph")
    box, svg = await graph.locator(".zoomed").bounding_box(), await graph.locator("svg").bounding_box()
    assert svg["width"] <= box["width"] and svg["height"] <= box["height"] + 1


async def test_the_keyboard_opens_pages_and_rows_and_the_palette_finds_runs(visits: Any) -> None:
    visit = await visits()
    keyboard = visit.page.keyboard
    await keyboard.press("g")
    await keyboard.press("r")
    await expect(visit.page.get_by_role("link", name="pack-1")).to_be_visible()
    for key in ("j", "j", "k", "j"):
        await keyboard.press(key)
    await expect(visit.page.get_by_role("link", name="pack-1")).to_be_focused()
    await keyboard.press("Enter")
    await expect(visit.card("pack-1")).to_be_visible()
    await keyboard.press("/")
    search = visit.page.get_by_role("combobox", name="Search or go to")
    await expect(search).to_be_focused()
    await keyboard.type("approve-1")
    await expect(visit.page.get_by_role("option", name="Run approve-1")).to_have_attribute("aria-selected", "true")
    await keyboard.press("Enter")
    await expect(visit.card("approve-1")).to_be_visible()
    await keyboard.press("Control+k")
    await search.fill("que")
    await keyboard.press("Enter")
    await expect(visit.card("Queues")).to_be_visible()


async def test_nothing_jumps_while_a_list_changes(visits: Any) -> None:
    visit = await visits(allow_write=True)
    await visit.open("runs")
    pack = visit.page.get_by_role("link", name="pack-1")
    await pack.focus()
    place = await pack.bounding_box()
    await visit.page.get_by_label("Choose charge-1").check()
    await visit.press("Clear")
    await pack.focus()
    await shop.flows()[2].submit({}, storage=visit.storage, flow_id="queued-2")
    await expect(visit.page.get_by_role("link", name="queued-2")).to_be_visible()
    await expect(pack).to_be_focused()
    assert await pack.bounding_box() == place


async def test_queues_show_workers_and_limits(visits: Any, constants: Constants) -> None:
    constants(presence_first=0.01)
    visit = await visits()
    flow = NodeFlow(Node(), name="mailing")
    started = asyncio.Event()

    class Slow(Node):
        async def exec(self, _: Any) -> None:
            started.set()
            await asyncio.sleep(3600)

    slow = NodeFlow(Slow(), name="slow")
    async with worker([flow, slow], storage=visit.storage, limits={slow: Limit(everywhere=1)}, drain=0):
        for number in range(3):
            await slow.submit({}, storage=visit.storage, flow_id=f"slow-{number}")
        await started.wait()
        await visit.open("queues")
        row = visit.card("Queues").get_by_role("row", name="slow")
        await expect(row).to_contain_text("1 worker, at most 32 runs at once")
        await expect(row).to_contain_text("1 at once in all workers")
        await expect(row).to_contain_text("slow-1")
