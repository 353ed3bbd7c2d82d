"""Finds hooks that never run as they are written: misspelt names, and generators."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, Final

__all__ = ["missing_prep", "problems_of_hooks"]

#: Likely misspellings of each hook, in lower case and without underscores. ``_exec`` and ``Exec`` are among them.
_MISSPELT: Final[dict[str, str]] = {
    **dict.fromkeys(("prep", "perp", "prepare", "prepasync", "prepareasync", "asyncprep", "aprep"), "prep"),
    **dict.fromkeys(("exec", "exce", "excec", "execute", "execasync", "executeasync", "asyncexec", "aexec"), "exec"),
    **dict.fromkeys(("post", "pots", "postasync", "asyncpost", "apost"), "post"),
    **dict.fromkeys(("execfallback", "fallback", "executefallback", "execfallbackasync"), "exec_fallback"),
}


def problems_of_hooks(node: object, path: str) -> list[str]:
    """Return the problems of a node's hooks, each with the likely meaning."""
    own = _own_attributes(node)
    problems = []
    for name, value in own.items():
        hook = _MISSPELT.get(name.replace("_", "").lower())
        if hook is None or name == hook or not callable(value) or not hasattr(node, hook):
            continue
        if hook not in own and not _is_used(name, own):
            how = f"async def {hook}(...)" if inspect.iscoroutinefunction(value) else f"{hook}()"
            problems.append(f"{path} defines {name}(), which a run never calls; did you mean {how}?")
    for hook in ("exec", "exec_fallback", "post", "undo"):
        function = own.get(hook)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            problems.append(
                f"{path}.{hook} is a generator, whose body would not run: collect the values in a list and return it"
            )
    return problems


def missing_prep(node: object, error: BaseException) -> str | None:
    """Return a note for an ``exec`` without a ``prep`` that has failed because it got ``None``, else ``None``."""
    if type(error) not in (TypeError, AttributeError) or "NoneType" not in str(error):
        return None
    own = _own_attributes(node)
    codes = set(_codes(own.get("exec")))
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    if "prep" in own or trace is None:
        return None
    name = type(node).__name__
    return f"{name} defines no prep(), so its exec got None: exec gets what prep(shared) returns, not the shared state"


def _own_attributes(node: object) -> dict[str, Any]:
    """Return what the node and the classes outside this package define, the most derived first."""
    own = dict(vars(node))
    for cls in type(node).__mro__:
        if cls.__module__.partition(".")[0] != "stepwell" and cls is not object:
            own = {**vars(cls), **own}
    return own


def _is_used(name: str, own: dict[str, Any]) -> bool:
    """Return whether one of the functions uses the name: then it is a helper method, not a misspelt hook."""
    return any(name in code.co_names for value in own.values() for code in _codes(value))


def _codes(value: object) -> Iterator[CodeType]:
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, staticmethod | classmethod):
        value = value.__func__
    found = [inspect.unwrap(value).__code__] if isinstance(value, FunctionType) else []
    for code in found:
        yield code
        found.extend(const for const in code.co_consts if isinstance(const, CodeType))
