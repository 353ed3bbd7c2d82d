"""Turns, messages, answers and roles in a real browser."""

from __future__ import annotations

import re
from typing import Any, Literal, NotRequired, TypedDict

import pytest
from playwright.async_api import expect

from stepwell.errors import Parked
from stepwell.fsm import FSM
from stepwell.inspector.access import AccessFile
from stepwell.nodes import Wait, linear
from stepwell.operate.edits import Edit, edit
from stepwell.operate.record import read
from stepwell.storage import Storage
from stepwell.turns import Turns
from tests.inspector import desk
from tests.inspector.visit import Visit
from tests.web.axe import problems

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
    await visit.page.get_by_role("link", name="conversation desk (42,42)").click()
    await expect(visit.page.get_by_role("link", name="turn desk (42,0)")).to_be_visible()


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


#: The pages of the desk, with a card that each has.
PLACES = (
    ("turns", "Turns"),
    ("turn?bot=desk&key=(42,0)", "Questions"),
    ("turn?bot=desk&key=(43,0)", "Failed turns"),
    ("messages?bot=desk", "Refused answers"),
    ("audit", "Audit"),
)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_axe_finds_no_problem_and_the_pages_fit_a_phone_and_a_large_screen(visits: Any, dark: bool) -> None:
    visit: Visit = await visits(fill=desk.fill, dark=dark, allow_write=True)
    await visit.open("record?bot=desk&key=(42,42)")
    await visit.press("Reply to the user")
    assert await problems(visit.page) == []
    await visit.page.get_by_label("Message").fill("Hello")
    await visit.confirm("Send")
    await expect(visit.dialog).to_have_count(0)
    for width in (1280, 390, 1920):
        await visit.page.set_viewport_size({"width": width, "height": 900})
        for place, card in PLACES:
            await visit.open(place)
            await expect(visit.card(card)).to_be_visible()
            found = await visit.page.evaluate("[document.body.scrollWidth, document.querySelector('main').scrollWidth]")
            assert (place, max(found) <= width) == (place, True)
            if width == 1280:
                rules = ("color-contrast",) if dark else ()
                assert (place, await problems(visit.page, *rules)) == (place, [])
            await visit.shot(f"{place.partition('?')[0]}-{width}-{'dark' if dark else 'light'}")


#: Every page, with the values of ``hostile``.
EVERYWHERE = (
    "overview", "runs", "queues", "flows", "records?bot=desk", "record?bot=desk&key=(66,66)", "run?id=hostile-1",
    "turns", "turn?bot=desk&key=(66,0)", "turn?bot=desk&key=(43,0)", "messages?bot=desk", "audit",
)  # fmt: skip


async def hostile(storage: Storage) -> None:
    """Write values that would be markup, turn texts around, are large, or are secret."""
    await desk.fill(storage)
    large, markup = "x" * 1_000_000, f"{desk.HOSTILE}</script><script>alert(2)</script>"
    fsm = FSM("desk", storage=storage, flows=[], run_timers=False)
    async with fsm.conversation(key=(66, 66)) as ctx:
        ctx.update_data(
            {markup: markup, "password": desk.SECRET, "note": f"token={desk.SECRET}", "long": large[:100_000]}
        )
        ctx.update_data(list=[markup] * 500, deep={"a": {"b": {"api_key": desk.SECRET, "c": [markup]}}})
    await Turns("desk", storage=storage).history((66, 0)).append({"role": markup, "content": large}, {"text": large})
    await Turns("desk", storage=storage).reply((66, 0), f"{markup} {'y' * 9000}")
    flow = linear(Wait(desk.HOSTILE), name=desk.HOSTILE, storage=storage)
    with pytest.raises(Parked):
        await flow.run({"large": large, markup: markup, "api_key": desk.SECRET}, flow_id="hostile-1")
    address = storage.address("desk", (66, 66))
    for value in (markup, large[:50_000]):
        version = (await read(storage, address)).version
        await edit(
            storage, address, Edit(fields={"note": value}, state=markup, flow=markup), version=version, who=markup
        )


async def test_hostile_values_are_shown_as_text_or_masked_and_never_as_a_whole_if_they_are_large(visits: Any) -> None:
    visit: Visit = await visits(fill=hostile, allow_write=True)
    sizes: dict[str, int] = {}

    async def measure(response: Any) -> None:
        if "/api/" in response.url:
            sizes[response.url] = len(await response.body())

    visit.page.on("response", measure)
    visit.page.on("dialog", lambda dialog: visit.problems.append(dialog.message))
    for place in EVERYWHERE:
        await visit.open(place)
        await expect(visit.page.locator("#content .card").first).to_be_visible()
        await visit.page.evaluate("for (const each of document.querySelectorAll('#content details')) each.open = true")
        text, markup = await visit.page.inner_text("body"), await visit.page.content()
        assert (place, await visit.page.locator("#content img, #content script").count()) == (place, 0)
        assert (place, desk.SECRET in markup, "\u202e" in text) == (place, False, False)
        assert (place, len(markup) < 1_000_000) == (place, True)
    await visit.open("record?bot=desk&key=(66,66)")
    await expect(visit.card("Data")).to_contain_text("<img src=x onerror=alert(1)>\\u202egnp.exe</script>")
    await expect(visit.card("Data").locator("[data-field=password]")).to_contain_text("•••")
    assert max(sizes.values()) < 400_000
