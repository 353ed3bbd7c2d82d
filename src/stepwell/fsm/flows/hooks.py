"""Hooks of a flow, ``on_enter``, ``on_leave`` and ``migrate``: look them up and check their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stepwell.errors import InvalidFlow

__all__ = ["check_hooks", "hook_of", "takes"]

#: The arguments of each hook.
_HOOKS = {
    "on_enter": ("ctx", "state"),
    "on_leave": ("ctx", "state"),
    "migrate": ("old_revision", "state", "data"),
}


def hook_of(source: Any, name: str) -> Callable[..., Any] | None:
    """Return a hook of a class or object as a function of its documented arguments, or ``None`` if there is none."""
    hook = getattr(source, name, None)
    if not callable(hook):
        return None
    count = len(_HOOKS[name])
    if isinstance(source, type):
        if inspect.isfunction(hook) and _is_method(hook, count):
            # The hook is a method, but the class was registered and not an object of it.
            hook = getattr(source(), name)
    elif inspect.ismethod(hook) and hook.__self__ is source and not _is_method(hook.__func__, count):
        # The hook is a function without self, but an object was registered.
        hook = hook.__func__
    found: Callable[..., Any] = hook
    return found


def check_hooks(source: type, flow: str) -> None:
    """Raise ``InvalidFlow`` for a hook that does not take its arguments."""
    for name, arguments in _HOOKS.items():
        hook = getattr(source, name, None)
        if not callable(hook):
            continue
        count = len(arguments)
        # In a static method, the name of the first argument has no meaning.
        written_static = isinstance(inspect.getattr_static(source, name), staticmethod)
        method = inspect.isfunction(hook) and not written_static and _is_method(hook, count)
        if not takes(hook, count + method):
            written = ", ".join(inspect.signature(hook).parameters)
            raise InvalidFlow(flow, f"{name}({written}) has the wrong arguments; write {name}({', '.join(arguments)})")
        if name == "migrate" and inspect.iscoroutinefunction(hook):
            raise InvalidFlow(flow, "migrate is an async def, which is not supported; make it a def")


def _is_method(hook: Callable[..., Any], count: int) -> bool:
    """Return whether a function in a class body is a method: it has ``self``, or one argument more."""
    return next(iter(inspect.signature(hook).parameters), None) == "self" or not takes(hook, count)


def takes(hook: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with so many arguments."""
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):
        # A function written in C has no signature. It raises at its call if the arguments are wrong.
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
