"""Errors of storages and of stored data."""

from __future__ import annotations

from stepwell.errors.base import StepwellError


class InvalidKey(StepwellError, TypeError, ValueError):
    """A key or a bot's name has an unsupported type or value."""


class UnknownScheme(StepwellError, ValueError):
    """No installed backend supports the scheme of a URL."""

    def __init__(self, scheme: str, known: list[str]) -> None:
        self.scheme: str = scheme
        self.known: list[str] = known
        problem = (
            f"no storage is installed for {scheme!r}"
            if scheme
            else "the URL of the storage has no scheme; write it like sqlite:///bot.db"
        )
        super().__init__(
            f"{problem}; supported are {', '.join(known)}; "
            "third-party backends register in the entry point group 'stepwell.storage'"
        )


class EncodeError(StepwellError, TypeError, ValueError):
    """A value cannot be stored exactly. Nothing was written."""

    def __init__(self, path: str, type_name: str, why: str) -> None:
        self.path: str = path
        self.type_name: str = type_name
        self.why: str = why
        super().__init__(f"{path} ({type_name}) {why}")


class TooLarge(StepwellError, ValueError):
    """A key, value or record exceeds its limit. Nothing was written."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what: str = what
        self.size: int = size
        self.limit: int = limit
        super().__init__(
            f"{what} takes {size} bytes, the limit is {limit}; store large values elsewhere and keep a reference "
            "here, or raise the limit with limits=Limits(...)"
        )


class StoredDataError(StepwellError):
    """Stored data cannot be decoded. It is left unchanged; set_state and clear still work."""


class CorruptRecord(StoredDataError):
    """Stored data differs from what was written."""

    def __init__(self, place: str, what: str, why: str) -> None:
        self.place: str = place
        self.what: str = what
        self.why: str = why
        super().__init__(
            f"the record at {place} is damaged: {what} {why}; a copy is kept in quarantine; "
            "set_state() or clear() replaces the record"
        )


class UnknownType(StoredDataError):
    """A stored value has a type that is not registered in this process."""

    def __init__(self, name: str) -> None:
        self.name: str = name
        if name.startswith("$"):
            super().__init__(
                f"a stored value has the tag {name!r}, which this release does not support; upgrade stepwell"
            )
            return
        super().__init__(
            f"a stored value has the type {name!r}, which is not registered here; import the module that "
            f"declares it, or register its successor with @record_type(name={name!r})"
        )


class KeyMissing(StoredDataError):
    """A stored text is encrypted with a key that the reader does not have."""

    def __init__(self, place: str, what: str, key_id: str, known: list[str] | None = None) -> None:
        self.place: str = place
        self.what: str = what
        #: The id of the key. It does not reveal the key.
        self.key_id: str = key_id
        #: The ids of the reader's keys; ``None`` if it does not use ``SealedStorage``, empty without ``names_key``.
        self.known: list[str] | None = known
        if known is None:
            todo = (
                "the storage was opened without keys; use SealedStorage, or write sealed+ before its URL, as in "
                "sealed+sqlite:///bot.db, and set STEPWELL_KEYS"
            )
        elif not known:
            todo = "the names of this storage are encrypted; pass names_key=..., or set STEPWELL_NAMES_KEY"
        else:
            todo = f"the keys here have the ids {', '.join(known)}; add the missing key behind them"
        super().__init__(f"the record at {place} is encrypted: {what} needs the key with the id {key_id!r}; {todo}")


class NotEncrypted(StoredDataError):
    """A stored text is not encrypted, and the reader does not allow that."""

    def __init__(self, place: str, what: str) -> None:
        self.place: str = place
        self.what: str = what
        super().__init__(
            f"the record at {place} has plaintext in an encrypted storage: {what} is not encrypted; find out which "
            "program wrote it; to encrypt records of earlier releases of a bot, use allow_plaintext=True and "
            "'stepwell rotate-keys'"
        )


class DamagedStorage(StoredDataError):
    """The structure of the store is damaged, not only a record."""

    def __init__(self, where: str, why: str) -> None:
        self.where: str = where
        self.why: str = why
        super().__init__(f"{where} is damaged ({why}); stop writing to it, and restore it from a backup")


class NewerSchema(StoredDataError):
    """The storage was written by a newer release."""

    def __init__(self, where: str, found: int, known: int) -> None:
        self.where: str = where
        self.found: int = found
        self.known: int = known
        super().__init__(
            f"{where} has schema {found}, this release supports up to {known}; upgrade stepwell, or use another storage"
        )


class Conflict(StepwellError):
    """Another task or process changed or holds the record."""


class Busy(Conflict, TimeoutError):
    """A key was still claimed after the whole waiting time. Nothing was handled; retry later."""

    def __init__(self, place: str, waited: float) -> None:
        self.place: str = place
        self.waited: float = waited
        super().__init__(
            f"{place} is still being handled elsewhere after {waited:g} s; nothing was lost: "
            "deliver the update again (a webhook responds with 503), or wait longer with wait=..."
        )


class LeaseLost(Conflict):
    """The claim expired before the commit. Nothing was written."""

    def __init__(self, place: str) -> None:
        self.place: str = place
        super().__init__(
            f"the claim on {place} expired before the commit, nothing was written; handle the update again, "
            "and move blocking calls out of the event loop or raise lease=..."
        )


class RecordReplaced(Conflict):
    """The record was cleared or replaced while it was held. Nothing was written."""

    def __init__(self, place: str) -> None:
        self.place: str = place
        super().__init__(
            f"the record at {place} was cleared or replaced while it was held, nothing was written; "
            "handle the update again on the new record"
        )


class VersionChanged(Conflict):
    """The record does not have the version that the writer expected. Nothing was written."""

    def __init__(self, place: str) -> None:
        self.place: str = place
        super().__init__(f"the record at {place} has changed since it was read, nothing was written; read it again")


class RecordExists(Conflict):
    """There is a record where the writer expected none. Nothing was written."""

    def __init__(self, place: str) -> None:
        self.place: str = place
        super().__init__(f"there is already a record at {place}, nothing was written; read it, or use another key")


class StorageError(StepwellError):
    """The store failed."""


class StorageUnavailable(StorageError, ConnectionError):
    """The store cannot be reached or does not answer. Nothing was written."""

    def __init__(self, message: str, *, sent: bool = True, final: bool = False) -> None:
        super().__init__(message)
        #: Whether the request may have reached the store. Callers of a write then get ``OutcomeUnknown``.
        self.sent: bool = sent
        #: Whether retrying is pointless, as after a wrong password.
        self.final: bool = final


class OutcomeUnknown(StorageError, ConnectionError):
    """A write was sent but not answered. It may or may not have been applied."""

    def __init__(self, place: str, why: str) -> None:
        self.place: str = place
        self.why: str = why
        super().__init__(
            f"the write to {place} was sent but not answered ({why}); read the record before you write it again"
        )


class NotReplicated(OutcomeUnknown):
    """A write was applied, but too few replicas had it in time. A failover may lose it."""

    def __init__(self, place: str) -> None:
        self.place: str = place
        self.why: str = "too few replicas had it in time"
        StorageError.__init__(
            self,
            f"the write to {place} was applied, but too few replicas had it in time; a failover may lose it; "
            "read the record before you write it again",
        )


class StorageFull(StorageError, OSError):
    """The store is full. Nothing was written, and stored records are intact."""


class NotCopied(StorageError):
    """Some records differ between source and target after a copy."""

    def __init__(self, places: list[str]) -> None:
        self.places: list[str] = places
        shown = ", ".join(places[:3]) + (", ..." if len(places) > 3 else "")
        super().__init__(
            f"{len(places)} records differ between source and target after the copy ({shown}); "
            "stop the programs that write to them, and copy again; records that are equal are skipped"
        )


class StorageClosed(StorageError):
    """The storage was closed."""

    def __init__(self) -> None:
        super().__init__("this storage is closed; open it again with open() or a new 'async with'")
