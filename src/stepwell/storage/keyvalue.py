"""A storage on top of any store that reads and writes whole values."""

from __future__ import annotations

import errno
import json
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from zlib import crc32

from stepwell.codec.json import to_builtins
from stepwell.codec.values import conform
from stepwell.errors import CorruptRecord, StepwellError, StorageError, StorageFull
from stepwell.record import Address, Limits, Stored
from stepwell.storage.contract import Storage
from stepwell.storage.operations import Apply, Get, Operation, Result
from stepwell.storage.reference import NEVER, Cell

__all__ = ["KeyValueStorage"]


class KeyValueStorage(Storage):
    """A storage that needs only three methods: ``read``, ``write``, ``delete``.

    It is safe only within one process and one storage object: claims are kept in memory, and a change is a read and
    a write. It cannot list records, find deadlines or sweep. The next access to an expired record removes it.

    Example::

        class DictStorage(KeyValueStorage):
            texts: dict[Address, str] = {}

            async def read(self, address):
                return self.texts.get(address)

            async def write(self, address, text):
                self.texts[address] = text

            async def delete(self, address):
                self.texts.pop(address, None)
    """

    shared = False

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] | None = None,
        ids: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(limits=limits, clock=clock, ids=ids, sweep_every=None)
        self._now = clock or time.time
        #: Token, end of the lease, and the base of a record that was forgotten meanwhile.
        self._leases: dict[Address, tuple[str, float, str]] = {}

    @abstractmethod
    async def read(self, address: Address) -> str | None:
        """Return the text at an address (``address.text`` is a unique readable name), or ``None``."""

    @abstractmethod
    async def write(self, address: Address, text: str) -> None:
        """Replace the text at an address atomically; it must be durable on return."""

    @abstractmethod
    async def delete(self, address: Address) -> None:
        """Remove the text at an address, if there is one."""

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        # Errors are returned, not raised: raising would mean that the whole batch was rolled back.
        return [await self._guarded(operation) for operation in operations]

    async def _guarded(self, operation: Operation) -> Result:
        try:
            return await self._do(operation)
        except StepwellError as error:
            return error
        except Exception as error:  # noqa: BLE001 an error of the store concerns this operation only
            is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            why = error if isinstance(error, OSError) else type(error).__name__
            failed = (StorageFull if is_full else StorageError)(
                f"{type(self).__name__} failed at {operation.address.text}: {why}"
            )
            failed.__cause__ = error
            return failed

    async def _do(self, operation: Operation) -> Result:
        address = operation.address
        now = self._now()
        text = await self.read(address)
        try:
            cell = Cell() if text is None else _cell(address, text)
        except CorruptRecord:
            await self._quarantine_text(address, text or "")
            if not _is_replacement(operation):
                raise
            cell = Cell()
        cell.token, cell.leased_until, base = self._leases.get(address, (None, 0.0, ""))
        cell.base = cell.base or base
        result = cell.do(operation, now)
        await self._keep(address, operation, cell, text, now)
        # Last, because a failed write must not change the lease.
        if cell.leased(now) and cell.token is not None:
            self._leases[address] = (cell.token, cell.leased_until, cell.base)
        else:
            self._leases.pop(address, None)
        return result

    async def _keep(self, address: Address, operation: Operation, cell: Cell, text: str | None, now: float) -> None:
        left: Cell | None = cell
        if not cell.alive and cell.version == NEVER and cell.memo_until <= now:
            left = None
        elif cell.removable(now):
            left = cell.remains(now)
        if left is None:
            if text is not None:
                await self.delete(address)
        elif left is not cell or type(operation) is not Get:
            new = _text(address, left)
            if new != text:
                await self.write(address, new)

    async def _quarantine_text(self, address: Address, text: str) -> None:
        damaged = Stored(version=NEVER, base="", written_at=0.0, head=None, fields={"text": text})
        copy = self.copy_of_damage(address, damaged)
        if await self.read(copy.address) is None:
            await self._do(copy)


def _is_replacement(operation: Operation) -> bool:
    """Return whether it does not depend on the previous record."""
    return (
        isinstance(operation, Apply)
        and operation.guard is None
        and (operation.change.delete or operation.change.replace)
    )


def _text(address: Address, cell: Cell) -> str:
    row = to_builtins(cell)
    del row["token"], row["leased_until"], row["part_names"]
    body = json.dumps(row, ensure_ascii=False)
    return f"{_checksum(address, body):08x} {body}"


def _checksum(address: Address, body: str) -> int:
    return crc32(f"{address.text}\n{body}".encode("utf-8", "surrogatepass"))


def _cell(address: Address, text: str) -> Cell:
    body = text[9:]
    if text[:9] != f"{_checksum(address, body):08x} ":
        raise CorruptRecord(address.text, "the stored text", "does not match its checksum")
    try:
        cell, problem = conform(json.loads(body), Cell)
    except (ValueError, RecursionError) as error:
        problem = type(error).__name__
    if problem is not None:
        raise CorruptRecord(address.text, "the stored text", f"cannot be read ({problem})")
    assert isinstance(cell, Cell)
    return cell
