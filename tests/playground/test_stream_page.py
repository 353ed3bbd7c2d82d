"""What a bot writes, its pictures and rich messages on the page, in a real browser."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.async_api import expect

from tests.playground.visit import Visit
from tests.until import until
from tests.web.axe import problems

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def call(visit: Visit, method: str, **params: Any) -> Any:
    """Call the Bot API as the bot of a playground."""
    (answer,) = await call_at_once(visit, method, params)
    return answer


async def call_at_once(visit: Visit, method: str, *several: dict[str, Any]) -> list[Any]:
    """Call one method several times at once."""
    url = f"{visit.play.api.url}/bot{visit.play.bot.token}/{method}"
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        calls = [http.post(url, json={"chat_id": 42, **params}) for params in several]
        return [answer.json() for answer in await asyncio.gather(*calls)]


def picture(path: Path, colour: str) -> Path:
    Image.new("RGB", (1600, 900), colour).save(path)
    return path


async def test_what_the_bot_writes_is_shown_until_the_message_comes(visits: Any) -> None:
    visit = await visits()
    draft = visit.page.locator(".draft")
    await call(visit, "sendMessageDraft", draft_id=1, text="")
    await expect(draft).to_contain_text("Thinking…")
    await expect(draft.get_by_role("button")).to_be_hidden()
    for text in ("Once", "Once upon", "Once upon a *time*"):
        await call(visit, "sendMessageDraft", draft_id=1, text=text, parse_mode="Markdown")
    await expect(draft.locator("p")).to_have_text("Once upon a time")
    await expect(draft.locator("strong")).to_have_text("time")
    await call(visit, "sendMessage", text="Once upon a time there was a bot.")
    await visit.hear("Once upon a time there was a bot.")
    await expect(draft).to_have_count(0)
    # Of the draft, the events show the last state.
    steps = visit.page.locator("#timeline .title", has_text="sendMessageDraft")
    await expect(steps.first).to_be_visible()


async def test_the_stop_button_works_while_the_text_changes(visits: Any) -> None:
    visit = await visits()
    write = {"draft_id": 5, "can_stop": True}
    await call(visit, "sendMessageDraft", **write, text="one")
    stop = visit.page.get_by_role("button", name="Stop")
    await stop.hover()
    await visit.page.mouse.down()
    await call(visit, "sendMessageDraft", **write, text="one two")
    await expect(visit.page.locator(".draft p")).to_have_text("one two")
    await visit.page.mouse.up()
    await expect(visit.page.locator(".draft")).to_have_count(0)
    updates = [each for each in visit.play.bot.updates.all if "stopped_message_generation" in each]
    assert [each["stopped_message_generation"]["draft_id"] for each in updates] == [5]
    await expect(visit.page.locator("#timeline")).to_contain_text("stopped_message_generation")
    # A draft that is kept stays without the button.
    await call(visit, "sendMessageDraft", **write, text="kept", keep_on_stop=True)
    await stop.click()
    await expect(stop).to_be_hidden()
    await expect(visit.page.locator(".draft")).to_contain_text("kept")


async def test_the_states_of_a_draft_are_one_event_below_the_update_that_it_answers(visits: Any) -> None:
    visit = await visits()
    await visit.say("hello")
    await expect(visit.page.locator("#timeline > li")).to_have_count(1)
    for number in range(4):
        await call(visit, "sendMessageDraft", draft_id=9, text="word " * (number + 1))
    step = visit.page.locator("#timeline .steps .title")
    await expect(step).to_have_text("sendMessageDraft ×4: word word word word ")


async def test_a_message_in_a_group_is_edited_live_and_keeps_its_buttons(visits: Any) -> None:
    visit = await visits()
    page = visit.page
    await page.get_by_role("button", name="+ Add").click()
    await page.get_by_label("Name").fill("Team")
    await page.get_by_role("button", name="Add group").click()
    await expect(page.locator(".pane.group h2")).to_have_text("Team")
    group = next(room.id for room in visit.play.world.rooms.values() if room.type == "group")
    keyboard = {"inline_keyboard": [[{"text": "Stop it", "callback_data": "stop"}]]}
    sent = await call(visit, "sendMessage", chat_id=group, text="one", reply_markup=keyboard)
    button = page.locator(".inline").get_by_role("button", name="Stop it")
    await button.hover()
    await page.mouse.down()
    edit = {"chat_id": group, "message_id": sent["result"]["message_id"], "reply_markup": keyboard}
    await call(visit, "editMessageText", **edit, text="one two")
    await visit.hear("one two")
    await page.mouse.up()
    await until(lambda: any("callback_query" in each for each in visit.play.bot.updates.all))
    await expect(page.locator(".messages time").last).to_contain_text("edited")


async def test_several_pictures_are_an_album_in_one_bubble(visits: Any, tmp_path: Path) -> None:
    visit = await visits()
    files = [picture(tmp_path / f"{colour}.png", colour) for colour in ("red", "green", "blue")]
    await visit.box.fill("Three colours")
    await visit.page.locator("input[type=file]").set_input_files(files)
    bubble = visit.page.locator(".messages .mine")
    await expect(bubble.locator("img")).to_have_count(3)
    await expect(bubble).to_have_count(1)
    await expect(bubble.locator("p")).to_have_text("Three colours")
    await expect(visit.box).to_have_value("")
    titles = visit.page.locator("#timeline > li > details > summary .title")
    await expect(titles).to_have_text(["Alice photo", "Alice photo", "Alice photo: Three colours"])
    messages = [each["message"] for each in visit.play.bot.updates.all]
    assert len({each["media_group_id"] for each in messages}) == 1
    assert [each.get("caption") for each in messages] == ["Three colours", None, None]
    # As at Telegram, a large picture is reduced.
    content = visit.play.world.files[messages[0]["photo"][0]["file_id"]].content
    assert Image.open(io.BytesIO(content)).size == (1280, 720)
    await bubble.locator("img").first.scroll_into_view_if_needed()
    assert await visit.page.evaluate("[...document.querySelectorAll('.pictures img')].every(each => each.complete)")
    await visit.page.locator("input[type=file]").set_input_files(files[:1])
    await expect(bubble).to_have_count(2)
    assert "media_group_id" not in visit.play.bot.updates.all[-1]["message"]


async def test_a_file_that_is_no_picture_is_not_sent(visits: Any, tmp_path: Path) -> None:
    visit = await visits()
    (tmp_path / "no.png").write_text("<svg onload='window.broken = 1'>")
    await visit.page.locator("input[type=file]").set_input_files(tmp_path / "no.png")
    await expect(visit.page.locator(".toast")).to_contain_text("no picture")
    assert visit.play.bot.updates.all == []


async def test_a_file_is_sent_as_it_is_beside_pictures(visits: Any, tmp_path: Path) -> None:
    visit = await visits()
    (tmp_path / "tea.txt").write_text("Green tea")
    await visit.box.fill("Read this")
    files = [tmp_path / "tea.txt", picture(tmp_path / "red.png", "red")]
    await visit.page.locator("input[type=file]").set_input_files(files)
    bubble = visit.page.locator(".messages .mine")
    await expect(bubble).to_have_count(2)
    await expect(bubble.last.locator(".media")).to_have_text("document tea.txt")
    await expect(visit.box).to_have_value("")
    first, second = [each["message"] for each in visit.play.bot.updates.all]
    assert (first["caption"], "caption" in second) == ("Read this", False)
    assert visit.play.world.files[second["document"]["file_id"]].content == b"Green tea"


async def test_a_user_who_is_added_joins_the_groups_and_the_bot_gets_the_update(visits: Any) -> None:
    visit = await visits()
    for name, button in (("Tea house", "Add group"), ("Nina", "Add user")):
        await visit.page.get_by_role("button", name="+ Add").click()
        await visit.page.get_by_label("Name").fill(name)
        await visit.page.get_by_role("button", name=button).click()
    await until(lambda: any("new_chat_members" in each.get("message", {}) for each in visit.play.bot.updates.all))
    await visit.page.locator('[data-room="-1001"]').click()
    await expect(visit.page.locator(".messages")).to_contain_text("joined")


async def test_a_user_edits_a_message(visits: Any) -> None:
    visit = await visits()
    await visit.say("frist")
    mine = visit.page.locator(".messages .mine")
    await mine.hover()
    await mine.get_by_role("button", name="Edit this message").click()
    await expect(visit.page.locator(".editing")).to_be_visible()
    await expect(visit.box).to_have_value("frist")
    await visit.say("first")
    await expect(mine.locator("p")).to_have_text("first")
    await expect(visit.page.locator(".editing")).to_be_hidden()
    edit = visit.play.bot.updates.all[-1]["edited_message"]
    assert (edit["text"], edit["message_id"]) == ("first", 1)
    await mine.hover()
    await mine.get_by_role("button", name="Edit this message").click()
    await visit.page.keyboard.press("Escape")
    await expect(visit.box).to_have_value("")


MARKDOWN = """# Plan for <b>today</b>

