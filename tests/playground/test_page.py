"""The page in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from tests.playground.visit import REGISTRATION

pytestmark = pytest.mark.asyncio(loop_scope="module")


#: Its batch stops after three items until a file exists.
BATCH = """
import asyncio
from stepwell.fsm import FSM, Flow, Router, command, keys, state
from stepwell.nodes import BatchNode, NodeFlow

go = asyncio.Event()

class Count(BatchNode):
    def prep(self, shared): return range(5)
    async def exec(self, item):
        if item == 3:
            await go.wait()
        return item
    def post(self, shared, items, results): shared["n"] = len(results)

class Idle(Flow, name="idle"):
    here = state()

def make_router(storage):
    router = Router(FSM("batch", storage=storage, flows=[Idle]))
    running = set()

    @router.on(command("count"))
    async def count(ctx):
        running.add(asyncio.create_task(NodeFlow(Count(), name="counting").run({})))

    @router.on(command("go"))
    async def let_go(ctx):
        go.set()
        (final,) = await asyncio.gather(*running)
        ctx.answer(f"Counted {final['n']}.")

    return router
"""


async def test_the_whole_registration_with_each_state_highlighted(visits: Any) -> None:
    visit = await visits(REGISTRATION)
    assert visit.page.url == visit.play.address  # the token is gone from the address
    await visit.stands_at(None)
    await visit.page.get_by_role("button", name="/register").click()
    await visit.hear("What's your name?")
    await visit.stands_at("get_name")
    await visit.say("Alice")
    await visit.hear("Got it, Alice! What's your email?")
    await visit.stands_at("get_email")
    await expect(visit.field("name")).to_have_class("fresh")
    await expect(visit.field("name")).to_contain_text("Alice")
    await expect(visit.field("flow")).not_to_have_class("fresh")
    await expect(visit.page.locator('path.taken[data-edge="get_name>get_email"]')).to_have_count(1)
    await visit.say("alice@example.com")
    await visit.hear("Please confirm.")
    await visit.stands_at("confirm")
    await expect(visit.field("name")).not_to_have_class("fresh")
    await expect(visit.field("email")).to_have_class("fresh")
    await visit.say("yes")
    await visit.hear("Registered! Welcome, Alice!")
    await visit.stands_at(None)
    await expect(visit.page.locator("#record")).to_contain_text("The conversation has ended")
    await expect(visit.page.locator("g.state.visited")).to_have_count(3)


async def test_the_first_visit_shows_an_introduction(visits: Any) -> None:
    visit = await visits(REGISTRATION)
    await expect(visit.page.locator(".welcome")).to_contain_text(
        "Chat with your bot. Everything stays on this machine."
    )
    await expect(visit.page.locator("#record")).to_contain_text("no conversation has started")


async def test_reply_and_inline_keyboards_and_the_notice_of_a_button(visits: Any) -> None:
    visit = await visits()
    await visit.say("/order")
    await visit.page.locator(".keyboard").get_by_role("button", name="Tea").click()
    await visit.hear("Which size?")
    await expect(visit.page.locator(".keyboard .key")).to_have_count(0)
    await visit.page.locator(".inline").get_by_role("button", name="Large").click()
    await expect(visit.page.locator(".toast")).to_have_text("A good choice.")
    await visit.stands_at("note")
    await expect(visit.field("size")).to_contain_text("large")


async def test_a_timer_counts_down_and_can_be_fired(visits: Any) -> None:
    visit = await visits()
    await visit.say("/order")
    await visit.hear("What will it be?")
    await visit.say("Tea")
    await visit.stands_at("size")
    timer = visit.page.locator("#timer")
    await expect(timer).to_contain_text("left, then drink")
    first = await timer.locator(".left").inner_text()
    await expect(timer.locator(".left")).not_to_have_text(first)
    await timer.get_by_role("button", name="Fire timer now").click()
    await visit.stands_at("drink")
    await expect(timer).to_be_hidden()
    await expect(visit.page.locator('path.timeout.taken[data-edge="size>drink"]')).to_have_count(1)
    fired = visit.page.locator("#timeline > li.timer")
    await expect(fired.locator(":scope > .summary .title")).to_have_text("timer fired: order / size")
    await expect(fired.locator(".steps .title")).to_have_text("order / drink")


async def test_an_update_that_is_sent_twice_changes_the_record_once(visits: Any) -> None:
    visit = await visits()
    await visit.say("/order")
    await visit.hear("What will it be?")
    await visit.say("Tea")
    await visit.hear("Which size?")
    await visit.page.locator(".inline").get_by_role("button", name="Small").click()
    await visit.hear("Anything else to say?")
    await visit.say("hot")
    await visit.hear("Noted 1: hot")
    await visit.page.get_by_role("button", name="Repeat last update").click()
    await expect(visit.page.locator("#timeline li.again .mark")).to_have_text("handled once, first answer repeated")
    # The answer is repeated, because the first one may have been lost; nothing is stored.
    await expect(visit.page.locator(".messages .theirs p", has_text="Noted 1: hot")).to_have_count(2)
    await expect(visit.field("count")).to_contain_text("1")


async def test_ten_messages_at_once_are_handled_one_after_the_other(visits: Any) -> None:
    visit = await visits()
    await visit.say("/order")
    await visit.hear("What will it be?")
    await visit.say("Tea")
    await visit.hear("Which size?")
    await visit.page.locator(".inline").get_by_role("button", name="Small").click()
    await visit.hear("Anything else to say?")
    await visit.page.get_by_role("button", name="Send 10 messages").click()
    await expect(visit.field("count")).to_contain_text("10")
    answers = visit.page.locator(".messages .theirs p", has_text="Noted")
    await expect(answers).to_have_text([f"Noted {n}: Message {n}" for n in range(1, 11)])


async def test_a_conversation_continues_after_the_bot_is_killed(visits: Any) -> None:
    visit = await visits(REGISTRATION)
    await visit.say("/register")
    await visit.hear("What's your name?")
    first = visit.play.process.pid
    await visit.page.get_by_role("button", name="Restart the bot").click()
    await expect(visit.page.locator('.status[data-starts="2"]')).to_contain_text("running")
    assert visit.play.process.pid != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    await visit.say("Alice")
    await visit.hear("Got it, Alice! What's your email?")
    await visit.stands_at("get_email")


async def test_a_conversation_continues_in_a_new_playground(visits: Any) -> None:
    first = await visits(REGISTRATION)
    await first.say("/register")
    await first.hear("What's your name?")
    await first.page.goto("about:blank")
    first.requests.clear()
    first.requests.append(first.play.address)
    second = await visits(REGISTRATION)
    await expect(second.page.locator(".resumed")).to_contain_text("registration / get_name")
    await second.stands_at("get_name")
    await second.say("Alice")
    await second.hear("Got it, Alice! What's your email?")


async def test_a_changed_file_restarts_the_bot_and_its_errors_are_shown(visits: Any, tmp_path: Path) -> None:
    folder = tmp_path / "bot"
    folder.mkdir()
    path = Path(shutil.copy(REGISTRATION, folder / "my.py"))
    visit = await visits(path)
    await visit.say("/register")
    await visit.hear("What's your name?")
    good = path.read_text()
    path.write_text("raise SystemExit('broken on purpose')")
    await expect(visit.page.locator("#banner")).to_contain_text("exited with an error")
    await expect(visit.page.locator("#output")).to_contain_text("broken on purpose")
    path.write_text(good.replace("What's your email?", "And your email?"))
    await expect(visit.page.locator("#banner")).to_be_hidden()
    await visit.say("Alice")
    await visit.hear("Got it, Alice! And your email?")


async def test_an_error_of_a_handler_is_shown_and_the_bot_continues(visits: Any) -> None:
    visit = await visits()
    await visit.say("/crash")
    await expect(visit.page.locator("#output")).to_contain_text("RuntimeError: as you wish")
    failed = visit.page.locator("#timeline > li.failed")
    await expect(failed).to_have_count(1)
    await expect(failed).to_contain_text("Alice /crash")
    await expect(failed.locator(".traceback")).to_be_visible()
    await expect(failed.locator(".traceback")).to_contain_text("in crash\n    raise RuntimeError")
    assert "stepwell/fsm" not in await failed.locator(".traceback").inner_text()
    await visit.say("/order")
    await visit.hear("What will it be?")
    await expect(visit.page.locator("#timeline > li")).to_have_count(2)
    await expect(failed).to_have_count(1)


async def test_events_are_grouped_by_update_with_key_and_duration(visits: Any) -> None:
    visit = await visits()
    page = visit.page
    await visit.say("/order")
    await visit.hear("What will it be?")
    group = page.locator("#timeline > li")
    await expect(group).to_have_count(1)
    await expect(group.locator(".facts code")).to_have_text("(42,0,42)")
    await expect(group.locator(".duration")).to_have_text(re.compile(r"^[\d.]+ m?s$"))
    await expect(group.locator(".steps .title")).to_have_text(["order / drink", "sendMessage: What will it be?"])
    await expect(page.locator("#record-note")).to_contain_text("key (42,0,42), version")
    await page.locator('[data-room="43"]').click()
    await visit.say("/feedback")
    await visit.hear("How many stars?")
    await expect(group).to_have_count(2)
    await page.get_by_label("Events of").select_option(label="Alice")
    await expect(group).to_have_count(1)
    await expect(group).to_contain_text("Alice /order")
    await page.get_by_label("Events of").select_option(label="everyone")
    await expect(group).to_have_count(2)


async def test_stored_values_are_shown_as_text_and_secrets_are_masked(visits: Any) -> None:
    visit = await visits(REGISTRATION)
    evil = "<script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"
    await visit.say("/register")
    await visit.hear("What's your name?")
    await visit.say(evil)
    await visit.hear(f"Got it, {evil}! What's your email?")
    await expect(visit.field("name").locator("td .string")).to_have_text(evil)
    await visit.page.locator("#timeline > li > details > summary").first.click()
    await expect(visit.page.locator("#timeline details[open] pre")).to_contain_text("<script>")
    assert await visit.page.evaluate("window.broken === undefined")
    assert await visit.page.locator("main script, main img").count() == 0


async def test_secrets_are_masked_wherever_they_are_shown(visits: Any) -> None:
    visit = await visits()
    await visit.say("/order")
    await visit.hear("What will it be?")
    await expect(visit.field("api_key").locator("td .string")).to_have_text("•••")
    assert "very-secret-value" not in await visit.page.content()
    assert "very-secret-value" not in json.dumps(visit.play.observer.records.json())
    assert visit.play.bot.token not in await visit.page.content()


async def test_commands_are_completed_by_keyboard(visits: Any) -> None:
    visit = await visits()
    box = visit.page.get_by_role("textbox", name="Message")
    await box.focus()
    await visit.page.keyboard.type("/")
    await expect(visit.page.locator(".commands").get_by_role("option")).to_have_count(3)
    await visit.page.keyboard.press("ArrowDown")
    await expect(visit.page.locator('[role=option][aria-selected="true"]')).to_contain_text("/feedback")
    await visit.page.keyboard.press("Tab")
    await expect(box).to_have_value("/feedback")
    await expect(visit.page.locator(".commands").get_by_role("option")).to_have_count(0)
    await visit.page.keyboard.press("Enter")
    await visit.hear("How many stars?")
    await visit.stands_at("stars")
    await expect(box).to_be_focused()


async def test_users_groups_and_topics_have_their_own_records(visits: Any) -> None:
    visit = await visits()
    page = visit.page
    await visit.say("/order")
    await visit.stands_at("drink")
    await page.locator('[data-room="43"]').click()
    await visit.stands_at(None)
    await visit.say("/feedback")
    await visit.stands_at("stars")
    await page.get_by_role("button", name="+ Add").click()
    await page.get_by_label("Name").fill("Tea house")
    await page.get_by_role("button", name="Add group").click()
    await expect(page.locator(".pane.group h2")).to_have_text("Tea house")
    await page.get_by_role("button", name="+ Topic").click()
    await expect(page.get_by_label("Topic", exact=True)).to_contain_text("Topic 1")
    await visit.say("/order")
    await visit.hear("What will it be?")
    await visit.stands_at("drink")
    await page.get_by_label("Write as").select_option(label="as Alice")
    await visit.stands_at(None)
    await page.get_by_label("Topic", exact=True).select_option(label="General")
    await expect(page.locator(".welcome")).to_be_visible()
    await page.get_by_role("button", name="Open second chat").click()
    await expect(page.locator(".pane")).to_have_count(2)
    await visit.stands_at("drink")  # Alice's private chat, not the group


async def test_a_node_flow_shows_its_graph_current_node_and_question(visits: Any) -> None:
    visit = await visits(REGISTRATION.parent / "both_halves.py")
    card = visit.page.locator("#runs-card")
    await expect(card).to_be_hidden()
    await visit.say("/plan")
    await visit.hear("Which city?")
    await visit.say("Berlin")
    await visit.hear("Grand Hotel Berlin: shall I book it?")
    lit = card.locator("g.state.current")
    await expect(lit).to_have_attribute("data-state", "approve")
    await expect(card.locator(".question")).to_have_text("Grand Hotel Berlin: shall I book it?")
    await expect(card.locator("text.action")).to_have_text(["again", "book"])
    await visit.say("no")
    await expect(card.locator(".question")).to_have_text("Plaza Hotel Berlin: shall I book it?")
    await expect(card.locator('path.taken[data-edge="approve>FindHotel"]')).to_have_count(1)
    await visit.page.get_by_role("button", name="Restart the bot").click()
    await visit.say("yes")
    await visit.hear("Booked: Plaza Hotel Berlin.")
    await expect(card).to_contain_text("finished")
    await expect(lit).to_have_count(0)
    await expect(card.locator("g.state.visited")).to_have_count(3)


async def test_a_batch_shows_its_progress(visits: Any, tmp_path: Path) -> None:
    folder = tmp_path / "bot"
    folder.mkdir()
    (folder / "batch.py").write_text(BATCH)
    visit = await visits(folder / "batch.py")
    await visit.say("/count")
    items = visit.page.locator("#runs-card .items")
    await expect(items).to_have_text("3 of 5 items")
    await visit.say("/go")
    await visit.hear("Counted 5.")
    await expect(visit.page.locator("#run-state")).to_contain_text("finished")


@pytest.mark.parametrize("width", [375, 768, 1440])
async def test_nothing_is_cut_off_at_any_width(visits: Any, width: int) -> None:
    visit = await visits(width=width)
    page = visit.page
    await visit.say("/order")
    await visit.hear("What will it be?")
    await visit.say("Tea with a name that is far longer than anything that fits into one line " + "x" * 300)
    await visit.hear("Which size?")
    fits = "document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"
    assert await page.evaluate(fits)
    await expect(page.get_by_role("button", name="Send", exact=True)).to_be_in_viewport(ratio=1)
    if width == 375:
        await expect(page.locator("#state")).to_be_hidden()
        await page.get_by_role("tab", name="State").click()
    await expect(page.locator("#state")).to_be_visible()
    await visit.stands_at("size")
    assert await page.evaluate(fits)
    assert await page.evaluate("(box => box.scrollWidth <= box.clientWidth)(document.getElementById('state'))")
    lit = await page.locator("g.state.current").bounding_box()
    assert lit is not None
    assert lit["x"] >= 0
    assert lit["x"] + lit["width"] <= width


async def test_a_stopped_playground_shows_a_banner(visits: Any, tmp_path: Path) -> None:
    visit = await visits(REGISTRATION)
    await visit.play.__aexit__(None, None, None)
    await expect(visit.page.locator("#banner")).to_contain_text("The playground has stopped.")
    visit.problems.clear()
    await visit.page.goto("about:blank")
    visit.requests = [visit.play.address]
    visit.problems.clear()
