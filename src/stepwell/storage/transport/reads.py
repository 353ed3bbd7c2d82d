"""Reads that may be repeated, because they change nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from stepwell.errors import StorageUnavailable

__all__ = ["read_again"]

T = TypeVar("T")

#: Seconds. A failure after a longer time is an outage, not a connection that the server has closed.
QUICK = 1.0


async def read_again(read: Callable[[], Awaitable[T]]) -> T:
    """Read, and once more if the connection is broken: a server or a firewall may have closed one that was idle."""
    began = monotonic()
    try:
        return await read()
    except StorageUnavailable as error:
        if error.final or monotonic() - began > QUICK:
            raise
    return await read()