Read [the page](https://example.org) and **note** `x < 1`:

- [x] done
- [ ] to do

| Name | Value |
|:-----|------:|
| a | 1 |

```python
print("<script>window.broken = 1</script>")
```

> Said <script>window.broken = 1</script>
"""


async def test_a_rich_message_is_shown_with_its_blocks_and_nothing_in_it_runs(visits: Any) -> None:
    visit = await visits()
    await call(visit, "sendRichMessageDraft", draft_id=2, rich_message={"markdown": "# Plan"}, can_stop=True)
    await expect(visit.page.locator(".draft .heading")).to_have_text("Plan")
    sent = await call(visit, "sendRichMessage", rich_message={"markdown": MARKDOWN})
    rich = visit.page.locator(".messages > .theirs .rich")
    await expect(rich.get_by_role("heading", name="Plan for today")).to_be_visible()
    await expect(rich.locator("a")).to_have_attribute("href", "https://example.org")
    await expect(rich.locator("li .label")).to_have_text(["☑", "☐"])
    await expect(rich.locator("th")).to_have_text(["Name", "Value"])
    await call(visit, "sendMessageDraft", draft_id=3, text="", can_stop=True)
    await expect(visit.page.locator(".draft .stop")).to_be_visible()
    assert await problems(visit.page) == []
    await expect(rich.locator("pre")).to_have_text('print("<script>window.broken = 1</script>")')
    row = {"type": "buttons", "buttons": [{"text": "Yes", "callback_data": "y"}]}
    await call(visit, "sendRichMessage", rich_message={"blocks": [row]})
    await visit.page.locator(".rich").get_by_role("button", name="Yes").click()
    await until(lambda: any("callback_query" in each for each in visit.play.bot.updates.all))
    edit = {"message_id": sent["result"]["message_id"], "text": "Plain again"}
    await call(visit, "editMessageText", **edit)
    await expect(visit.page.locator(".messages .theirs p", has_text="Plain again")).to_have_count(1)
    assert await visit.page.evaluate("window.broken === undefined")


async def test_nested_formatting_is_shown(visits: Any) -> None:
    visit = await visits()
    html = '<b>bold <i>both</i></b> <a href="https://x.org">link</a> <a href="javascript:window.broken=1">bad</a>'
    await call(visit, "sendMessage", text=html, parse_mode="HTML")
    await visit.hear("bold both link bad")
    said = visit.page.locator(".messages .theirs p")
    await expect(said.locator("strong em")).to_have_text("both")
    await expect(said.locator("a")).to_have_count(1)
    code = '<pre><code class="language-python">a = 1\nb = 2</code></pre>\n\nand more'
    await call(visit, "sendMessage", text=code, parse_mode="HTML")
    await expect(said.last.locator("code.pre")).to_have_text("a = 1\nb = 2")
    # The block ends its line, so one of the two line ends is left.
    assert await said.last.evaluate("node => node.lastChild.textContent") == "\nand more"


async def test_with_limits_the_events_show_what_was_refused(visits: Any) -> None:
    visit = await visits(limits=True)
    # A slow machine keeps the limits of a second if it makes one call after the other.
    answers = await call_at_once(visit, "sendMessage", *({"text": f"message {number}"} for number in range(12)))
    assert any(answer.get("parameters") == {"retry_after": 1} for answer in answers)
    await expect(visit.page.locator("#timeline .mark.bad").first).to_be_visible()
