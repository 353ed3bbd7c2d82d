"""Policies: the options of ``FSM`` for refused moves, missing keys, duplicates and unknown states."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from stepwell.errors import InvalidOption, NoKeyError, TransitionError, UnknownStateError

__all__ = ["DuplicatePolicy", "MissingKeyPolicy", "TransitionPolicy", "UnknownStatePolicy"]

logger: logging.Logger = logging.getLogger(__name__)


class _Policy:
    """One option of ``FSM``, checked when it is given."""

    __slots__ = ("choice",)

    option: ClassVar[str]
    words: ClassVar[tuple[str, ...]]
    #: The arguments of a function in place of a word; empty if functions are not allowed.
    arguments: ClassVar[str] = ""

    def __init__(self, choice: str | Callable[..., Any]) -> None:
        valid = choice in self.words if isinstance(choice, str) else self.arguments and callable(choice)
        if not valid:
            words = ", ".join(repr(word) for word in self.words)
            function = f" or a function {self.arguments}" if self.arguments else ""
            raise InvalidOption(f"{self.option}={choice!r} is not supported; use one of {words}{function}")
        self.choice: str | Callable[..., Any] = choice

    def __repr__(self) -> str:
        return f"{self.option}={self.choice!r}"

    def _refuse(self, error: Exception) -> Literal[False]:
        if self.choice == "raise":
            raise error
        if self.choice == "log":
            logger.warning("%s", error)
        return False


class TransitionPolicy(_Policy):
    """``on_invalid_transition``: a move that the flow does not declare."""

    __slots__ = ()
    option: ClassVar[str] = "on_invalid_transition"
    words: ClassVar[tuple[str, ...]] = ("raise", "log", "ignore")
    arguments: ClassVar[str] = "(ctx, from_, to)"

    def refuse(self, ctx: object, error: TransitionError) -> Any:
        """Raise the error, or return the result of the refused move."""
        return self.choice(ctx, error.from_, error.to) if callable(self.choice) else self._refuse(error)


class MissingKeyPolicy(_Policy):
    """``on_missing_key``: a change for an update without a key."""

    __slots__ = ()
    option: ClassVar[str] = "on_missing_key"
    words: ClassVar[tuple[str, ...]] = ("raise", "log", "ignore")

    def refuse(self, error: NoKeyError) -> Literal[False]:
        """Raise the error, or return ``False``, the result of the refused change."""
        return self._refuse(error)


class DuplicatePolicy(_Policy):
    """``on_duplicate``: ``conversation()`` with an update that was handled before."""

    __slots__ = ("enters",)
    option: ClassVar[str] = "on_duplicate"
    words: ClassVar[tuple[str, ...]] = ("raise", "enter")

    def __init__(self, choice: str) -> None:
        super().__init__(choice)
        #: Enter the block for such an update instead of raising ``DuplicateUpdate``.
        self.enters: bool = choice == "enter"


class UnknownStatePolicy(_Policy):
    """``on_unknown_state``: a stored flow or state that is no longer declared."""

    __slots__ = ()
    option: ClassVar[str] = "on_unknown_state"
    words: ClassVar[tuple[str, ...]] = ("keep", "reset", "raise")
    arguments: ClassVar[str] = "(ctx, flow, state)"

    async def resolve(self, ctx: object, flow: str | None, state: str | None) -> Literal["keep", "reset"]:
        """Return whether to keep the record or to delete it, or raise ``UnknownStateError``.

        A function may move the context, and the record stays as the function left it.
        """
        if callable(self.choice):
            result = self.choice(ctx, flow, state)
            if inspect.isawaitable(result):
                await result
            return "keep"
        if self.choice == "raise":
            raise UnknownStateError(flow, state)
        if self.choice == "reset":
            return "reset"
        logger.warning(
            "the stored state %r of flow %r is not declared here and is kept; leave it with clear_flow(), "
            "start_flow(...) or set_state(..., flow=...)",
            state,
            flow,
        )
        return "keep"
