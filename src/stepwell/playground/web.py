"""The names of starlette that the servers use. The only module that imports it."""

from __future__ import annotations

from stepwell._optional import require

require("starlette", "playground")

from starlette.applications import Starlette  # noqa: E402
from starlette.requests import ClientDisconnect, Request  # noqa: E402
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402

__all__ = [
    "ClientDisconnect",
    "JSONResponse",
    "PlainTextResponse",
    "Request",
    "Response",
    "Route",
    "Starlette",
    "StreamingResponse",
]
