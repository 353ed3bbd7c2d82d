"""An agent on the web for the tests: ``python chat_agent.py PORT FOLDER [STORAGE]``.

Files in its folder let its turns go on. ``/`` is a page with useChat, ``/chat/`` that of Stepwell.
"""

import asyncio
import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, HTMLResponse
from starlette.routing import Mount, Route

from stepwell.turns import Turns
from stepwell.web import Visitor, chat

PORT, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
STORY = "Once upon a time there was a well with a hundred steps."

turns = Turns(
    "page", storage=sys.argv[3] if len(sys.argv) > 3 else f"sqlite:///{FOLDER}/chat.db", lease=2, attempts=9,
    on_busy=(FOLDER / "busy").read_text() if (FOLDER / "busy").exists() else "merge",
    identity=lambda update: ("person", 42) if update.user.id in (42, "ann") else ("chat", update.chat.id),
)  # fmt: skip


async def until(name: str) -> None:
    while not (FOLDER / name).exists():
        await asyncio.sleep(0.02)


async def look_up(what: str) -> dict[str, str]:
    await until("found")
    with (FOLDER / "calls").open("a") as file:
        file.write(f"{what}\n")
    return {"found": what.upper(), "api_key": "not for pages"}


@turns.handler
async def answer(turn):
    words = STORY.split(" ")
    if turn.text == "fail":
        raise ValueError("the model is away")
    if turn.text.startswith("look"):
        yield "I look. "
        found = await turn.tool(look_up, turn.text.removeprefix("look "))
        if not await turn.ask(
            f"Take {found['found']}?", approvers=[42] if turn.user.id == "gina" else [42, turn.user.id]
        ):
            yield "I leave it."
            return
        yield f"I take {found['found']}."
        return
    if turn.text == "name":
        name = await turn.ask("What is your name?", reply=True)
        yield f"Hello, {name}!"
        return
    if turn.text == "colour":
        choice = await turn.ask("Which colour?", options=("Red", "Green", "Blue"))
        turn.answer(f"It is {choice}.")
        return
    for place, word in enumerate(words):
        if place == 6 and turn.text == "story":
            await until("go")
        yield word if place == 0 else f" {word}"
        await asyncio.sleep(0.01)


def user(request):
    name = request.cookies.get("user")
    return Visitor(name, name.title()) if name else None


web = chat(turns, user=user, origins=["http://friend.example"])


def react_page(request):
    return HTMLResponse('<!doctype html><div id="root"></div><script type="module" src="/bundle.js"></script>')


app = Starlette(
    routes=[
        Route("/", react_page),
        Route("/bundle.js", lambda request: FileResponse((FOLDER / "bundle").read_text())),
        Mount("/chat", web),
    ],
    lifespan=web.lifespan,
)

if __name__ == "__main__":
    uvicorn.run(app, port=PORT, log_level="warning", timeout_graceful_shutdown=1)
