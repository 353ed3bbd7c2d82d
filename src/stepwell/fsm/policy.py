"""Policies: the options of ``FSM`` for refused moves, missing keys, duplicates and unknown states."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption, UnknownStateError

__all__ = ["Policy", "UnknownStatePolicy"]

logger: logging.Logger = logging.getLogger(__name__)


class Policy:
    """One option of ``FSM``: one of some words or, with ``arguments``, a function of these arguments."""

    __slots__ = ("choice",)

    def __init__(
        self, option: str, choice: str | Callable[..., Any], words: tuple[str, ...], arguments: str = ""
    ) -> None:
        valid = choice in words if isinstance(choice, str) else arguments and callable(choice)
        if not valid:
            listed = ", ".join(map(quoted, words)) + (f" or a function {arguments}" if arguments else "")
            raise InvalidOption(f"{option}={quoted(choice)} is not supported; use one of {listed}")
        self.choice: str | Callable[..., Any] = choice

    def refuse(self, error: Exception, *arguments: object) -> Any:
        """Raise or log the error and return ``False``, or call the function and return its result."""
        if callable(self.choice):
            return self.choice(*arguments)
        if self.choice == "raise":
            raise error
        if self.choice == "log":
            logger.warning("%s", error)
        return False


class UnknownStatePolicy(Policy):
    """``on_unknown_state``: a stored flow or state that is no longer declared."""

    __slots__ = ("_warned",)

    def __init__(
        self, option: str, choice: str | Callable[..., Any], words: tuple[str, ...], arguments: str = ""
    ) -> None:
        super().__init__(option, choice, words, arguments)
        #: The flows and states of earlier warnings. A record may get many updates before it leaves its state.
        self._warned: set[tuple[str | None, str | None]] = set()

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
        if (flow, state) not in self._warned:
            self._warned.add((flow, state))
            logger.warning(
                "the stored state %r of flow %r is not declared here and is kept, in all records that have it; leave "
                "it with clear_flow(), start_flow(...) or set_state(..., flow=...)",
                state,
                flow,
            )
        return "keep"
