"""What the writer saw or left of records, so that a usual write need not read one first."""

from __future__ import annotations

from typing import NamedTuple

from stepwell.record import Address, Change
from stepwell.storage.sqlite.columns import Row

__all__ = ["Known", "KnownRecords"]

#: So many records are known at a time, with so many characters together.
MOST_RECORDS, MOST_TEXT = 4096, 8 * 1024 * 1024


class Known(NamedTuple):
    """A record as it was. While its row has the same version, this is what is stored."""

    row: Row
    fields: dict[str, str]
    #: How much text this keeps in memory.
    weight: int

    @classmethod
    def of(cls, row: Row, fields: dict[str, str]) -> Known:
        """A record with all of its fields."""
        return cls(row, fields, _weight(row) + sum(map(len, fields)) + sum(map(len, fields.values())))

    def after(self, change: Change, row: Row) -> Known:
        """The same record after a change of its fields, which are changed in place."""
        fields, weight = self.fields, self.weight + _weight(row) - _weight(self.row)
        for name in change.unset:
            if name in fields:
                weight -= len(name) + len(fields.pop(name))
        for name, text in change.set.items():
            weight += len(text) - len(fields[name]) if name in fields else len(name) + len(text)
            fields[name] = text
        return Known(row, fields, weight)


class KnownRecords:
    """The records that were seen last, up to a number and a size."""

    def __init__(self) -> None:
        self.weight = 0
        self._records: dict[Address, Known] = {}

    def __len__(self) -> int:
        return len(self._records)

    def take(self, address: Address) -> Known | None:
        """What is known of a record; it is forgotten with that."""
        known = self._records.pop(address, None)
        if known is not None:
            self.weight -= known.weight
        return known

    def put(self, address: Address, known: Known) -> None:
        """Remember a record, and forget the oldest ones if that is too much. The newest one is always kept."""
        self.take(address)
        self._records[address] = known
        self.weight += known.weight
        while len(self._records) > MOST_RECORDS or (self.weight > MOST_TEXT and len(self._records) > 1):
            self.take(next(iter(self._records)))


def _weight(row: Row) -> int:
    return len(row.head or "") + len(row.tags or "")
