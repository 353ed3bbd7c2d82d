"""The packages that the server needs. The only module that imports them."""

from __future__ import annotations

try:
    import h11
    import httpx
    import python_multipart as multipart
    import uvicorn
    from python_multipart import exceptions as multipart_errors
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ModuleNotFoundError as _error:
    raise ImportError(f"the local Bot API needs {_error.name}; run: pip install 'stepwell[botapi]'") from _error

__all__ = [
    "ClientDisconnect",
    "H11Protocol",
    "JSONResponse",
    "Request",
    "Response",
    "Route",
    "Starlette",
    "h11",
    "httpx",
    "multipart",
    "multipart_errors",
    "uvicorn",
]
