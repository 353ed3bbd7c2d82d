"""Error responses of the Bot API."""

from __future__ import annotations

from typing import Any

__all__ = ["ConnectionCut", "Refusal", "bad_request"]


class Refusal(Exception):
    """An error in Telegram's form: a code, a description, and parameters such as ``retry_after``.

    Example::

        from stepwell.playground.botapi import Refusal

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


class ConnectionCut(Exception):
    """The connection of a call is closed without a response, as a test demands."""


def bad_request(why: str, **parameters: Any) -> Refusal:
    """Return a 400 error in Telegram's format."""
    return Refusal(400, f"Bad Request: {why}", **parameters)
