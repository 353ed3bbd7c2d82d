"""Errors of storages, keys and values."""

from __future__ import annotations

from stepwell._secrets import quoted
from stepwell.errors.base import StepwellError


class InvalidKey(StepwellError, TypeError, ValueError):
    """A key or a bot's name has an unsupported type or value.

    Example::

        with pytest.raises(InvalidKey):
            await storage.get_state("my_bot", 4.2)
    """


class UnknownScheme(StepwellError, ValueError):
    """No installed backend supports the scheme of a URL.

    Example::

        with pytest.raises(UnknownScheme):
            open_storage("mongodb://localhost")
    """

    def __init__(self, scheme: str, known: list[str]) -> None:
        self.scheme: str = scheme
        self.known: list[str] = known
        problem = (
            f"no storage is installed for {quoted(scheme)}"
            if scheme
            else "the URL of the storage has no scheme; write it like sqlite:///bot.db"
        )
        super().__init__(
            f"{problem}; supported are {', '.join(known)}; "
            "third-party backends register in the entry point group 'stepwell.storage'"
        )


class EncodeError(StepwellError, TypeError, ValueError):
    """A value cannot be stored exactly. Nothing was written.

    Example::

        with pytest.raises(EncodeError) as caught:
            await storage.set_data("my_bot", 42, {"file": object()})
        assert caught.value.type_name == "object"
    """

    def __init__(self, path: str, type_name: str, why: str) -> None:
        self.path: str = path
        self.type_name: str = type_name
        self.why: str = why
        super().__init__(f"{path} ({type_name}) {why}")


class TooLarge(StepwellError, ValueError):
    """A key, value or record exceeds its limit. Nothing was written.

    Example::

        with pytest.raises(TooLarge):
            await storage.set_data("my_bot", 42, {"text": "x" * 1024 * 1024})
    """

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what: str = what
        self.size: int = size
        self.limit: int = limit
        super().__init__(
            f"{what} takes {size} bytes, the limit is {limit}; store large values elsewhere and keep a reference "
            "here, or raise the limit: limit= of a log, saver, store or session, else limits=Limits(...) of the storage"
        )


class Conflict(StepwellError):
    """Another task or process changed or holds the record.

    Example::

        try:
            async with fsm.conversation(update) as ctx:
                ctx.start_flow(Registration)
        except Conflict:
            print("another worker was faster; Telegram delivers the update again")
    """


class Busy(Conflict, TimeoutError):
    """A key was still claimed after the whole waiting time. Nothing was handled; retry later.

    Example::

        fsm = FSM("my_bot", storage=storage, flows=[Registration], wait=0.01)
        await storage.perform(Claim(storage.address("my_bot", 42), "another worker", lease=30))
        with pytest.raises(Busy):
            async with fsm.conversation(key=42):
                pass
    """

    def __init__(self, place: str, waited: float) -> None:
        self.place: str = place
        self.waited: float = waited
        super().__init__(
            f"{place} is still being handled elsewhere after {waited:g} s; nothing was lost: "
            "deliver the update again (a webhook responds with 503), or wait longer with wait=..."
        )


class LeaseLost(Conflict):
    """The claim expired before the commit. Nothing was written.

    Example::

        address = storage.address("my_bot", 42)
        change = Change(write=storage.ids(), parts={"0001": "..."})
        with pytest.raises(LeaseLost):
            await storage.perform(Apply(address, change, Guard(token="an old token")))
    """

    def __init__(self, place: str) -> None:
        self.place: str = place
        super().__init__(
            f"the claim on {place} expired before the commit, nothing was written; handle the update again, "
            "and move blocking calls out of the event loop or raise lease=..."
        )


class RecordReplaced(Conflict):
    """The record was cleared or replaced while it was held. Nothing was written.

    Example::

        with pytest.raises(RecordReplaced):
            async with fsm.conversation(key=42) as ctx:
                ctx.start_flow(Registration)
                await fsm.storage.set_state("my_bot", 42, State("registration", "get_email"))
    """

    def __init__(self, place: str) -> None:
        self.place: str = place
        super().__init__(
            f"the record at {place} was cleared or replaced while it was held, nothing was written; "
            "handle the update again on the new record"
        )


