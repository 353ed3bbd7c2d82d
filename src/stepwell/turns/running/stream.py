"""A text that a turn writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepwell.options import check_instance

__all__ = ["Stream"]


class Stream:
    """A text that grows: the person sees it while it is written, and all of it is part of the answer.

    Example::

        @turns.handler
        async def answer(turn):
            async with turn.stream() as out:
                async for piece in model.stream(turn.text):
                    out.write(piece)
    """

    def __init__(self, params: dict[str, Any], on_write: Callable[[Stream, str], None]) -> None:
        self._pieces: list[str] = []
        self._on_write = on_write
        self._sent = 0
        #: The parameters of the message.
        self.params: dict[str, Any] = params

    def write(self, text: str) -> None:
        """Add text. It never waits for Telegram."""
        check_instance(text, str, "a stream takes pieces of text, got {type}")
        self._pieces.append(text)
        self._on_write(self, text)

    @property
    def text(self) -> str:
        """What was written so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def unsent(self) -> str:
        """What was written since the last other message of the turn, such as a question. It is not sent for good."""
        return self.text[self._sent :]

    def mark_sent(self, length: int) -> None:
        """Note that so much of the text is sent, or stored to be sent."""
        self._sent = length
