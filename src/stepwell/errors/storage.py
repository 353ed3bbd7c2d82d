"""Errors of storages and of what they keep."""

from __future__ import annotations

from stepwell.errors.base import StepwellError


class InvalidKey(StepwellError, TypeError, ValueError):
    """A key or a name cannot be an address."""


class UnknownScheme(StepwellError, ValueError):
    """No installed backend claims the URL's scheme."""

    def __init__(self, scheme: str, known: list[str]) -> None:
        self.scheme, self.known = scheme, known
        super().__init__(
            f"no storage is installed for {scheme!r}; known are {', '.join(known)}; "
            "a third-party backend joins through the entry point group 'stepwell.storage'"
        )


class EncodeError(StepwellError, TypeError, ValueError):
    """A value cannot be kept exactly, so it is refused before anything is written."""

    def __init__(self, path: str, type_name: str, why: str) -> None:
        self.path, self.type_name, self.why = path, type_name, why
        super().__init__(f"{path} ({type_name}) {why}")


class TooLarge(StepwellError, ValueError):
    """A key, value or record is beyond its limit; nothing was written."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(
            f"{what} takes {size} bytes, the limit is {limit}; keep large things elsewhere and store "
            "where they are, or raise the limit with limits=Limits(...)"
        )


class StoredDataError(StepwellError):
    """What is stored cannot be given back. It stays where it is; set_state and clear still work."""


class CorruptRecord(StoredDataError):
    """Stored bytes are not the ones that were written."""

    def __init__(self, place: str, what: str, why: str) -> None:
        self.place, self.what, self.why = place, what, why
        super().__init__(
            f"the record at {place} is damaged: {what} {why}; a copy is kept in quarantine, "
            "and set_state() or clear() gives the key a fresh start"
        )


class UnknownType(StoredDataError):
    """A stored value is of a type that nothing in this process has registered."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name.startswith("$"):
            super().__init__(f"a stored value is tagged {name!r}, which this release does not know; upgrade stepwell")
            return
        super().__init__(
            f"a stored value has the type {name!r}, which is not registered here; import the module that "
            f"declares it, or register its successor with @record_type(name={name!r})"
        )


class DamagedStorage(StoredDataError):
    """The store's own structure is broken, beyond one record."""

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        super().__init__(f"{where} is damaged ({why}); stop writing to it, and restore it from a backup")


class NewerSchema(StoredDataError):
    """The storage was written by a newer release."""

    def __init__(self, where: str, found: int, known: int) -> None:
        self.where, self.found, self.known = where, found, known
        super().__init__(
            f"{where} has schema {found}, this release knows up to {known}; upgrade stepwell, or use another storage"
        )


class Conflict(StepwellError):
    """Somebody else was there first."""


class Busy(Conflict, TimeoutError):
    """A key stayed claimed for as long as we were willing to wait. Nothing was handled; try it again later."""

    def __init__(self, place: str, waited: float) -> None:
        self.place, self.waited = place, waited
        super().__init__(
            f"{place} is still being handled elsewhere after {waited:g} s; nothing was lost: "
            "deliver the update again (a webhook answers 503), or wait longer with wait=..."
        )


class LeaseLost(Conflict):
    """The claim ran out before the commit, so nothing was written."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(
            f"the claim on {place} ran out before the commit, nothing was written; handle the update again, "
            "and keep blocking calls out of the event loop or raise lease=..."
        )


class RecordReplaced(Conflict):
    """The record was cleared or replaced while it was held, so nothing was written."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(
            f"the record at {place} was cleared or replaced while it was held, nothing was written; "
            "handle the update again on the new record"
        )


class VersionChanged(Conflict):
    """The record is not at the version that the writer saw, so nothing was written."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"the record at {place} has changed since it was read, nothing was written; read it again")


class StorageError(StepwellError):
    """The store itself failed."""


class StorageUnavailable(StorageError, ConnectionError):
    """The store cannot be reached or does not answer; nothing was written."""

    def __init__(self, message: str, *, sent: bool = True, final: bool = False) -> None:
        super().__init__(message)
        #: The request may have reached the store. For a write the caller then gets ``OutcomeUnknown``.
        self.sent = sent
        #: Trying again is pointless (a wrong password).
        self.final = final


class OutcomeUnknown(StorageError, ConnectionError):
    """A write was sent and never answered: it may or may not be applied."""

    def __init__(self, place: str, why: str) -> None:
        self.place, self.why = place, why
        super().__init__(
            f"the write to {place} was sent, but its answer never came ({why}); "
            "read the record before you write it again"
        )


class NotReplicated(OutcomeUnknown):
    """A write was applied, but no replica had it in time: it may still arrive, or be lost in a failover."""

    def __init__(self, place: str) -> None:
        self.place, self.why = place, "no replica had it in time"
        StorageError.__init__(
            self,
            f"the write to {place} is made, but no replica had it in time; it may still arrive there, or be lost "
            "if the server fails now; read the record before you write it again",
        )


class StorageFull(StorageError, OSError):
    """There is no room left; nothing was written and what was stored is intact."""


class NotCopied(StorageError):
    """After a copy some records differ between source and target."""

    def __init__(self, places: list[str]) -> None:
        self.places = places
        shown = ", ".join(places[:3]) + (", ..." if len(places) > 3 else "")
        super().__init__(
            f"{len(places)} records differ between source and target after the copy ({shown}); "
            "stop whatever writes to them, and copy again: what is there already is not copied twice"
        )


class StorageClosed(StorageError):
    """The storage was closed."""

    def __init__(self) -> None:
        super().__init__("this storage is closed; open it again with open() or a new 'async with'")
