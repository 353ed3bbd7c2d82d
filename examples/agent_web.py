"""An agent on the web. Its members sign in with links of their own.

``MEMBERS=ann:4f9c...,ben:81d0... uvicorn examples.agent_web:make_app --factory``; Ann opens ``/enter?key=4f9c...``.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Mapping

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from stepwell import Storage
from stepwell.turns import Turn, Turns
from stepwell.web import Visitor, chat


async def delete(path: str) -> str:
    return f"{path} is deleted"


async def answer(turn: Turn) -> AsyncIterator[str]:
    if turn.text.startswith("delete "):
        path = turn.text.removeprefix("delete ")
        yield f"I found {path}. "
        if await turn.ask(f"Delete {path}?", timeout="24h"):
            yield await turn.tool(delete, path, replay="never")
        else:
            yield "I leave it."
        return
    for word in f"I was told: {turn.text}".split():
        await asyncio.sleep(0.1)  # here you ask your model
        yield f"{word} "


def user(request: Request) -> Visitor | None:
    name = request.session.get("member")
    return Visitor(name, name.title()) if name else None


def make_app(storage: Storage | str = "sqlite:///agent.db", members: Mapping[str, str] | None = None) -> Starlette:
    """Return the application. ``members``: the secret keys by the names of the members."""
    if members is None:
        members = dict(each.split(":") for each in os.environ["MEMBERS"].split(","))
    turns = Turns("agent_web", storage=storage)
    turns.handler(answer)
    web = chat(turns, user=user)

    async def enter(request: Request) -> Response:
        given = request.query_params.get("key", "")
        for name, key in members.items():
            if secrets.compare_digest(given.encode(), key.encode()):
                request.session["member"] = name
                return RedirectResponse("/", 303)
        return Response("This link is not valid.", 403)

    return Starlette(
        routes=[Route("/enter", enter), Mount("/", web)],
        # With a key of its own from a variable, sessions survive a restart.
        middleware=[Middleware(SessionMiddleware, secret_key=os.environ.get("SESSION_KEY", secrets.token_hex()))],
        lifespan=web.lifespan,
    )
