"""What the Bot API answers when it does not do what it was asked."""

from __future__ import annotations

from typing import Any

__all__ = ["Refusal", "bad_request"]


class Refusal(Exception):
    """An error in Telegram's form: a code, a description, and parameters such as ``retry_after``."""

    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.parameters = parameters

    def json(self) -> dict[str, Any]:
        """The answer's body."""
        body: dict[str, Any] = {"ok": False, "error_code": self.code, "description": self.description}
        return {**body, "parameters": self.parameters} if self.parameters else body


def bad_request(why: str, **parameters: Any) -> Refusal:
    """400, in Telegram's words."""
    return Refusal(400, f"Bad Request: {why}", **parameters)
