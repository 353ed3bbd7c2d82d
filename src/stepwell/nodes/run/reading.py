"""Reads the record of a run, whoever holds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from stepwell.codec import decode_key
from stepwell.errors import UnknownRun
from stepwell.nodes.run.table import table_of
from stepwell.record import RUNS, Address, Place, Range, Stored
from stepwell.storage import Storage
from stepwell.storage.operations import Get, Operation

__all__ = ["Perform", "ReadRun", "read_known_run", "read_run"]

#: Performs an operation, and returns its result or raises its error.
Perform = Callable[[Operation], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRun:
    """A run as it was read."""

    address: Address
    stored: Stored
    place: Place
    table: dict[str, Any]


async def read_run(storage: Storage, run: str | Address) -> ReadRun | None:
    """Return a run, given by its id or its address, or ``None`` if there is none; a damaged one is quarantined."""
    try:
        return await read_known_run(storage, run)
    except UnknownRun:
        return None


async def read_known_run(
    storage: Storage, run: str | Address, *, parts: bool | Range = False, perform: Perform | None = None
) -> ReadRun:
    """Return a run; raise ``UnknownRun`` if there is none, or if its record has only a state.

    ``perform`` reads it; by default that of the storage.
    """
    address = storage.address(RUNS, run) if isinstance(run, str) else run
    stored: Stored | None = await (perform or storage.perform)(Get(address, parts=parts))
    if stored is None:
        raise UnknownRun(decode_key(address.key))
    head = await storage.read_head(address, stored)
    table = table_of(head, address)
    if table is None:
        raise UnknownRun(decode_key(address.key), state_only=True)
    return ReadRun(address=address, stored=stored, place=head.place, table=table)
