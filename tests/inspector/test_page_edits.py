"""Edits in a real browser: conversations are moved, runs are answered and resumed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import expect

from stepwell.fsm import FSM
from stepwell.nodes import worker
from tests.inspector import shop

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_conversation_in_a_removed_state_is_found_and_moved(visits: Any) -> None:
    visit = await visits(allow_write=True)
    await visit.page.get_by_role("link", name="Flows").click()
    await visit.page.locator('g.state.bad[data-state="voucher"]').click()
    await visit.page.get_by_role("link", name="(44,44)").click()
    await expect(visit.card("shop (44,44)")).to_contain_text("not in the flow")
    await visit.press("Set state")
    await visit.page.get_by_role("combobox", name="State").select_option("item")
    await visit.shot("dialog")
    await visit.confirm("Set state")
    await expect(visit.card("shop (44,44)")).not_to_contain_text("not in the flow")
    await visit.press("Change name")
    await visit.page.get_by_label("Value").fill("Cleo")
    await visit.confirm("Set")
    await expect(visit.card("Data")).to_contain_text("Cleo")


async def test_the_second_of_two_editors_sees_the_conflict_and_nothing_is_lost(visits: Any) -> None:
    first, second = await visits(allow_write=True), await visits(allow_write=True)
    for each in (first, second):
        await each.open("record?bot=shop&key=(43,43)")
        await each.press("Change name")
    await first.page.get_by_label("Value").fill("Ben")
    await first.confirm("Set")
    await expect(first.card("Data")).to_contain_text("Ben")
    await second.page.get_by_label("Value").fill("Bert")
    await second.confirm("Set")
    await expect(second.page.get_by_role("alert")).to_contain_text("(changed fields: name). Nothing was written.")
    await expect(second.page.locator("#content")).to_contain_text("Ben")
    await expect(second.page.get_by_label("Value")).to_have_value("Bert")
    await second.shot("conflict")
    await second.confirm("Set")
    await expect(second.dialog).to_have_count(0)
    await expect(second.card("Data")).to_contain_text("Bert")
    # The page of the first editor shows it too.
    await expect(first.card("Data")).to_contain_text("Bert")


async def test_a_parked_run_is_answered_and_finishes(visits: Any) -> None:
    visit = await visits(allow_write=True)
    await visit.open("run?id=approve-1")
    await expect(visit.card("Waits")).to_contain_text("Approve it?")
    assert "123:abc" not in await visit.page.content()
    await visit.press("Answer")
    await visit.page.get_by_role("textbox", name="Answer").fill('{"ok":')
    await visit.dialog.get_by_role("button", name="Answer", exact=True).click()
    await expect(visit.dialog).to_contain_text("the value begins like JSON and is not JSON")
    # Chromium writes a line for this response.
    assert ["400 (Bad Request)" in problem for problem in visit.problems] == [True]
    visit.problems.clear()
    await visit.page.get_by_role("textbox", name="Answer").fill("yes")
    await visit.confirm("Answer")
    await expect(visit.card("Waits")).to_contain_text("An answer is stored")
    await expect(visit.page.get_by_role("button", name="Answer", exact=True)).to_have_count(0)
    async with worker([shop.flows()[2]], storage=visit.storage):
        await expect(visit.card("approve-1")).to_contain_text("finished")
    await expect(visit.card("Shared state")).to_contain_text(re.compile("approved *yes"))


async def test_a_failed_run_is_resumed_after_its_cause_is_fixed_and_finishes(
    visits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = await visits(allow_write=True)
    charging = shop.flows()[1]
    async with worker([charging], storage=visit.storage):
        await visit.open("runs?status=failed")
        await visit.page.get_by_role("link", name="charge-1").click()
        await expect(visit.card("Errors")).to_contain_text("the card was declined")
        monkeypatch.setattr(shop.Charge, "declined", False)
        await visit.press("Retry")
        await visit.confirm("Retry")
        await expect(visit.card("charge-1")).to_contain_text("finished")
        await expect(visit.card("Timeline").get_by_role("row", name="Charge")).to_contain_text("ms")
        await expect(visit.page.get_by_role("button", name="Retry")).to_have_count(0)


async def test_a_run_is_paused_resumed_and_cancelled(visits: Any) -> None:
    visit = await visits(allow_write=True)
    await visit.open("run?id=queued-1")
    await visit.press("Pause")
    await visit.confirm("Pause")
    status = visit.card("queued-1").locator(".status")
    await expect(status).to_have_text("paused")
    await visit.press("Resume")
    await visit.confirm("Retry")
    await expect(status).to_have_text("queued")
    await visit.press("Cancel the run")
    await visit.page.get_by_label("Reason").fill("paid twice")
    await expect(visit.dialog.get_by_role("button", name="Cancel the run")).to_be_disabled()
    await visit.page.get_by_label("Type queued-1 to confirm").fill("queued-1")
    await visit.confirm("Cancel the run")
    await expect(visit.card("queued-1")).to_contain_text("paid twice")


async def test_a_field_is_changed_with_the_keyboard_alone(visits: Any) -> None:
    visit = await visits(allow_write=True)
    await visit.open("record?bot=shop&key=(42,42)")
    change = visit.page.get_by_role("button", name="Change name")
    await change.focus()
    await visit.page.keyboard.press("Enter")
    fsm = FSM("shop", storage=visit.storage, flows=[shop.Order], run_timers=False)
    async with fsm.conversation(key=(42, 42)) as ctx:
        ctx.update_data(gift=True)
    # The page behind the dialog is shown again, with other buttons.
    await expect(visit.page.locator("#content")).to_contain_text("gift")
    await visit.page.keyboard.press("Escape")
    await expect(visit.dialog).to_have_count(0)
    await expect(change).to_be_focused()
    await visit.page.keyboard.press("Enter")
    await expect(visit.page.get_by_label("Value")).to_be_focused()
    await visit.page.keyboard.press("Control+A")
    await visit.page.keyboard.type("Zoe")
    await visit.page.keyboard.press("Tab")
    await visit.page.keyboard.press("Enter")
    await expect(visit.card("Data")).to_contain_text("Zoe")


async def test_a_value_that_is_not_edited_is_not_written(visits: Any) -> None:
    visit = await visits(allow_write=True)
    fsm = FSM("shop", storage=visit.storage, flows=[shop.Order], run_timers=False)
    async with fsm.conversation(key=(42, 42)) as ctx:
        ctx.update_data(price=1.0)
    await visit.open("record?bot=shop&key=(42,42)")
    await visit.press("Change price")
    await visit.confirm("Set")
    await expect(visit.dialog).to_have_count(0)
    await expect(visit.page.locator("body")).to_contain_text("Nothing was changed.")
    data = await visit.storage.get_data("shop", (42, 42))
    assert (data["price"], type(data["price"])) == (1.0, float)
    await visit.press("Change price")
    await visit.page.get_by_label("Value").fill("2")
    await visit.confirm("Set")
    await expect(visit.dialog).to_have_count(0)
    assert (await visit.storage.get_data("shop", (42, 42)))["price"] == 2
