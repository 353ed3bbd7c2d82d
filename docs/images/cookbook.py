"""Makes the pictures of the cookbook: ``.venv/bin/python docs/images/cookbook.py [NAME ...]``.

Each bot runs in the playground, where people chat with it, and Chromium takes a picture of the page.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from make import ROOT, opened, save, taken
from playwright.async_api import Browser, Page, expect
from tests.playground.browser import launched
from tests.until import until

from stepwell.botapi import Person
from stepwell.playground.play import Playground

SIZE = (1200, 680)
#: Two chats beside each other are wider.
WIDER = (1480, 680)


class Stage:
    """A bot in the playground, and its page."""

    def __init__(self, play: Playground, page: Page) -> None:
        self.play, self.page = play, page
        self.alice, self.bob = (play.person(str(user), user) for user in (42, 43))

    async def group(self) -> tuple[Person, Person]:
        """Add a group, open it, and return Alice and Bob in it."""
        await self.page.get_by_role("button", name="+ Add").click()
        await self.page.get_by_label("Name").fill("Tea house")
        await self.page.get_by_role("button", name="Add group").click()
        await expect(self.page.locator(".pane.group h2")).to_have_text("Tea house")
        return self.play.person("-1001", 42), self.play.person("-1001", 43)

    async def said(self, person: Person, text: str) -> None:
        """Wait until the last message of a chat begins with a text."""
        await until(lambda: person.messages[-1:], lambda last: bool(last) and _text(last[0]).startswith(text))


def _text(message: dict[str, object]) -> str:
    return str(message.get("text") or message.get("caption") or "")


async def agent(stage: Stage) -> None:
    await stage.alice.ask("Hello", timeout=30)
    await stage.alice.send("pay 20")
    await stage.said(stage.alice, "Really pay 20 EUR?")


async def support(stage: Stage) -> None:
    bob = (await stage.group())[1]
    bob.topic("General tea talk")
    page = stage.page
    await page.locator('[data-room="42"]').click()
    await page.get_by_role("button", name="Open second chat").click()
    await page.locator('[data-room="-1001"]').click()
    await stage.alice.ask("When are you open?")
    await stage.alice.ask("Is the tea hot?")
    await stage.alice.press("Ask a person")
    await stage.said(stage.alice, "The team has your question")
    desk = bob.topic(next(topic.id for topic in bob.room.topics.values() if topic.name == "Alice"))
    await desk.send("Very hot.")
    await stage.said(stage.alice, "Very hot.")
    await stage.alice.send("Thank you!")
    await stage.said(desk, "Thank you!")
    await page.get_by_label("Topic", exact=True).last.select_option(label="Alice")


async def shop(stage: Stage) -> None:
    await stage.alice.ask("/shop")
    for button in ("Tea ★ 30", "Cake ★ 50"):
        await stage.alice.notice(await stage.alice.press(button) or "")
    await stage.alice.press("Pay")
    await until(lambda: "invoice" in stage.alice.messages[-1])
    await stage.alice.pay()
    await stage.said(stage.alice, "Thank you!")
    await stage.alice.ask("/shop")
    await stage.alice.notice(await stage.alice.press("Tea ★ 30") or "")


async def registration(stage: Stage) -> None:
    for text in ("/register", "Alice", "nowhere", "alice@example.com"):
        await stage.alice.ask(text)


async def quiz(stage: Stage) -> None:
    await stage.alice.ask("/quiz")
    for option in ("Jupiter", "6"):
        await stage.alice.press(option)
        await stage.alice.answer()


async def reminders(stage: Stage) -> None:
    await stage.alice.ask("/remind 20m pay the rent")
    await stage.alice.ask("/remind 2s tea is ready")
    assert await stage.alice.answer(timeout=30) == "Reminder: tea is ready"
    await stage.alice.ask("/remind 7d water the plants")
    await stage.alice.ask("/list")


async def moderation(stage: Stage) -> None:
    alice, bob = await stage.group()
    await bob.ask("Visit our casino")
    nina = stage.play.api.chat(stage.play.bot, 44, first_name="Nina").group(-1001)
    await nina.join()
    await stage.said(alice, "Welcome, Nina!")
    stage.play.places_changed()
    await stage.page.get_by_label("Write as").select_option(label="as Nina")


async def broadcast(stage: Stage) -> None:
    names = ("Chen", "Dana", "Emil", "Femi", "Gita", "Hugo")
    readers = [stage.play.api.chat(stage.play.bot, 50 + n, first_name=name) for n, name in enumerate(names)]
    for each in (stage.alice, stage.bob, *readers):
        await each.ask("/start")
    await readers[0].block()
    await stage.alice.ask("/send Fresh cake at four!")
    await stage.alice.press("Send to all")
    await stage.said(stage.alice, "Done:")


async def rag(stage: Stage) -> None:
    notes = (
        "Green tea is brewed at 80 degrees, for two minutes.",
        "The shop opens at nine.",
        "Cake is sold out at four.",
    )
    await stage.alice.send_document("\n\n".join(notes).encode(), name="tea.txt")
    await stage.said(stage.alice, "I have read tea.txt. Passages: 3")
    await stage.alice.ask("How long do I brew green tea?", timeout=30)
    await stage.alice.ask("When does the shop open?", timeout=30)


async def group(stage: Stage) -> None:
    alice, bob = await stage.group()
    await alice.send("Shall we meet at nine?")
    await bob.send("Nine is early.")
    await bob.send("@group_bot what have we said?")
    await stage.said(alice, "Messages that I have read")


PLAYS: dict[str, Callable[[Stage], Awaitable[None]]] = {
    each.__name__: each
    for each in (agent, support, shop, registration, quiz, reminders, moderation, broadcast, rag, group)
}


async def picture(browser: Browser, name: str, folder: Path) -> None:
    """Chat with a bot, and take its picture."""
    bot, size = ROOT / "examples" / "cookbook" / f"{name}.py", WIDER if name == "support" else SIZE
    async with Playground(bot, storage=f"sqlite:///{folder}/{name}.db") as play, opened(browser, size) as page:
        await page.goto(play.url)
        await play.ready()
        await expect(page.locator(".welcome").first).to_be_visible()
        await PLAYS[name](Stage(play, page))
        await page.wait_for_timeout(900)
        save(await taken(page), f"cookbook-{name}")


async def main(names: list[str]) -> None:
    """Make these pictures, or all."""
    expect.set_options(timeout=30_000)
    os.environ.pop("OPENAI_API_KEY", None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RAG_INDEX"] = f"{folder}/index.db"
        async with launched() as browser:
            for name in names or PLAYS:
                await picture(browser, name, Path(folder))
                print(name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
