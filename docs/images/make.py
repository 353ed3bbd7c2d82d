"""Makes the pictures of the playground, the chat and the inspector: ``.venv/bin/python docs/images/make.py``.

Chromium takes them, as in the tests; Pillow makes them small and joins the moving one.
"""

from __future__ import annotations

import asyncio
import io
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser, Page, expect

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# The path of the module is in a traceback on a picture, so it is loaded from a folder that every machine has.
SHOP = Path(tempfile.gettempdir()) / "shop"
SHOP.mkdir(exist_ok=True)
shutil.copy(HERE / "shop.py", SHOP)
sys.path[:0] = [str(ROOT), str(SHOP)]

import shop  # noqa: E402
from tests.playground.browser import launched  # noqa: E402

from examples import agent_web  # noqa: E402
from stepwell.engine import PROCESSES, Apply, Change, OpenedHead, Place  # noqa: E402
from stepwell.fsm import FSM  # noqa: E402
from stepwell.inspector.server import InspectorServer  # noqa: E402
from stepwell.nodes import worker  # noqa: E402
from stepwell.playground.play import Playground  # noqa: E402
from stepwell.storage import Storage, open_storage, presence  # noqa: E402
from stepwell.web.serving import Serving  # noqa: E402

WIDE, PHONE = (1200, 720), (390, 800)
#: The height of the frames of the moving picture, and the milliseconds of each.
FRAME, SHOWN = 540, 1400


@asynccontextmanager
async def opened(browser: Browser, size: tuple[int, int], *, dark: bool = False) -> AsyncIterator[Page]:
    """A page of this size."""
    colours = "dark" if dark else "light"
    view = {"width": size[0], "height": size[1]}
    context = await browser.new_context(viewport=view, color_scheme=colours)  # type: ignore[arg-type]
    try:
        yield await context.new_page()
    finally:
        await context.close()


async def taken(page: Page) -> Image.Image:
    """Return a picture of a page."""
    return Image.open(io.BytesIO(await page.screenshot())).convert("RGB")


def save(picture: Image.Image, name: str) -> None:
    """Write a picture with a palette, which is a third of the size."""
    picture.quantize(256, dither=Image.Dither.NONE).save(HERE / f"{name}.png", optimize=True)


async def say(page: Page, text: str, answer: str) -> None:
    """Send a message to the bot, and wait for its answer."""
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")
    await expect(page.locator(".messages .theirs p").last).to_have_text(answer)


async def chat(browser: Browser, folder: Path, size: tuple[int, int], *, dark: bool = False) -> list[Image.Image]:
    """Register in the playground, and return a picture after each message."""
    storage = f"sqlite:///{folder}/{size[0]}{dark}.db"
    bot = Playground(ROOT / "examples" / "registration.py", storage=storage)
    async with bot as play, opened(browser, size, dark=dark) as page:
        await page.goto(play.url)
        await play.ready()
        await expect(page.locator(".welcome .chip").first).to_be_visible()
        pictures = [await taken(page)]
        for text, answer in (
            ("/register", "What's your name?"),
            ("Alice", "Got it, Alice! What's your email?"),
            ("alice@example.com", "Please confirm."),
        ):
            await say(page, text, answer)
            await page.wait_for_timeout(700)
            pictures.append(await taken(page))
    return pictures


async def turn(browser: Browser, folder: Path) -> Image.Image:
    """Ask an agent in the playground, and return a picture of its question and of its turn."""
    agent = ROOT / "tests" / "playground" / "agent.py"
    async with Playground(agent, storage=f"sqlite:///{folder}/agent.db") as play, opened(browser, WIDE) as page:
        await page.goto(play.url)
        card = page.get_by_role("article", name="Turn")
        for text, shown in (("Tea for two", "look_up"), ("and milk", "and milk"), ("go", "Send")):
            await page.get_by_role("textbox", name="Message").fill(text)
            await page.keyboard.press("Enter")
            await expect(card).to_contain_text(shown)
        await page.wait_for_timeout(700)
        return await taken(page)


