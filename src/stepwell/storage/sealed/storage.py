"""The storage that encrypts the records of another storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from stepwell.codec.large import in_thread
from stepwell.errors import InvalidOption, TooLarge
from stepwell.record import KEEP, Address, Stored
from stepwell.storage.base.sweeper import notify_expired
from stepwell.storage.contract import Storage
from stepwell.storage.listing import ANY, Any_, Beside, Due, Page, Query, StateCount, Swept
from stepwell.storage.operations import Apply, Claim, Operation, Release, Result, check_queue
from stepwell.storage.sealed.cipher import Keyring, NameCipher
from stepwell.storage.sealed.keys import SealingKey, keys_of_environment, names_key_of_environment, sealing_keys
from stepwell.storage.sealed.records import RecordCodec
from stepwell.storage.transport.batch import Batch
from stepwell.storage.transport.lane import retrieve
from stepwell.storage.transport.wakeups import Callback
from stepwell.storage.urls import open_storage, take_options, truth

__all__ = ["SealedStorage"]

T = TypeVar("T")

_SCHEME = "sealed+"
#: Results with more characters are decrypted in a thread, so that they do not block the loop.
_LARGE = 1024 * 1024


class SealedStorage(Storage):
    """Encrypts the records of another storage with AES-256-GCM.

    ::

        storage = SealedStorage(open_storage("postgresql://..."), keys=[newest, older])

    ``inner``: the storage with the encrypted records. It is opened and closed with this one.
    ``keys``: texts that ``stepwell new-key`` prints. The first one encrypts, all decrypt.
    ``names_key``: one more key, which encrypts the names of flows, states, queues and fields. Without it the store has
    these names in clear. It must stay the same as long as the records exist.
    ``allow_plaintext``: read plaintext too, until ``rotate_keys`` has encrypted it.

    Fields, parts, memos, flow and state are encrypted. Namespaces, keys of records, names of parts, tags, times,
    versions and sizes are not.
    """

    def __init__(
        self,
        inner: Storage,
        *,
        keys: Iterable[str | bytes],
        names_key: str | bytes | None = None,
        allow_plaintext: bool = False,
    ) -> None:
        if not isinstance(inner, Storage) or isinstance(inner, SealedStorage):
            raise InvalidOption(f"SealedStorage takes a storage that is not encrypted yet, not {type(inner).__name__}")
        if names_key is not None and allow_plaintext:
            raise InvalidOption(
                "allow_plaintext cannot be used with names_key: plaintext records have names in clear; copy them to an "
                "empty storage instead, with copy_records or 'stepwell copy'"
            )
        self.inner: Storage = inner
        super().__init__(limits=inner.limits, clock=inner.clock, ids=inner.ids, sweep_every=None)
        self.keyring: Keyring = Keyring(sealing_keys(keys), allow_plaintext=allow_plaintext)
        names = None if names_key is None else NameCipher(SealingKey(names_key, "names_key"))
        self._codec = RecordCodec(self.keyring, names)
        self._names = names
        #: Releases of claims whose callers were cancelled.
        self._releases: set[asyncio.Task[Any]] = set()
        self.shared: bool = inner.shared  # type: ignore[misc]

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Return a storage for the URL of another storage with ``sealed+`` before it.

        The keys are options, or in the environment: ``STEPWELL_KEYS`` or ``STEPWELL_KEYS_FILE``, and
        ``STEPWELL_NAMES_KEY``. The URL may have the option ``?allow_plaintext=true``.
        """
        scheme = url[: len(_SCHEME)].lower()
        rest = url[len(_SCHEME) :] if scheme == _SCHEME else url
        if "keys=" in rest or "names_key=" in rest:
            raise InvalidOption("a URL must not contain keys; set STEPWELL_KEYS, STEPWELL_KEYS_FILE or pass keys=[...]")
        if "allow_plaintext=" in rest:
            rest, ours = take_options(rest, {"allow_plaintext": truth}, "a sealed URL")
            options = ours | options
        given = {name: options.pop(name) for name in ("keys", "names_key", "allow_plaintext") if name in options}
        if "keys" not in given:
            given["keys"] = keys_of_environment()
        given.setdefault("names_key", names_key_of_environment())
        return cls(open_storage(rest.removesuffix("?"), **options), **given)

    def __repr__(self) -> str:
        return f"SealedStorage({self.inner!r}, keys={self.keyring.ids})"

    @property
    def location(self) -> str:
        return self.inner.location

    async def _open(self) -> None:
        await self.inner.open()
        self.inner.expired_listeners.append(self._pass_expired)

    async def _close(self) -> None:
        if self._pass_expired in self.inner.expired_listeners:
            self.inner.expired_listeners.remove(self._pass_expired)
        # After the end of its loop, opening it again does what closing it would.
        if self.inner.loop is asyncio.get_running_loop():
            await self.inner.close()

    async def _opened(self) -> Storage:
        if self.loop is not asyncio.get_running_loop():
            await self.ensure_open()
        return self.inner

    async def _pass_expired(self, address: Address, head: str | None) -> None:
        await notify_expired(self.expired_listeners, Swept([(address, self._codec.head(address, head))], 1))

    # Operations

    async def perform(self, operation: Operation) -> Any:
        if self.loop is None or self.loop is not asyncio._get_running_loop():
            await self.ensure_open()
        if type(operation) is Apply:
            if operation.change.queue is not KEEP:
                check_queue(operation.change.queue)
            operation = self._codec.encrypted(operation)
        try:
            result = await self.inner.perform(operation)
        except TooLarge as error:
            raise _too_large(error) from None
        record = result if type(result) is Stored else getattr(result, "record", None)
        if record is not None and _size(record) > _LARGE:
            return await self._decrypt_in_thread(operation, result)
        return self._codec.decrypted(operation.address, result)

    async def _decrypt_in_thread(self, operation: Operation, result: Result) -> Result:
        try:
            return await in_thread(self._codec.decrypted, operation.address, result)
        except asyncio.CancelledError:
            if type(operation) is Claim and not operation.renew:
                # Nothing else would release the claim.
                release = self.inner.perform(Release(operation.address, operation.token))
                task = asyncio.get_running_loop().create_task(release, name="stepwell-release")
                self._releases.add(task)
                task.add_done_callback(retrieve)
                task.add_done_callback(self._releases.discard)
            raise

    async def run(self, operations: Sequence[Operation]) -> list[Result]:
        inner = await self._opened()
        encrypted = self._encrypted(operations)
        if isinstance(operations, Batch):
            encrypted = Batch.of(encrypted, operations.lane, operations.number)
        return self._decrypted(operations, await inner.run(encrypted))

    async def run_within(
        self, connection: Any, operations: Sequence[Operation], *, topic: str | None = None
    ) -> list[Result]:
        inner = await self._opened()
        results = await inner.run_within(connection, self._encrypted(operations), topic=topic)
        return self._decrypted(operations, results)

    def _encrypted(self, operations: Sequence[Operation]) -> Sequence[Operation]:
        return [self._codec.encrypted(each) if isinstance(each, Apply) else each for each in operations]

    def _decrypted(self, operations: Sequence[Operation], results: Sequence[Result]) -> list[Result]:
        return [
            _too_large(result) if isinstance(result, TooLarge) else self._codec.decrypted(operation.address, result)
            for operation, result in zip(operations, results, strict=True)
        ]

    def lane_of(self, operation: Operation) -> Hashable:
        return self.inner.lane_of(operation)

    async def confirm(self, claim: Claim) -> None:
        await self.inner.confirm(claim)

    def decrypted(self, address: Address, stored: Stored) -> Stored:
        """Return the plaintext of a record of the inner storage."""
        return self._codec.stored(address, stored)

    def decrypted_memo(self, address: Address, memo: str) -> str:
        """Return the plaintext of a memo of the inner storage."""
        return self._codec.memo(address, memo)

    # Lists

    async def page(self, query: Query, after: Any, limit: int) -> Page:
        inner = await self._opened()
        hidden = query._replace(
            flow=self._hidden("flow", query.namespace, query.flow),
            state=self._hidden("state", query.namespace, query.state),
        )
        records, after = await inner.page(hidden, after, limit)
        if sum([_size(stored) for _, stored in records]) > _LARGE:
            return Page(await in_thread(self._decrypted_page, records), after)
        return Page(self._decrypted_page(records), after)

    def _decrypted_page(self, records: list[tuple[Address, Stored]]) -> list[tuple[Address, Stored]]:
        return [(address, self._codec.stored(address, stored)) for address, stored in records]

    def _hidden(self, kind: str, namespace: str, name: Any) -> Any:
        """Return the name that the inner storage has in its index."""
        if self._names is None or name is None or isinstance(name, Any_):
            return name
        if not isinstance(name, str):
            return [self._names.hide(kind, namespace, each) for each in name]
        return self._names.hide(kind, namespace, name)

    def _revealed(self, kind: str, namespace: str, name: str | None) -> str | None:
        return name if self._names is None or name is None else self._names.reveal(kind, namespace, name)

    def position(self, address: Address) -> Any:
        return self.inner.position(address)

    async def counts(self, *, oldest: bool = False) -> list[StateCount]:
        inner = await self._opened()
        return [
            count._replace(
                flow=self._revealed("flow", count.namespace, count.flow),
                state=self._revealed("state", count.namespace, count.state),
            )
            for count in await inner.counts(oldest=oldest)
        ]

    async def beside(self, address: Address) -> Beside:
        inner = await self._opened()
        found = await inner.beside(address)
        return found if found.memo is None else found._replace(memo=self._codec.memo(address, found.memo))

    async def namespaces(self) -> list[str]:
        inner = await self._opened()
        return await inner.namespaces()

    async def traces(self, namespace: str, tag: str, *, limit: int = 500) -> list[Address]:
        inner = await self._opened()
        return await inner.traces(namespace, tag, limit=limit)

    async def due(
        self,
        namespace: str,
        *,
        before: float | None = None,
        limit: int = 100,
        after: Due | None = None,
        flow: str | Any_ | Sequence[str] | None = ANY,
    ) -> list[Due]:
        inner = await self._opened()
        hidden = self._hidden("flow", namespace, flow)
        return await inner.due(namespace, before=before, limit=limit, after=after, flow=hidden)

    async def due_in(self, wanted: Mapping[str, Sequence[str] | Any_], *, limit: int = 100) -> list[Due]:
        inner = await self._opened()
        hidden = {namespace: self._hidden("flow", namespace, flows) for namespace, flows in wanted.items()}
        return await inner.due_in(hidden, limit=limit)

    async def queued(self, namespace: str, name: str | Sequence[str], *, limit: int = 100) -> list[Address]:
        inner = await self._opened()
        return await inner.queued(namespace, self._hidden("queue", namespace, name), limit=limit)

    async def queues(self, namespace: str, *, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        inner = await self._opened()
        if self._names is None:
            return await inner.queues(namespace, prefix=prefix, after=after, limit=limit)
        # Encrypted names have another order, so all of them are read.
        names: list[str] = []
        last = ""
        while page := await inner.queues(namespace, after=last, limit=1000):
            names += [self._names.reveal("queue", namespace, name) for name in page]
            last = page[-1]
        return sorted([name for name in names if name > after and name.startswith(prefix)])[:limit]

    async def sweep(self, limit: int = 1000) -> Swept:
        inner = await self._opened()
        expired, removed = await inner.sweep(limit)
        return Swept([(address, self._codec.head(address, head)) for address, head in expired], removed)

    async def erase(self, *, only_if_quick: bool = False) -> bool:
        inner = await self._opened()
        return await inner.erase(only_if_quick=only_if_quick)

    async def settings(self) -> dict[str, Any]:
        inner = await self._opened()
        ours = {"sealed": self.keyring.ids, "allow_plaintext": self.keyring.allow_plaintext}
        return {**await inner.settings(), **ours}

    # Wake-ups

    @property
    def wake_key(self) -> Hashable:
        return self.inner.wake_key

    @property
    def notices_reach_processes(self) -> bool:
        return self.inner.notices_reach_processes

    async def notify(self, topic: str) -> None:
        await self.inner.notify(topic)

    def notify_soon(self, topic: str) -> None:
        self.inner.notify_soon(topic)

    def listen(self, topic: str, callback: Callback) -> Callable[[], None]:
        return self.inner.listen(topic, callback)


def _too_large(error: TooLarge) -> TooLarge:
    """Return an error that says that its numbers are those of encrypted texts."""
    return TooLarge("the encrypted record", error.size, error.limit)


def _size(stored: Stored) -> int:
    size = sum(map(len, stored.fields.values()))
    return size + sum(map(len, stored.parts.values())) if stored.parts else size
