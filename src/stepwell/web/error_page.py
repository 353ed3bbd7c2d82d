"""Error pages: a styled page for a browser, one line of text for other clients."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from http import HTTPStatus
from typing import Final

from stepwell.web.http import PlainTextResponse, Request, Response

__all__ = ["STYLE_HASH", "error_response"]

# Inline, because a browser without a session gets no other file.
_STYLE = (
    ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}"
    "body{display:grid;place-items:center;min-height:90vh;margin:0 16px;background:Canvas;color:CanvasText}"
    "main{max-width:34em;padding:28px 32px;border:1px solid GrayText;border-radius:14px}"
    "h1{font-size:20px;margin:0 0 8px}p{margin:0;overflow-wrap:anywhere}small{display:block;margin-top:16px}"
)
#: For the content security policy.
STYLE_HASH: Final = f"'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'"
_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title} – Stepwell</title>'
    "<style>{style}</style><main><h1>{title}</h1><p>{text}</p><small>{status} {phrase}</small></main></html>\n"
)


def error_response(request: Request, status: int, title: str, text: str) -> Response:
    """Return an error for a client: a page for a browser that opens an address, else a line of text."""
    if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse(f"{text}\n", status)
    page = _PAGE.format(
        title=escape(title), text=escape(text), style=_STYLE, status=status, phrase=HTTPStatus(status).phrase
    )
    return Response(page, status, media_type="text/html")
