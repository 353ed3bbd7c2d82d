"""Large values: detecting them and their changes, and encoding and decoding them in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import os
import pickle
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, TypeVar

from stepwell.codec.seal import Seal
from stepwell.codec.types import PACKERS

__all__ = ["LARGE", "fingerprint", "in_thread", "is_large", "open_data", "seal_data"]

T = TypeVar("T")

#: Texts of more characters, and values of about that size, are decoded and encoded in a thread.
LARGE = 64 * 1024
#: A value with more inner values than this is large; each of them takes at least two characters.
_MANY = 4096

_CONTAINERS = frozenset({list, tuple, set, frozenset})
_LEAVES = frozenset({str, int, float, bool, type(None), bytes})


def is_large(value: Any) -> bool:
    """Return whether encoding a value may take longer than a few milliseconds. Looks at a few thousand values.

    Example::

        from stepwell.engine import is_large

        assert is_large("x" * 10_000_000)
    """
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) > LARGE
    if kind in _LEAVES:
        return False
    left = _MANY
    containers = [value]
    for container in containers:
        kind = type(container)
        if kind is dict:
            items = container.values()
        elif kind is list or kind is tuple:
            items = container
        else:
            items = _items(container)
        left -= len(items) + 1
        if left < 0:
            return True
        for item in items:
            kind = type(item)
            if kind is str or kind is bytes:
                # Sixteen characters count as one value.
                left -= len(item) >> 4
            elif kind not in _LEAVES:
                containers.append(item)
    return left < 0


def _items(value: Any) -> Collection[Any]:
    """Return the items of a set, or the field values of an object of a registered class."""
    if type(value) is not set and type(value) is not frozenset:
        try:
            value = PACKERS[type(value)](value)[2]
        except (AttributeError, KeyError):
            # Encoding raises a readable error for it.
            return ()
    if type(value) is dict:
        return value.values()
    return value if type(value) in _CONTAINERS else ()


def fingerprint(value: Any) -> bytes | None:
    """Return a hash that changes whenever the encoded text of a value does.

    It hashes the value's pickle, which is never stored or read. This takes a tenth of the time of encoding. Returns
    ``None`` for values that contain objects of classes other than the basic ones.

    Example::

        from stepwell.engine import fingerprint

        assert fingerprint({"a": [1]}) == fingerprint({"a": [1]}) != fingerprint({"a": [2]})
    """
    digest = _Digest()
    pickler = _Pickler(digest, 5)
    pickler.fast = True
    try:
        pickler.dump(value)
    except (TypeError, ValueError, RuntimeError, RecursionError):
        # It contains another class or itself, or has changed meanwhile.
        return None
    return digest.hash.digest()


class _Digest:
    """A file that hashes its input. It is written in Python, so that other threads can run between calls."""

    def __init__(self) -> None:
        self.hash = blake2b(digest_size=20)

    def write(self, data: Any, /) -> None:
        self.hash.update(data)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any, /) -> Any:
        raise TypeError(type(obj))


async def seal_data(seal: Seal, data: Mapping[Any, Any]) -> dict[str, str]:
    """Return ``seal.fields(data)``; large data is encoded in a thread.

    Example::

        from stepwell.engine import seal_data

        address = storage.address("my_bot", 42)
        fields = await seal_data(storage.seal(address), {"name": "Ann"})
    """
    if isinstance(data, Mapping) and any(is_large(value) for value in data.values()):
        return await in_thread(seal.fields, dict(data), True)
    return seal.fields(data)


async def open_data(seal: Seal, fields: Mapping[str, str]) -> dict[Any, Any]:
    """Return ``seal.data(fields)``; large fields are decoded in a thread."""
    if sum(map(len, fields.values())) > LARGE:
        return await in_thread(seal.data, fields)
    return seal.data(fields)


_threads: list[ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):
    # A forked child does not have its parent's threads.
    os.register_at_fork(after_in_child=_threads.clear)


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a function in one of the codec's two threads, in the context of the caller, and return its result.

    Example::

        from stepwell.engine import in_thread

        assert await in_thread(sorted, [3, 1, 2]) == [1, 2, 3]
    """
    if not _threads:
        _threads.append(ThreadPoolExecutor(2, "stepwell-codec"))
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_threads[0], context.run, function, *args)
