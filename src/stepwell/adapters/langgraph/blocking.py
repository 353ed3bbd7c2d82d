"""How the sync methods of a saver and a store run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from stepwell import Storage
from stepwell.engine import sync_on

__all__ = ["blocking", "run_blocking"]


class HasStorage(Protocol):
    """A saver or a store."""

    storage: Storage


S = TypeVar("S", bound=HasStorage)
T = TypeVar("T")
P = ParamSpec("P")


def run_blocking(storage: Storage, awaitable: Awaitable[T]) -> T:
    """Run an awaitable and wait for its result.

    It runs on the loop in which the storage is open: LangGraph runs ``def`` nodes of ``ainvoke()`` in threads, and they
    may call the store or another graph.
    """
    return sync_on(storage.loop, awaitable, "call the asynchronous method, such as graph.ainvoke() or store.aput(),")


def blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[S, P], T]:
    """Return the sync method for an asynchronous one. It sees the context variables of its caller, and sets none."""

    @wraps(method)
    def call(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_blocking(self.storage, method(self, *args, **kwargs))

    # The names of positional parameters differ.
    return cast("Callable[Concatenate[S, P], T]", call)
