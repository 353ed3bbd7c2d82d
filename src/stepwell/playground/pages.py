"""The routes of the page: files, events and actions. ``auth`` checks every request first."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.errors import StepwellError, UsageError
from stepwell.playground.actions import ACTIONS
from stepwell.playground.strict_json import loads
from stepwell.playground.web import JSONResponse, Request, Response, Route, Starlette, StreamingResponse, body_of

if TYPE_CHECKING:
    from stepwell.playground.play import Playground

__all__ = ["FILES", "make_app"]

_HERE = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
#: All files that are served. The path of a request is never looked up on the disk.
FILES = {f"/{path.name}": path for path in sorted(_HERE.iterdir()) if path.suffix in _TYPES}
#: The largest request in bytes.
MAX_REQUEST = 64 * 1024
#: Seconds between two keep-alive comments.
HEARTBEAT = 10.0


def make_app(play: Playground) -> Any:
    """Return the application, to be wrapped in ``AuthMiddleware``."""

    async def file(request: Request) -> Response:
        path = FILES["/index.html" if request.url.path == "/" else request.url.path]
        return Response(path.read_bytes(), media_type=_TYPES[path.suffix])

    async def events(request: Request) -> Response:
        return StreamingResponse(_events(play), media_type="text/event-stream")

    async def act(request: Request) -> Response:
        action = ACTIONS.get(request.path_params["name"])
        try:
            if action is None:
                raise UsageError(f"unknown action {request.path_params['name']!r}")
            body = await body_of(request, MAX_REQUEST)
            if body is None:
                raise UsageError(f"a request must be at most {MAX_REQUEST} bytes")
            given = loads(body or b"{}")
            if not isinstance(given, dict):
                raise UsageError("the body must be a JSON object")
            result = await action(play, given)
        except (StepwellError, ValueError) as error:
            return JSONResponse({"ok": False, "error": str(error)}, status_code=400)
        return JSONResponse({"ok": True, **(result or {})})

    files = [Route(path, file, methods=["GET"]) for path in ("/", *FILES)]
    return Starlette(
        routes=[*files, Route("/events", events, methods=["GET"]), Route("/api/{name}", act, methods=["POST"])]
    )


async def _events(play: Playground) -> AsyncIterator[bytes]:
    async with aclosing(play.board.follow(HEARTBEAT)) as changes:
        async for sections in changes:
            text = json.dumps({"now": play.world.clock(), "sections": sections})
            yield f"data: {text}\n\n".encode() if sections else b": here\n\n"
