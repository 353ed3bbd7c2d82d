"""Writing imported records: new ones only, unless they may be overwritten, each read back and compared."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepwell import Storage
from stepwell.engine import KEEP, NOWHERE, Apply, Get, Guard, OpenedHead, Place, Seal, Stored
from stepwell.errors import EncodeError, InvalidKey, RecordExists, StoredDataError, TooLarge, VersionChanged

__all__ = ["ImportProblem", "ImportResult", "ImportedRecord", "RecordImport"]


class ImportProblem(NamedTuple):
    """A key of the source, or a record, with the reason why it was not imported."""

    key: str
    why: str


@dataclass(slots=True, kw_only=True)
class ImportResult:
    """The progress and the result of an import."""

    #: The number of problems that are kept with their reasons. All are counted.
    most_problems: int = 100
    #: The records found in the source.
    read: int = 0
    #: The records written, or to be written in a dry run.
    written: int = 0
    #: Of the written ones, those that replaced a record.
    overwritten: int = 0
    #: The records that the storage already had.
    same: int = 0
    #: The records that the storage had with another state or other data. They were left alone.
    kept: int = 0
    #: The written records that were read again and found equal.
    verified: int = 0
    #: The keys that could not be read, and the records that could not be written or verified.
    failed: int = 0
    #: The first records that were left alone.
    kept_records: list[ImportProblem] = field(default_factory=list)
    #: The first failures.
    problems: list[ImportProblem] = field(default_factory=list)

    def keep(self, key: str, why: str) -> None:
        """Count a record that was left alone."""
        self.kept += 1
        if len(self.kept_records) < self.most_problems:
            self.kept_records.append(ImportProblem(key, why))

    def fail(self, key: str, why: str) -> None:
        """Count a failure."""
        self.failed += 1
        if len(self.problems) < self.most_problems:
            self.problems.append(ImportProblem(key, why))


class ImportedRecord(NamedTuple):
    """A record to write."""

    #: Its key in the source, for the report.
    source: str
    namespace: str
    key: Any
    place: Place
    data: Mapping[Any, Any]
    tags: tuple[str, ...]


class RecordImport:
    """Writes records to a storage and counts them."""

    def __init__(self, storage: Storage, result: ImportResult, *, overwrite: bool, dry_run: bool) -> None:
        self._storage = storage
        self._result = result
        self._overwrite = overwrite
        self._dry_run = dry_run

    async def write(self, records: Iterable[ImportedRecord]) -> None:
        """Write some records concurrently."""
        works = [self._write(record) for record in records]
        for outcome in await asyncio.gather(*works, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _write(self, record: ImportedRecord) -> None:
        storage, result = self._storage, self._result
        result.read += 1
        try:
            address = storage.address(record.namespace, record.key)
            seal = storage.seal(address)
            head, fields = seal.head(OpenedHead(record.place)), seal.fields(record.data)
        except (EncodeError, InvalidKey, TooLarge) as error:
            result.fail(record.source, str(error))
            return
        there: Stored | None = await storage.perform(Get(address))
        if there is not None:
            if _equal(seal, record.place, there, fields):
                result.same += 1
                return
            if not self._overwrite:
                result.keep(record.source, f"{address.text} has another state or other data")
                return
        if not self._dry_run:
            change = storage.change(
                address,
                replace=there is not None,
                fresh=there is None,
                # A new record without a state needs no head.
                head=KEEP if there is None and record.place == NOWHERE else head,
                set=fields,
                tags=record.tags,
            )
            guard = Guard(absent=True) if there is None else Guard(version=there.version)
            try:
                await storage.perform(Apply(address, change, guard))
            except TooLarge as error:
                result.fail(record.source, str(error))
                return
            except (RecordExists, VersionChanged):
                result.keep(record.source, f"{address.text} was written by another program meanwhile")
                return
            stored: Stored | None = await storage.perform(Get(address))
            if stored is None or not _equal(seal, record.place, stored, fields):
                result.fail(record.source, f"{address.text} has changed since it was written")
            else:
                result.verified += 1
        result.written += 1
        result.overwritten += there is not None


def _equal(seal: Seal, place: Place, stored: Stored, fields: Mapping[str, str]) -> bool:
    """Return whether a stored record has this state and data."""
    try:
        there = seal.open_head(stored.head).place
        same_place = (there.flow, there.state) == (place.flow, place.state)
        return same_place and (stored.fields == fields or seal.data(stored.fields) == seal.data(fields))
    except StoredDataError:
        return False
