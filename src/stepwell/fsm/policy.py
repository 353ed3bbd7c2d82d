"""Policies: what happens when a move, a key or an update is not as it should be."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal

from stepwell.errors import InvalidOption, NoKeyError, TransitionError, UnknownStateError

__all__ = ["DuplicatePolicy", "MissingKeyPolicy", "TransitionPolicy", "UnknownStatePolicy"]

_log = logging.getLogger(__name__)


class _Policy:
    """One option of ``FSM``, checked when it is given."""

    __slots__ = ("choice",)

    option: str
    words: tuple[str, ...]
    #: What a function in its place is called with; empty where none is taken.
    arguments: str = ""

    def __init__(self, choice: Any) -> None:
        taken = choice in self.words if isinstance(choice, str) else self.arguments and callable(choice)
        if not taken:
            words = ", ".join(repr(word) for word in self.words)
            function = f" or a function {self.arguments}" if self.arguments else ""
            raise InvalidOption(f"{self.option}={choice!r} is not possible; give one of {words}{function}")
        self.choice: Any = choice

    def __repr__(self) -> str:
        return f"{self.option}={self.choice!r}"


class TransitionPolicy(_Policy):
    """``on_invalid_transition``: a move that the flow does not declare."""

    __slots__ = ()
    option = "on_invalid_transition"
    words = ("raise", "log", "ignore")
    arguments = "(ctx, from_, to)"

    def refuse(self, ctx: object, error: TransitionError) -> Any:
        """What the refused move returns, unless the error is raised. Nothing has changed."""
        if callable(self.choice):
            return self.choice(ctx, error.from_, error.to)
        if self.choice == "raise":
            raise error
        if self.choice == "log":
            _log.warning("%s", error)
        return False


class MissingKeyPolicy(_Policy):
    """``on_missing_key``: a change where the update has no key."""

    __slots__ = ()
    option = "on_missing_key"
    words = ("raise", "log", "ignore")

    def refuse(self, error: NoKeyError) -> Literal[False]:
        """``False``, which the refused change returns, unless the error is raised."""
        if self.choice == "raise":
            raise error
        if self.choice == "log":
            _log.warning("%s", error)
        return False


class DuplicatePolicy(_Policy):
    """``on_duplicate``: ``conversation()`` with an update that was handled before."""

    __slots__ = ("enters",)
    option = "on_duplicate"
    words = ("raise", "enter")

    def __init__(self, choice: Any) -> None:
        super().__init__(choice)
        #: Enter such an update instead of raising ``DuplicateUpdate``.
        self.enters = choice == "enter"


class UnknownStatePolicy(_Policy):
    """``on_unknown_state``: a stored flow or state that is no longer declared."""

    __slots__ = ()
    option = "on_unknown_state"
    words = ("keep", "reset", "raise")
    arguments = "(ctx, flow, state)"

    async def resolve(self, ctx: object, flow: str | None, state: str | None) -> Literal["keep", "reset"]:
        """Whether the stored names stay or the conversation begins anew, unless an error is raised.

        A function gets the context, moves it as it likes, and what it left there stays.
        """
        if callable(self.choice):
            choice: Callable[..., Any] = self.choice
            result = choice(ctx, flow, state)
            if inspect.isawaitable(result):
                await result
            return "keep"
        if self.choice == "raise":
            raise UnknownStateError(flow, state)
        if self.choice == "keep":
            _log.warning(
                "the stored state %r of flow %r is not declared here; it is kept, and only clear_flow, "
                "start_flow and set_state(..., flow=...) lead out of it",
                state,
                flow,
            )
            return "keep"
        return "reset"
