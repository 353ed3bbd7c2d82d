"""Turns, messages, answers and roles in a real browser."""

from __future__ import annotations

import re
from typing import Any, Literal, NotRequired, TypedDict

import pytest
from playwright.async_api import expect

from stepwell.errors import Parked
from stepwell.inspector.access import AccessFile
from stepwell.nodes import Wait, linear
from tests.inspector import desk
from tests.inspector.visit import Visit

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_question_is_answered_and_the_second_answer_is_told_that_it_is_late(visits: Any) -> None:
    visit: Visit = await visits(fill=desk.fill, allow_write=True)
    await visit.page.keyboard.press("g")
    await visit.page.keyboard.press("t")
    await visit.page.get_by_role("link", name="(42,0)").click()
    await expect(visit.card("Questions")).to_contain_text("Refund 40 €? <img src=x onerror=alert(1)>\\u202egnp.exe")
    await expect(visit.card("Turn").get_by_role("row", name="_look_up")).to_contain_text("returned")
    await visit.page.route("**/api/turn?*", lambda route: route.abort())
    for told in ("The answer was accepted.", "Too late: the question was answered before."):
        await visit.card("Questions").get_by_role("button", name="Answer").click()
        await visit.page.get_by_label("In the name of").select_option("8")
        await visit.confirm("Answer")
        await expect(visit.page.locator("#toasts")).to_contain_text(told)
    await visit.page.unroute("**/api/turn?*")
    visit.problems.clear()
    await visit.press("Reply to the user")
    await visit.page.get_by_label("Message").fill("I look at it.")
    await visit.confirm("Send")
    await expect(visit.page.locator("#toasts")).to_contain_text("The reply is stored")
    await expect(visit.card("desk (42,0)")).to_contain_text(re.compile("unsent calls *1"))
    await visit.page.get_by_role("link", name="conversations of 42").click()
    await visit.page.get_by_role("link", name="(42,42)").click()
    await expect(visit.page.get_by_role("link", name="turn of 42")).to_be_visible()


async def test_chosen_messages_are_changed_together_and_the_audit_shows_who_did_it(visits: Any) -> None:
    visit: Visit = await visits(fill=desk.fill, allow_write=True, name="anna")
    await visit.open("messages?bot=desk")
    updates = visit.card("Failed updates")
    await updates.get_by_text("Traceback", exact=True).click()
    await expect(updates).to_contain_text("ValueError: password=•••")
    calls = visit.card("Refused answers")
    await expect(calls.get_by_role("row", name="sendMessage")).to_have_count(2)
    await calls.get_by_label("Choose all of this page").check()
    await visit.press("Resend")
    await visit.confirm("Resend")
    await expect(visit.page.locator("#toasts")).to_contain_text("To be sent again: 2.")
    await expect(calls).to_have_count(0)
    await updates.get_by_label(re.compile("^Choose update")).nth(1).check()
    await visit.press("Retry")
    await visit.confirm("Retry")
    await expect(visit.card("Inbox")).to_contain_text("46")
    await visit.open("turns?failed=1")
    await visit.card("Turns").get_by_label("Choose all of this page").check()
    await visit.press("Drop")
    await expect(visit.dialog.get_by_role("button", name="Drop")).to_be_disabled()
    await visit.page.get_by_label("Type 2 to confirm").fill("2")
    await visit.confirm("Drop")
    await expect(visit.page.locator("#content")).to_contain_text("No conversation matches.")
    await visit.page.get_by_role("link", name="Audit").click()
    await expect(visit.card("Audit").get_by_role("row", name="dropped the failed turn")).to_have_count(2)
    await expect(visit.card("Audit")).to_contain_text("- reason: Forbidden: bot was blocked by the user")
    await expect(visit.card("Audit").get_by_role("cell", name="anna")).to_have_count(5)
    content = await visit.page.content()
    assert desk.SECRET not in content
    assert await visit.page.locator("#content img").count() == 0


class Place(TypedDict):
    city: str


class Approval(TypedDict):
    """What the answer of the next test is."""

    approved: bool
    amount: int
    plan: Literal["small", "large"]
    to: Place
    note: NotRequired[str | None]
    tags: NotRequired[list[str]]


async def test_an_answer_is_a_form_with_its_problems_at_their_fields(visits: Any) -> None:
    visit: Visit = await visits(allow_write=True)
    flow = linear(Wait("approval", accepts=Approval), name="approving", storage=visit.storage)
    with pytest.raises(Parked):
        await flow.run({}, flow_id="approving-1")
    await visit.open("run?id=approving-1")
    await visit.press("Answer")
    await visit.page.get_by_label("approved").select_option(label="Yes")
    await visit.page.get_by_label("plan").select_option("large")
    await visit.page.get_by_label("city").fill("Rome")
    amount = visit.page.get_by_label("amount")
    await amount.fill("much")
    await visit.page.get_by_label("tags (JSON)").fill("[1]")
    await visit.confirm("Answer")
    await expect(visit.dialog.locator("[data-path='$.amount']")).to_have_text("Expected integer, got string")
    await expect(amount).to_be_focused()
    await amount.fill("90071992547409931")
    await visit.confirm("Answer")
    await expect(visit.dialog.locator("[data-path='$.tags']")).to_have_text("Expected string, got integer")
    await visit.page.get_by_label("tags (JSON)").fill("")
    await visit.confirm("Answer")
    await expect(visit.page.locator("#toasts")).to_contain_text("The answer was accepted.")
    visit.problems.clear()
    assert (await flow.resume("approving-1"))["approval"] == {
        "approved": True,
        "amount": 90071992547409931,
        "plan": "large",
        "to": {"city": "Rome"},
    }


async def test_a_state_with_a_timer_says_so_before_it_is_set(visits: Any) -> None:
    visit: Visit = await visits(allow_write=True)
    await visit.open("record?bot=shop&key=(44,44)")
    await visit.press("Set state")
    state = visit.page.get_by_role("combobox", name="State")
    await state.select_option("paid")
    await expect(visit.dialog).to_contain_text("No timer starts.")
    await state.select_option("address")
    await expect(visit.dialog).to_contain_text("address has a timer: after 10 min the conversation moves to item.")
    await expect(visit.page.get_by_label("Start its timer")).to_be_checked()
    await visit.confirm("Set state")
    await expect(visit.card("shop (44,44)")).to_contain_text(re.compile("timer *in 9 min"))


async def test_a_viewer_sees_everything_and_no_button_of_an_edit(visits: Any) -> None:
    tokens = {"vera": "the token of vera 123", "otto": "the token of otto 123"}
    access = AccessFile(tokens, {"vera": "viewer", "otto": "operator"}, None)
    edits = re.compile("Answer|Reply|Retry|Drop|Stop the turn|Set|Clear|Forget|Cancel|Change|Remove")
    for person, token in tokens.items():
        visit: Visit = await visits(fill=desk.fill, access=access, token=token)
        await expect(visit.page.locator("#mode")).to_contain_text(person)
        for place, card in (("turn?bot=desk&key=(43,0)", "Failed turns"), ("record?bot=desk&key=(42,42)", "Data")):
            await visit.open(place)
            await expect(visit.card(card)).to_be_visible()
            names = await visit.page.get_by_role("button", name=edits).all_inner_texts()
            operator = ["Reply to the user", "Retry"] if card == "Failed turns" else ["Reply to the user"]
            assert (person, card, names) == (person, card, operator if person == "otto" else [])