class VersionChanged(Conflict):
    """The record does not have the version that the writer expected. Nothing was written.

    Example::

        address = storage.address("my_bot", 42)
        change = Change(write=storage.ids(), parts={"0001": "..."})
        with pytest.raises(VersionChanged):
            await storage.perform(Apply(address, change, Guard(version=Version(1, "an old write"))))
    """

    def __init__(self, place: str) -> None:
        self.place: str = place
        super().__init__(f"the record at {place} has changed since it was read, nothing was written; read it again")


class RecordExists(Conflict):
    """There is a record where the writer expected none. Nothing was written.

    Example::

        address = storage.address("my_bot", 42)
        await storage.set_data("my_bot", 42, {"name": "Alice"})
        with pytest.raises(RecordExists):
            await storage.perform(Apply(address, Change(write=storage.ids()), Guard(absent=True)))
    """

    def __init__(self, place: str) -> None:
        self.place: str = place
        super().__init__(f"there is already a record at {place}, nothing was written; read it, or use another key")


class StorageError(StepwellError):
    """The store failed.

    Example::

        try:
            await storage.set_data("my_bot", 42, {"name": "Alice"})
        except StorageError as error:
            print("not stored:", error)
    """


class StorageUnavailable(StorageError, ConnectionError):
    """The store cannot be reached or does not answer. Nothing was written.

    Example::

        with pytest.raises(StorageUnavailable):
            async with open_storage("redis://localhost:1", patience=0.1) as storage:
                await storage.get_state("my_bot", 42)
    """

    def __init__(self, message: str, *, sent: bool = True, final: bool = False) -> None:
        super().__init__(message)
        #: Whether the request may have reached the store. Callers of a write then get ``OutcomeUnknown``.
        self.sent: bool = sent
        #: Whether retrying is pointless, as after a wrong password.
        self.final: bool = final


class OutcomeUnknown(StorageError, ConnectionError):
    """A write was sent but not answered. It may or may not have been applied.

    Example::

        try:
            await storage.set_data("my_bot", 42, {"name": "Alice"})
        except OutcomeUnknown:
            print(await storage.get_data("my_bot", 42))
    """

    def __init__(self, place: str, why: str) -> None:
        self.place: str = place
        self.why: str = why
        super().__init__(
            f"the write to {place} was sent but not answered ({why}); read the record before you write it again"
        )


class NotReplicated(OutcomeUnknown):
    """A write was applied, but too few replicas had it in time. A failover may lose it.

    Example::

        try:
            await storage.set_data("my_bot", 42, {"name": "Alice"})
        except NotReplicated:
            print("written, but a failover may lose it")
    """

    def __init__(self, place: str) -> None:
        self.place: str = place
        self.why: str = "too few replicas had it in time"
        StorageError.__init__(
            self,
            f"the write to {place} was applied, but too few replicas had it in time; a failover may lose it; "
            "read the record before you write it again",
        )


class StorageFull(StorageError, OSError):
    """The store is full. Nothing was written, and stored records are intact.

    Example::

        try:
            await storage.set_data("my_bot", 42, {"name": "Alice"})
        except StorageFull:
            print("free some space; nothing was written")
    """


class NotCopied(StorageError):
    """Some records differ between source and target after a copy.

    Example::

        async with open_storage("sqlite:///bot.db") as old, open_storage("sqlite:///new.db") as new:
            try:
                await copy_records(old, new)
            except NotCopied as error:
                print("these differ:", error.places)
    """

    def __init__(self, places: list[str]) -> None:
        self.places: list[str] = places
        shown = ", ".join(places[:3]) + (", ..." if len(places) > 3 else "")
        differ = "record differs" if len(places) == 1 else "records differ"
        super().__init__(
            f"{len(places)} {differ} between source and target after the copy ({shown}); "
            "stop the programs that write to them, and copy again; records that are equal are skipped"
        )


class StorageClosed(StorageError):
    """The storage was closed.

    Example::

        await storage.open()
        await storage.close()
        with pytest.raises(StorageClosed):
            await storage.get_state("my_bot", 42)
    """

    def __init__(self) -> None:
        super().__init__("this storage is closed; open it again with open() or a new 'async with'")
