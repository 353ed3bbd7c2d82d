"""The names of starlette that the servers use. The only module that imports it."""

from __future__ import annotations

from stepwell._optional import require

require("starlette", "playground")

from starlette.applications import Starlette  # noqa: E402
from starlette.requests import ClientDisconnect, Request  # noqa: E402
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402

__all__ = [
    "JSONResponse",
    "PlainTextResponse",
    "Request",
    "Response",
    "Route",
    "Starlette",
    "StreamingResponse",
    "body_of",
]


async def body_of(request: Request, limit: int) -> bytes | None:
    """Return the body of a request; ``None`` if it has more than ``limit`` bytes or the client disconnected."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                return None
    except ClientDisconnect:
        return None
    return bytes(body)
