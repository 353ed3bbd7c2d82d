"""Hooks of a flow: ``on_enter`` and ``on_leave``, after the handler and before the commit."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell.errors import UsageError
from stepwell.fsm.description import FlowDescription

if TYPE_CHECKING:
    from stepwell.fsm.context import Context

__all__ = ["Move", "run_hooks"]

#: How often hooks may move on, for one update.
MOST_MOVES = 16


class Move(NamedTuple):
    """One step of a conversation: what it left and what it entered."""

    left: tuple[str | None, str | None]
    entered: tuple[str | None, str | None]


async def run_hooks(ctx: Context, moves: list[Move], flows: Mapping[str, FlowDescription]) -> None:
    """Run the hooks of all moves in order, and those of the moves that hooks make."""
    made_by_handler = len(moves)
    done = 0
    # The list grows while hooks move on.
    while done < len(moves):
        if len(moves) - made_by_handler > MOST_MOVES:
            raise UsageError(f"hooks have moved on more than {MOST_MOVES} times for one update; they go in a circle")
        move = moves[done]
        done += 1
        await _call("on_leave", ctx, flows, *move.left)
        await _call("on_enter", ctx, flows, *move.entered)


async def _call(
    name: str, ctx: Context, flows: Mapping[str, FlowDescription], flow: str | None, state: str | None
) -> None:
    description = None if flow is None else flows.get(flow)
    hook: Any = None if description is None or state is None else description.hook(name)
    if hook is not None:
        result = hook(ctx, state)
        if inspect.isawaitable(result):
            await result
