"""The names of starlette that the servers use. The only module that imports it."""

from __future__ import annotations

from typing import Any

from stepwell._optional import require
from stepwell.errors import UsageError
from stepwell.web.strict_json import loads

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
    "object_of",
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


async def object_of(request: Request, limit: int) -> dict[str, Any]:
    """Return the JSON object in the body of a request; raise ``UsageError`` or ``ValueError`` if it has none."""
    body = await body_of(request, limit)
    if body is None:
        raise UsageError(f"a request must be at most {limit} bytes")
    given = loads(body or b"{}")
    if not isinstance(given, dict):
        raise UsageError("the body must be a JSON object")
    return given