async def killed(browser: Browser, folder: Path) -> Image.Image:
    """Kill a new agent while it orders, and return a picture of what its model was told."""
    subprocess.run(  # noqa: ASYNC221 - nothing else runs
        [sys.executable, "-m", "stepwell", "new", "agent", "teahouse"], cwd=folder, check=True
    )
    bot = folder / "teahouse" / "bot.py"
    async with Playground(bot, storage=f"sqlite:///{folder}/tea.db") as play, opened(browser, WIDE) as page:
        await page.goto(play.url)
        await page.get_by_role("textbox", name="Message").fill("order green tea")
        await page.keyboard.press("Enter")
        await expect(page.locator("#turn-card")).to_contain_text("at most once")
        await page.get_by_role("button", name="Restart the bot").click()
        await expect(page.locator(".messages .theirs p")).to_contain_text("call it again")
        await page.wait_for_timeout(700)
        return await taken(page)


async def talk(fsm: FSM) -> None:
    """Give the bot some updates each second."""
    person = {"id": 40, "first_name": "Ida"}
    for number in count():
        message = {"message_id": number, "from": person, "chat": {**person, "type": "private"}, "text": "tea"}
        async with fsm.conversation({"update_id": number, "message": message}) as ctx:
            if ctx.state is None:
                ctx.start_flow(shop.Order)
        await asyncio.sleep(0.2)


async def past_hour(storage: Storage) -> None:
    """Write the counts of each minute of the last hour, as a bot and a worker do."""
    now = time.time() // 60
    for kind, names, scale in (("bot", ["shop"], 240), ("worker", ["charging"], 30)):
        address = storage.address(PROCESSES, storage.ids())
        seal, rows = storage.seal(address), []
        for ago in range(59, 0, -1):
            done = round(scale * (1 + math.sin(ago / 9) / 3 + ago % 5 / 30))
            failed = ago % 7 // 5 * scale / 30
            rows.append(
                [now - ago, done, done * (0.02 + ago % 4 / 400), failed, done, done * (1.2 + math.sin(ago / 6))]
            )
        columns = ["done", "took", "failed", "taken", "waited"]
        fields = {"kind": kind, "of": names, "host": "web-1", "pid": 7, "presence": "-", "began": 0.0, "ended": True}
        data = seal.fields({**fields, "minutes": rows, "columns": columns})
        change = Change(storage.ids(), head=seal.head(OpenedHead(Place("history", None))), set=data, expiry=3600)
        await storage.perform(Apply(address, change))


async def inspect(browser: Browser, server: InspectorServer) -> list[Image.Image]:
    """Find and move a stuck conversation in the inspector, and return a picture of each step."""
    pictures: list[Image.Image] = []

    async def step(*cards: str) -> None:
        for card in cards:
            await expect(page.get_by_role("region", name=card, exact=True)).to_be_visible()
        await page.wait_for_timeout(700)
        pictures.append(await taken(page))
        # A message of this step must not be in the next picture.
        await page.evaluate("document.getElementById('toasts').replaceChildren()")

    async with opened(browser, WIDE) as page:
        await page.goto(server.url)
        await expect(page.get_by_role("region", name="Processes")).to_contain_text(re.compile(r"[1-9][\d.]* updates"))
        await expect(page.get_by_role("region", name="shop", exact=True)).to_contain_text("days ago")
        await step("shop", "Runs")
        save(pictures[-1], "inspector")
        await page.get_by_role("link", name="Flows").click()
        await step("order", "charging")
        save(pictures[-1], "inspector-flows")
        await page.locator('g.state[data-state="voucher"]').click()
        await step("Conversations")
        await page.locator("#content a").first.click()
        await step("Data", "History")
        await page.get_by_role("button", name="Set state").click()
        await page.get_by_role("combobox", name="State").select_option("payment")
        await step()
        await page.get_by_role("dialog").get_by_role("button", name="Set state").click()
        await expect(page.locator(".card").first).not_to_contain_text("not in the flow")
        await step("History")
        await page.goto(f"{server.address}#/run?id=charging-1001")
        await step("charging-1001", "Timeline")
        save(pictures[-1], "inspector-run")
    return pictures


