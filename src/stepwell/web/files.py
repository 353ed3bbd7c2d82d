"""The files of a page. The path of a request is never looked up on the disk."""

from __future__ import annotations

from pathlib import Path

from stepwell.web.error_page import error_response
from stepwell.web.http import Request, Response, Route

__all__ = ["content_of", "file_routes", "not_found", "page_files"]

_SHARED = Path(__file__).parent / "page"
#: What every page begins with; its own ``index.html`` is the body.
_HEAD = _SHARED / "head.html"
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


def page_files(folder: Path) -> dict[str, Path]:
    """Return all files to serve, by their path in a URL: those of a folder, and the shared ones."""
    found = [path for each in (_SHARED, folder) for path in sorted(each.iterdir())]
    return {f"/{path.name}": path for path in found if path.suffix in _TYPES and path != _HEAD}


def content_of(path: Path) -> bytes:
    """Return what is served for a file."""
    return (_HEAD.read_bytes() if path.name == "index.html" else b"") + path.read_bytes()


def file_routes(files: dict[str, Path]) -> list[Route]:
    """Return a route for each file; ``index.html`` is the page at ``/``."""

    def route(url: str, path: Path) -> Route:
        async def file(request: Request) -> Response:
            return Response(content_of(path), media_type=_TYPES[path.suffix])

        return Route(url, file, methods=["GET"])

    return [route("/", files["/index.html"]), *[route(url, path) for url, path in files.items()]]


async def not_found(request: Request, error: Exception) -> Response:
    """Respond to a path that does not exist; for the exception handlers of an application."""
    return error_response(request, 404, "Not found", "There is no such page here.")
