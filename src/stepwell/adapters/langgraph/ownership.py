"""One writer for each thread: a writer that another one has superseded cannot write any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stepwell import Storage
from stepwell.engine import Address, Applied, Apply, Change, Get, GroupCommit, Guard, Stored, Version
from stepwell.errors import Conflict, LeaseLost, OutcomeUnknown, RecordExists, VersionChanged

__all__ = ["FencedWriter", "StaleWriter", "ThreadWriter"]

#: The field with the token of a thread's writer.
OWNER: Final = "owner"
#: Seconds that the writes of a task wait for the next checkpoint, which usually follows at once.
_LINGER: Final = 0.005


class StaleWriter(LeaseLost):
    """Another runner has written to the thread since this one read it. Nothing was written.

    Example::

        from stepwell.adapters.langgraph import StaleWriter

        async def ask(graph, question, thread):
            for _ in range(5):
                try:
                    return await graph.ainvoke(question, thread)
                except StaleWriter:
                    continue
    """

    #: The mark by which LangGraph's tools know such an error.
    is_stale_write_owner_error: bool = True

    def __init__(self, place: str) -> None:
        self.place: str = place
        Conflict.__init__(
            self,
            f"another runner has written to the thread {place} since this one read it, nothing was written; "
            "invoke the graph again, which continues from the newest checkpoint",
        )


class ThreadWriter:
    """Gathers the writes of concurrent tasks to one thread, without a condition."""

    def __init__(self, storage: Storage, address: Address, limit: int) -> None:
        self._storage = storage
        self._address = address
        self._limit = limit
        self._writes: GroupCommit[Mapping[str, str], None] = GroupCommit(self._write, name="stepwell-checkpoint")

    async def write(self, parts: Mapping[str, str], *, linger: bool = False) -> None:
        """Write parts. Raises ``StaleWriter``.

        ``linger``: wait a moment for a write that does not linger, to share its commit. A graph stores the writes of
        its tasks right before the next checkpoint.
        """
        await self._writes.put(parts, linger=_LINGER * linger)

    async def _write(self, group: list[Mapping[str, str]]) -> list[None]:
        parts: dict[str, str] = {}
        for each in group:
            parts.update(each)
        await self._apply(parts)
        return [None] * len(group)

    async def _apply(self, parts: Mapping[str, str]) -> None:
        change = Change(self._storage.ids(), parts=parts, limit=self._limit)
        await self._storage.perform(Apply(self._address, change))


class FencedWriter(ThreadWriter):
    """The writes of one runner to one thread.

    The first write succeeds only if the record still has the version that the runner read. It stores the token of
    this writer. Later writes succeed while the token is the stored one.
    """

    def __init__(self, storage: Storage, address: Address, limit: int, version: Version | None) -> None:
        super().__init__(storage, address, limit)
        self._version = version
        self._token = storage.ids()
        self._owner = False
        self._stale = False

    async def claim(self) -> None:
        """Become the writer of the thread. The writer before is stale from now on."""
        while not self._owner:
            try:
                await self._apply({})
            except StaleWriter:
                self._stale = False
                stored = await self._read()
                self._version = None if stored is None else stored.version

    async def check(self) -> None:
        """Raise ``StaleWriter`` if another writer has claimed the thread."""
        if self._stale or not self._is_owner(await self._read()):
            raise StaleWriter(self._address.text)

    async def _apply(self, parts: Mapping[str, str]) -> None:
        while True:
            if self._stale:
                raise StaleWriter(self._address.text)
            token = {} if self._owner else {OWNER: self._storage.seal(self._address).field(OWNER, self._token)}
            change = Change(self._storage.ids(), set=token, parts=parts, limit=self._limit, fresh=self._version is None)
            guard = Guard(absent=True) if self._version is None else Guard(version=self._version)
            try:
                applied: Applied = await self._storage.perform(Apply(self._address, change, guard))
            except (VersionChanged, RecordExists, OutcomeUnknown) as error:
                stored = await self._read()
                written = stored is not None and stored.version.write == change.write
                unchanged = (None if stored is None else stored.version) == self._version
                if written or (isinstance(error, OutcomeUnknown) and unchanged) or self._is_owner(stored):
                    self._owner = self._owner or self._is_owner(stored)
                    self._version = None if stored is None else stored.version
                    if written:
                        return
                    continue
                self._stale = True
            else:
                self._owner, self._version = True, applied.version
                return

    async def _read(self) -> Stored | None:
        stored: Stored | None = await self._storage.perform(Get(self._address))
        return stored

    def _is_owner(self, stored: Stored | None) -> bool:
        if stored is None or OWNER not in stored.fields:
            return False
        fields = {OWNER: stored.fields[OWNER]}
        return bool(self._storage.seal(self._address).data(fields)[OWNER] == self._token)
