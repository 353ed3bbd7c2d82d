"""Every error of the library.

StepwellError
├── UsageError (also RuntimeError)             the call itself is wrong here
│   ├── WrongLoop                              a storage used from a loop that did not open it
│   ├── AlreadyHeld                            a task claims a key that it holds already
│   └── InsideLoop                             a sync entry point called where it would block a loop
├── InvalidKey (also TypeError, ValueError)    a key or a name that cannot be an address
├── InvalidOption (also ValueError)            an unknown option, or a value that it cannot have
├── UnknownScheme (also ValueError)            a URL that no installed backend claims
├── MissingExtra (also ImportError)            an optional package is not installed
├── Unsupported (also NotImplementedError)     this backend does not have that optional protocol
├── EncodeError (also TypeError, ValueError)   a value that cannot be kept, with its path and type
├── TooLarge (also ValueError)                 a key, value or record beyond its limit
├── StoredDataError                            what is stored cannot be given back
│   ├── CorruptRecord                          bytes changed under us: checksum, syntax or limits
│   ├── UnknownType                            a stored type that nothing here has registered
│   └── NewerSchema                            written by a newer release
├── Conflict                                   somebody else was there first
│   ├── Busy (also TimeoutError)               the key stayed claimed for as long as we would wait
│   ├── LeaseLost                              the claim ran out; nothing was written
│   ├── RecordReplaced                         cleared or replaced under the holder; nothing was written
│   └── VersionChanged                         not the version that was shown; nothing was written
└── StorageError
    ├── StorageUnavailable (also ConnectionError)   not reached; nothing was written
    ├── OutcomeUnknown (also ConnectionError)       sent, never answered: it may be applied
    │   └── NotReplicated                           applied, but on no replica yet: a failover may lose it
    ├── StorageFull (also OSError)                  no room; nothing was written
    └── StorageClosed                               used after close()
"""

from __future__ import annotations


class StepwellError(Exception):
    """Everything that the library raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process pools; their constructors take fields, not the message.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[StepwellError], args: tuple[object, ...], fields: dict[str, object]) -> StepwellError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class UsageError(StepwellError, RuntimeError):
    """The call cannot work here, whatever is stored."""


class WrongLoop(UsageError):
    """A storage is used from an event loop that did not open it."""

    def __init__(self) -> None:
        super().__init__(
            "this storage was opened by another event loop; open one storage per loop, "
            "or close() it there before using it here"
        )


class AlreadyHeld(UsageError):
    """A task claims a key that it already holds: waiting would be for itself."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"this task already holds {place}; use the context it has instead of entering a second one")


class InsideLoop(UsageError):
    """A sync entry point is called where it would block a running event loop."""

    def __init__(self, instead: str = "await the coroutine") -> None:
        super().__init__(f"a sync call inside a running event loop would block it; {instead} instead")


class InvalidKey(StepwellError, TypeError, ValueError):
    """A key or a name cannot be an address."""


class InvalidOption(StepwellError, ValueError):
    """An option is unknown, or has a value that it cannot have."""


class UnknownScheme(StepwellError, ValueError):
    """No installed backend claims the URL's scheme."""

    def __init__(self, scheme: str, known: list[str]) -> None:
        self.scheme, self.known = scheme, known
        super().__init__(
            f"no storage is installed for {scheme!r}; known are {', '.join(known)}; "
            "a third-party backend joins through the entry point group 'stepwell.storage'"
        )


class MissingExtra(StepwellError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed; run: pip install 'stepwell[{extra}]'", name=package)


class Unsupported(StepwellError, NotImplementedError):
    """A backend lacks an optional protocol."""

    def __init__(self, backend: str, what: str) -> None:
        self.backend, self.what = backend, what
        super().__init__(f"{backend} cannot {what}; use one of the four built-in storages for that")


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
            f"the record at {place} is damaged: {what} {why}; nothing was changed, a copy is kept in "
            "quarantine; set_state() or clear() gives the key a fresh start"
        )


class UnknownType(StoredDataError):
    """A stored value is of a type that nothing in this process has registered."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"a stored value has the type {name!r}, which is not registered here; import the module that "
            f"declares it, or register its successor with @record_type(name={name!r})"
        )


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


class StorageClosed(StorageError):
    """The storage was closed."""

    def __init__(self) -> None:
        super().__init__("this storage is closed; open it again with open() or a new 'async with'")
