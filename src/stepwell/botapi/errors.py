"""Error responses of the Bot API, and errors of the user who acts here."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["ConnectionCut", "NotPossible", "Refusal", "bad_request", "quoted"]

#: A URL, a token or a key.
_LIKELY_SECRET = re.compile(r"://|\d{5,}:[\w-]{10,}|[\w+/-]{32,}|:[^\s@]+@")


class Refusal(Exception):
    """An error in Telegram's form: a code, a description, and parameters such as ``retry_after``.

    Example::

        from stepwell.botapi import Refusal

        error = Refusal(429, "Too Many Requests: retry after 5", retry_after=5)
        assert error.code == 429
    """

    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.parameters = parameters

    def json(self) -> dict[str, Any]:
        """Return the body of the response."""
        body: dict[str, Any] = {"ok": False, "error_code": self.code, "description": self.description}
        return {**body, "parameters": self.parameters} if self.parameters else body


class NotPossible(RuntimeError):
    """The server or a user cannot do here what a test or a person asked for, such as pressing a missing button.

    Example::

        from stepwell.botapi import BotAPI, NotPossible

        try:
            BotAPI().url
        except NotPossible as error:
            assert "before it runs" in str(error)
    """


class ConnectionCut(Exception):
    """The connection of a call is closed without a response, as a test demands."""


def bad_request(why: str, **parameters: Any) -> Refusal:
    """Return a 400 error in Telegram's format."""
    return Refusal(400, f"Bad Request: {why}", **parameters)


def quoted(value: object) -> str:
    """Return a value for an error: its ``repr``, or its type if it looks like a secret, which must not reach a log."""
    text = repr(value)
    return f"<{type(value).__name__}>" if isinstance(value, bytes) or _LIKELY_SECRET.search(text) else text
