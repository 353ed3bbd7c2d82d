"""The hooks of a node, ``prep``, ``exec``, ``post`` and ``exec_fallback``: found at compile time, then called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CoroutineType, FunctionType
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Hook", "Hooks", "call_hook", "hook_of", "is_async"]

#: A hook as a function of the node.
Hook: TypeAlias = Callable[..., Any]


class Hooks(NamedTuple):
    """The names of the methods that the runner calls on a class of nodes."""

    prep: str = "prep"
    exec: str = "exec"
    post: str = "post"
    fallback: str = "exec_fallback"


async def call_hook(hook: Hook, *args: Any) -> Any:
    """Call a hook, and await its result if it is a coroutine."""
    result = hook(*args)
    return await result if type(result) is CoroutineType else result


def is_async(hook: object) -> bool:
    """Return whether a hook is an ``async def``, with or without ``yield``."""
    return inspect.iscoroutinefunction(hook) or inspect.isasyncgenfunction(hook)


def hook_of(node: object, name: str) -> Hook:
    """Return a hook as a function of the node, so that a visit needs no lookup."""
    found = inspect.getattr_static(type(node), name, None)
    if isinstance(found, FunctionType) and name not in vars(node):
        return found
    if is_async(getattr(node, name, None)):

        async def call_async(node: object, *args: Any) -> Any:
            result = getattr(node, name)(*args)
            return result if inspect.isasyncgen(result) else await result

        return call_async
    return lambda node, *args: getattr(node, name)(*args)
