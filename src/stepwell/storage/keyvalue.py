"""A storage from anything that can read and write whole values."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict

from stepwell.errors import CorruptRecord
from stepwell.record import Address, Head, Limits, Version
from stepwell.storage.cell import Cell
from stepwell.storage.contract import Storage
from stepwell.storage.operations import Get, Operation, Result

__all__ = ["KeyValueStorage"]


class KeyValueStorage(Storage):
    """A whole storage over three small methods: ``read``, ``write``, ``delete``.

    Safe within one process and one storage object only: claims are kept in memory, and a change is a read
    and a write. It cannot list records, find deadlines or sweep.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
        ids: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(limits=limits, clock=clock, ids=ids, sweep_every=None)
        self._now = clock or time.time
        self._leases: dict[Address, tuple[str, float]] = {}

    @abstractmethod
    async def read(self, address: Address) -> str | None:
        """The text last written at an address (``address.text`` is a unique readable name), or ``None``."""

    @abstractmethod
    async def write(self, address: Address, text: str) -> None:
        """Replace the text at an address, durably before it returns, and never half of it."""

    @abstractmethod
    async def delete(self, address: Address) -> None:
        """Remove the text at an address, if there is one."""

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        return [await self._do(operation) for operation in operations]

    async def _do(self, operation: Operation) -> Result:
        address = operation.address
        now = self._now()
        text = await self.read(address)
        cell = Cell() if text is None else _cell(address, text)
        cell.token, cell.leased_until = self._leases.get(address, (None, 0.0))
        result = cell.do(operation, now)
        if cell.leased(now) and cell.token is not None:
            self._leases[address] = (cell.token, cell.leased_until)
        else:
            self._leases.pop(address, None)
        await self._keep(address, operation, cell, text, now)
        return result

    async def _keep(self, address: Address, operation: Operation, cell: Cell, text: str | None, now: float) -> None:
        if cell.removable(now) and not cell.alive:
            if text is not None:
                await self.delete(address)
        elif type(operation) is not Get and cell.version.number:
            new = _text(cell)
            if new != text:
                await self.write(address, new)


def _text(cell: Cell) -> str:
    row = asdict(cell)
    del row["token"], row["leased_until"]
    return json.dumps(row, ensure_ascii=False)


def _cell(address: Address, text: str) -> Cell:
    try:
        row = json.loads(text)
        row["version"] = Version(*row["version"])
        row["head"] = Head(*row["head"]) if row["head"] is not None else None
        row["tags"] = tuple(row["tags"])
        return Cell(**row)
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptRecord(address.text, "the stored text", f"cannot be read ({error})") from error
