"""The files of a page. The path of a request is never looked up on the disk."""

from __future__ import annotations

from pathlib import Path

from stepwell.web.http import Request, Response, Route

__all__ = ["file_routes", "page_files"]

_SHARED = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def page_files(folder: Path) -> dict[str, Path]:
    """Return all files to serve, by their path in a URL: those of a folder, and the shared ones."""
    found = [path for each in (_SHARED, folder) for path in sorted(each.iterdir())]
    return {f"/{path.name}": path for path in found if path.suffix in _TYPES}


def file_routes(files: dict[str, Path]) -> list[Route]:
    """Return a route for each file; ``index.html`` is the page at ``/``."""

    def route(url: str, path: Path) -> Route:
        async def file(request: Request) -> Response:
            return _response(path)

        return Route(url, file, methods=["GET"])

    return [route("/", files["/index.html"]), *[route(url, path) for url, path in files.items()]]


def _response(path: Path) -> Response:
    return Response(path.read_bytes(), media_type=_TYPES[path.suffix])
