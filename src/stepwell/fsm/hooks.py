"""Hooks of a flow: ``on_enter`` and ``on_leave``, after the handler and before the commit, and ``migrate``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stepwell.errors import InvalidFlow, UsageError

if TYPE_CHECKING:
    from stepwell.fsm.context import Context, Move
    from stepwell.fsm.description import FlowDescription

__all__ = ["check_hooks", "hook_of", "run_hooks"]

#: What each hook is called with.
_HOOKS = {
    "on_enter": ("ctx", "state"),
    "on_leave": ("ctx", "state"),
    "migrate": ("old_revision", "state", "data"),
}
#: How often hooks may move on, for one update.
MOST_MOVES = 16


async def run_hooks(ctx: Context, moves: list[Move], flows: Mapping[str, FlowDescription]) -> None:
    """Run the hooks of all moves in order, and those of the moves that hooks make."""
    made_by_handler = len(moves)
    done = 0
    # The list grows while hooks move on.
    while done < len(moves):
        if len(moves) - made_by_handler > MOST_MOVES:
            raise UsageError(f"hooks have moved on more than {MOST_MOVES} times for one update; they go in a circle")
        left_flow, left_state, flow, state = moves[done]
        done += 1
        await _call("on_leave", ctx, flows, left_flow, left_state)
        await _call("on_enter", ctx, flows, flow, state)


async def _call(
    name: str, ctx: Context, flows: Mapping[str, FlowDescription], flow: str | None, state: str | None
) -> None:
    description = None if flow is None else flows.get(flow)
    hook: Any = None if description is None or state is None else description.hook(name)
    if hook is not None:
        result = hook(ctx, state)
        if inspect.isawaitable(result):
            await result


def hook_of(source: Any, name: str) -> Callable[..., Any] | None:
    """A hook of a flow's class or object as a function of its documented arguments; ``None`` where it has none."""
    hook = getattr(source, name, None)
    if not callable(hook):
        return None
    count = len(_HOOKS[name])
    if isinstance(source, type):
        if inspect.isfunction(hook) and _is_method(hook, count):
            # Written as a method, although the class itself was registered.
            hook = getattr(source(), name)
    elif inspect.ismethod(hook) and hook.__self__ is source and not _is_method(hook.__func__, count):
        # Written as a function, although an object was registered.
        hook = hook.__func__
    found: Callable[..., Any] = hook
    return found


def check_hooks(source: type, flow: str) -> None:
    """``InvalidFlow`` for a hook that cannot be called with its arguments."""
    for name, arguments in _HOOKS.items():
        hook = getattr(source, name, None)
        if not callable(hook):
            continue
        count = len(arguments)
        # A static method may call its first argument as it likes.
        written_static = isinstance(inspect.getattr_static(source, name), staticmethod)
        method = inspect.isfunction(hook) and not written_static and _is_method(hook, count)
        if not _takes(hook, count + method):
            written = ", ".join(inspect.signature(hook).parameters)
            raise InvalidFlow(
                flow, f"{name}({written}) does not take what it is called with; write {name}({', '.join(arguments)})"
            )
        if name == "migrate" and inspect.iscoroutinefunction(hook):
            raise InvalidFlow(flow, "migrate is an async def, but nothing can be awaited there; make it a def")


def _is_method(hook: Callable[..., Any], count: int) -> bool:
    """A function in the body of a class is meant as a method: it says so, or needs one argument more."""
    return next(iter(inspect.signature(hook).parameters), None) == "self" or not _takes(hook, count)


def _takes(hook: Callable[..., Any], count: int) -> bool:
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):
        # Written in C; it will say so itself.
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
