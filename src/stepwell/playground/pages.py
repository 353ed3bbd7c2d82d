"""The routes of the page: files, events and actions. ``auth`` checks every request first."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from stepwell.botapi import NotPossible
from stepwell.engine import quoted
from stepwell.errors import StepwellError, UsageError
from stepwell.playground.actions import ACTIONS, LARGEST
from stepwell.playground.played import Play
from stepwell.playground.rooms import picture_of
from stepwell.web.files import file_routes, not_found, page_files
from stepwell.web.http import JSONResponse, Request, Response, Route, Starlette, StreamingResponse, object_of

__all__ = ["FILES", "make_app"]

#: All files that are served.
FILES = page_files(Path(__file__).parent / "page")
#: The largest request in bytes.
MAX_REQUEST = 64 * 1024
#: Seconds between two keep-alive comments.
HEARTBEAT = 10.0


def make_app(play: Play) -> Any:
    """Return the application, to be wrapped in ``AuthMiddleware``."""

    async def events(request: Request) -> Response:
        return StreamingResponse(_events(play), media_type="text/event-stream")

    async def act(request: Request) -> Response:
        action = ACTIONS.get(request.path_params["name"])
        try:
            if action is None:
                raise UsageError(f"unknown action {quoted(request.path_params['name'])}")
            largest = LARGEST.get(request.path_params["name"], MAX_REQUEST)
            result = await action(play, await object_of(request, largest))
        except (StepwellError, NotPossible, ValueError) as error:
            return JSONResponse({"ok": False, "error": str(error)}, status_code=400)
        return JSONResponse({"ok": True, **(result or {})})

    async def picture(request: Request) -> Response:
        found = picture_of(play.world, request.path_params["file_id"])
        if found is None:
            return await not_found(request, LookupError())
        return Response(found[0], media_type=found[1])

    return Starlette(
        routes=[
            *file_routes(FILES),
            Route("/picture/{file_id}", picture, methods=["GET"]),
            Route("/events", events, methods=["GET"]),
            Route("/api/{name}", act, methods=["POST"]),
        ],
        exception_handlers={404: not_found},
    )


async def _events(play: Play) -> AsyncIterator[bytes]:
    async with aclosing(play.board.follow(HEARTBEAT)) as changes:
        async for sections in changes:
            text = json.dumps({"now": play.world.clock(), "sections": sections})
            yield f"data: {text}\n\n".encode() if sections else b": here\n\n"
