"""Errors of stored data that cannot be decoded."""

from __future__ import annotations

from stepwell._secrets import quoted
from stepwell.errors.base import StepwellError


class StoredDataError(StepwellError):
    """Stored data cannot be decoded. It is left unchanged; set_state and clear still work.

    Example::

        try:
            state = await storage.get_state("my_bot", 42)
        except StoredDataError as error:
            print("run: stepwell doctor", error)
    """


class CorruptRecord(StoredDataError):
    """Stored data differs from what was written.

    Example::

        try:
            state = await storage.get_state("my_bot", 42)
        except CorruptRecord as error:
            print(error.place, error.why)
    """

    def __init__(self, place: str, what: str, why: str) -> None:
        self.place: str = place
        self.what: str = what
        self.why: str = why
        #: Whether a copy of the record was put into quarantine. Commands that only show a record keep no copy.
        self.copied: bool = False
        super().__init__(f"the record at {place} is damaged: {what} {why}; set_state() or clear() replaces the record")

    def __str__(self) -> str:
        return f"{super().__str__()}; a copy is kept in quarantine" if self.copied else super().__str__()


class UnknownType(StoredDataError):
    """A stored value has a type that is not registered in this process.

    Example::

        try:
            data = await storage.get_data("my_bot", 42)
        except UnknownType as error:
            print("import the module that registers", error.name)
    """

    def __init__(self, name: str) -> None:
        self.name: str = name
        if name.startswith("$"):
            super().__init__(
                f"a stored value has the tag {quoted(name)}, which this release does not support; upgrade stepwell"
            )
            return
        super().__init__(
            f"a stored value has the type {quoted(name)}, which is not registered here; import the module that "
            f"declares it, or register its successor with @record_type(name={quoted(name)})"
        )


class KeyMissing(StoredDataError):
    """A stored text is encrypted with a key that the reader does not have.

    Example::

        try:
            data = await storage.get_data("my_bot", 42)
        except KeyMissing as error:
            print("add the key", error.key_id)
    """

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
        super().__init__(
            f"the record at {place} is encrypted: {what} needs the key with the id {quoted(key_id)}; {todo}"
        )


class NotEncrypted(StoredDataError):
    """A stored text is not encrypted, and the reader does not allow that.

    Example::

        try:
            data = await storage.get_data("my_bot", 42)
        except NotEncrypted as error:
            print(error.place, "was written without encryption")
    """

    def __init__(self, place: str, what: str) -> None:
        self.place: str = place
        self.what: str = what
        super().__init__(
            f"the record at {place} has plaintext in an encrypted storage: {what} is not encrypted; find out which "
            "program wrote it; to encrypt records of earlier releases of a bot, use allow_plaintext=True and "
            "'stepwell rotate-keys'"
        )


class DamagedStorage(StoredDataError):
    """The structure of the store is damaged, not only a record.

    Example::

        try:
            await storage.open()
        except DamagedStorage as error:
            print("restore a backup:", error)
    """

    def __init__(self, where: str, why: str) -> None:
        self.where: str = where
        self.why: str = why
        super().__init__(f"{where} is damaged ({why}); stop writing to it, and restore it from a backup")


class NewerSchema(StoredDataError):
    """The storage was written by a newer release.

    Example::

        try:
            await storage.open()
        except NewerSchema as error:
            print("upgrade stepwell here:", error)
    """

    def __init__(self, where: str, found: int, known: int) -> None:
        self.where: str = where
        self.found: int = found
        self.known: int = known
        super().__init__(
            f"{where} has schema {found}, this release supports up to {known}; upgrade stepwell, or use another storage"
        )