async def inspect_on_a_phone(browser: Browser, server: InspectorServer) -> None:
    async with opened(browser, PHONE, dark=True) as page:
        await page.goto(server.url)
        await expect(page.get_by_role("region", name="shop", exact=True)).to_be_visible()
        await page.goto(f"{server.address}#/record?bot=shop&key=(90,90)")
        await expect(page.get_by_role("region", name="History")).to_be_visible()
        await page.wait_for_timeout(700)
        save(await taken(page), "inspector-phone")


def join(pictures: list[Image.Image], name: str) -> None:
    """Write a moving picture."""
    frames = [
        each.resize((round(each.width * FRAME / each.height), FRAME), Image.Resampling.LANCZOS) for each in pictures
    ]
    frames[0].save(
        HERE / f"{name}.webp", save_all=True, append_images=frames[1:], duration=SHOWN, loop=0, quality=60, method=6
    )


async def chat_on_the_web(browser: Browser, folder: Path) -> Image.Image:
    """Ask the agent of a page on two phones, and return both side by side."""
    app = agent_web.make_app(f"sqlite:///{folder}/web.db", {"ann": "key"})
    serving, pictures = Serving(app, name="chat"), []
    async with app.router.lifespan_context(app):
        link = f"http://127.0.0.1:{await serving.start('127.0.0.1', 0)}/enter?key=key"
        for dark, button in ((False, "Send"), (True, "Yes")):
            async with opened(browser, (390, 560), dark=dark) as page:
                await page.goto(link)
                for text in () if dark else ("Hello, who are you?", "delete notes.txt"):
                    await page.get_by_role("textbox", name="Message").fill(text)
                    await page.get_by_role("button", name=button).click()
                    await expect(page.locator("#state")).to_have_text(
                        "" if text.startswith("Hello") else "Waits for an answer"
                    )
                if dark:
                    await page.get_by_role("button", name=button).click()
                    await expect(page.locator(".bubble").last).to_have_text("notes.txt is deleted")
                await page.wait_for_timeout(700)
                pictures.append(await taken(page))
        await serving.stop()
    joined = Image.new("RGB", (sum(each.width for each in pictures) + 20, pictures[0].height), "white")
    joined.paste(pictures[0], (0, 0))
    joined.paste(pictures[1], (pictures[0].width + 20, 0))
    return joined


async def main() -> None:
    """Make all pictures."""
    presence.FIRST, presence.EVERY = 0.1, 1.0
    expect.set_options(timeout=30_000)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        browser = await stack.enter_async_context(launched())
        chats = await chat(browser, folder, WIDE)
        save(chats[-1], "playground")
        save((await chat(browser, folder, WIDE, dark=True))[-1], "playground-dark")
        save((await chat(browser, folder, (375, 700)))[-1], "playground-phone")
        save(await turn(browser, folder), "playground-turn")
        save(await killed(browser, folder), "agent-killed")
        save(await chat_on_the_web(browser, folder), "web-chat")
        clock = shop.PastClock()
        async with open_storage(f"sqlite:///{folder}/shop.db", clock=clock) as storage:
            await shop.fill(storage, clock)
        storage = await stack.enter_async_context(open_storage(f"sqlite:///{folder}/shop.db"))
        await past_hour(storage)
        fsm = FSM("shop", storage=storage, flows=[shop.Order], run_timers=False)
        await stack.enter_async_context(fsm)
        talking = asyncio.create_task(talk(fsm))
        await stack.enter_async_context(worker([shop.flows()[1]], storage=storage))
        server = InspectorServer(storage, shop.flows(), allow_write=True)
        await stack.enter_async_context(server)
        steps = await inspect(browser, server)
        await inspect_on_a_phone(browser, server)
        talking.cancel()
        join([*chats, *steps], "tour")
    for path in sorted(HERE.glob("*.*g")) + sorted(HERE.glob("*.webp")):
        print(f"{path.name} {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    asyncio.run(main())
