"""Large values: which ones are, how to know that one is unchanged, and a thread that encodes and decodes them."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

from stepwell.codec.types import PACKERS

if TYPE_CHECKING:
    from stepwell.codec.seal import Seal

__all__ = ["LARGE", "fingerprint", "in_thread", "is_large", "open_data", "seal_data"]

T = TypeVar("T")

#: Texts of more characters are decoded, and values of about as many encoded, in a thread.
LARGE = 64 * 1024
#: A value counts as large from so many values inside it on; each takes two characters at least.
_MANY = 4096

_CONTAINERS = frozenset({list, dict, tuple, set, frozenset})
_LEAVES = frozenset({str, int, float, bool, type(None), bytes})


def is_large(value: Any) -> bool:
    """Whether encoding a value may take longer than a few milliseconds. Looks at a few thousand values at most."""
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) > LARGE
    try:
        return kind not in _LEAVES and _left(value, _MANY) < 0
    except RecursionError:
        # Too deep to be stored, which encoding says.
        return False


def _left(value: Any, left: int) -> int:
    """Return what is left of a number of values; sixteen characters count as one. Less than none: it has more."""
    kind = type(value)
    if kind is dict:
        items = value.values()
    elif kind is list or kind is tuple:
        items = value
    else:
        items = value = _container(value)
        if type(value) is dict:
            items = value.values()
    left -= len(value) + 1
    if left < 0:
        return left
    for item in items:
        kind = type(item)
        if kind is str or kind is bytes:
            left -= len(item) >> 4
        elif kind not in _LEAVES:
            left = _left(item, left)
            if left < 0:
                return left
    return left


def _container(value: Any) -> Any:
    """Return a container itself, or the fields of an object of a registered class."""
    kind = type(value)
    if kind in _CONTAINERS:
        return value
    try:
        packed = PACKERS[kind](value)[2]
    except (AttributeError, KeyError):
        # Encoding says what is wrong with it.
        return ()
    return packed if type(packed) in _CONTAINERS else ()


def fingerprint(value: Any) -> bytes | None:
    """Return a hash that differs when the text of a value does; ``None`` for values that have none.

    It is a hash of the value's pickle, which is neither stored nor read, and takes a tenth of the time of encoding.
    Values that contain objects of other than the basic classes have no fingerprint.
    """
    digest = _Digest()
    pickler = _Pickler(digest, 5)
    pickler.fast = True
    try:
        pickler.dump(value)
    except (TypeError, ValueError, RuntimeError, RecursionError):
        # Of another class, inside itself, or changed meanwhile.
        return None
    return digest.hash.digest()


class _Digest:
    """Hashes what is written to it. Being called in Python lets other threads run now and then."""

    def __init__(self) -> None:
        self.hash = blake2b(digest_size=20)

    def write(self, data: Any, /) -> None:
        self.hash.update(data)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any, /) -> Any:
        raise TypeError(type(obj))


async def seal_data(seal: Seal, data: Mapping[Any, Any]) -> dict[str, str]:
    """``seal.fields(data)``, in a thread if it is large."""
    if isinstance(data, Mapping) and any(is_large(value) for value in data.values()):
        return await in_thread(seal.fields, dict(data), True)
    return seal.fields(data)


async def open_data(seal: Seal, fields: Mapping[str, str]) -> dict[Any, Any]:
    """``seal.data(fields)``, in a thread if it is large."""
    if sum(map(len, fields.values())) > LARGE:
        return await in_thread(seal.data, fields)
    return seal.data(fields)


_threads: list[ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):
    # A forked child has none of its parent's threads.
    os.register_at_fork(after_in_child=_threads.clear)


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a function in one of the codec's two threads."""
    if not _threads:
        _threads.append(ThreadPoolExecutor(2, "stepwell-codec"))
    return await asyncio.get_running_loop().run_in_executor(_threads[0], function, *args)
