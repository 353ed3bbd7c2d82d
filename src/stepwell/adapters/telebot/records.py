"""The records of telebot's states: state and data of a key are one record."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

from stepwell._portal import sync
from stepwell._secrets import quoted
from stepwell.adapters.telebot.operations import OperationQueue
from stepwell.codec import check_name
from stepwell.codec.large import open_data, seal_data
from stepwell.errors import CorruptRecord, InvalidOption, VersionChanged
from stepwell.record import Address, Change, Place, Stored
from stepwell.storage import Apply, Get, Guard, Operation, Storage

__all__ = ["BlockingRecords", "RecordKey", "Snapshot", "StateRecords"]

T = TypeVar("T")


class RecordKey(NamedTuple):
    """The key of a state. Of the optional parts, an empty one means the same as ``None``, as in telebot."""

    chat_id: Any
    user_id: Any
    message_thread_id: int | None
    business_connection_id: str | None
    bot_id: int | None

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags by which the record of a user or chat is found."""
        user = () if self.user_id is None else (f"user:{self.user_id}",)
        return user if self.chat_id is None else (*user, f"chat:{self.chat_id}")


class Snapshot(NamedTuple):
    """The record that a block of interactive data began with."""

    stored: Stored | None
    data: dict[Any, Any]


class StateRecords:
    """Reads and writes the states of one storage. Every method is atomic."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage: Storage = storage
        self._name = name

    async def state(self, key: RecordKey) -> str | int | None:
        """Return the state; ``None`` if there is no record."""
        address = self._address(key)
        stored: Stored | None = await self._perform(Get(address))
        return None if stored is None else _state_of(await self._place(address, stored))

    async def set_state(self, key: RecordKey, state: object) -> None:
        """Set the state, and keep the data. Creates the record if there is none."""
        address = self._address(key)
        if self.storage.must_check_keys(address):
            self.storage.checked_keys(address, await self._perform(Get(address)))
        head = self.storage.seal(address).head(_place_of(getattr(state, "name", state)))
        await self._apply(address, None, head=head, tags=key.tags)

    async def delete(self, key: RecordKey) -> bool:
        """Delete the record, and return whether there was one."""
        return await self._write(self._address(key), delete=True)

    async def data(self, key: RecordKey) -> dict[Any, Any]:
        """Return the data; empty if there is no record."""
        return (await self.snapshot(key)).data

    async def set_field(self, key: RecordKey, name: Any, value: Any) -> bool:
        """Set one field of the data, and return whether there is a record."""
        address = self._address(key)
        return await self._write(address, set=await self._fields(address, {name: value}))

    async def set_data(self, key: RecordKey, data: Mapping[Any, Any]) -> bool:
        """Replace the data, and return whether there is a record."""
        address = self._address(key)
        return await self._write(address, replace=True, set=await self._fields(address, data))

    async def snapshot(self, key: RecordKey) -> Snapshot:
        """Return the record for a block of interactive data."""
        address = self._address(key)
        stored: Stored | None = await self._perform(Get(address))
        return Snapshot(stored, {} if stored is None else await self._data(address, stored))

    async def merge(self, key: RecordKey, before: Snapshot, data: Mapping[Any, Any]) -> bool:
        """Write the fields that differ from those of ``before``, and return whether there is a record.

        Other fields keep the values that other workers have written since.
        """
        address = self._address(key)
        stored = before.stored
        old = {} if stored is None else stored.fields
        texts = await self._fields(address, data)
        changed = {name: text for name, text in texts.items() if old.get(name) != text}
        gone = tuple([name for name in old if name not in texts])
        if not changed and not gone:
            return stored is not None
        return await self._write(address, stored, set=changed, unset=gone)

    async def _write(self, address: Address, known: Stored | None = None, **changes: Any) -> bool:
        """Change a record, and return whether there is one. ``known``: its last known version."""
        while True:
            if known is None:
                known = await self._perform(Get(address))
            if known is None:
                return False
            if "delete" not in changes:
                self.storage.seal(address).check_keys(known)
            try:
                # The guard also refuses to create a record that was deleted since the read.
                await self._apply(address, Guard(version=known.version), **changes)
            except VersionChanged:
                known = None
                continue
            return True

    async def _apply(self, address: Address, guard: Guard | None, **changes: Any) -> None:
        storage = self.storage
        if "delete" not in changes:
            changes.update(expiry=storage.expiry_of(address), limit=storage.seal(address).limit)
        await self._perform(Apply(address, Change(storage.ids(), **changes), guard))

    async def _perform(self, operation: Operation) -> Any:
        return await self.storage.perform(operation)

    async def _place(self, address: Address, stored: Stored) -> Place:
        return (await self.storage.read_head(address, stored)).place

    async def _fields(self, address: Address, data: Mapping[Any, Any]) -> dict[str, str]:
        return await seal_data(self.storage.seal(address), data)

    async def _data(self, address: Address, stored: Stored) -> dict[Any, Any]:
        try:
            return await open_data(self.storage.seal(address), stored.fields)
        except CorruptRecord as error:
            await self.storage.quarantine(address, stored, error)
            raise

    def _address(self, key: RecordKey) -> Address:
        chat, user, topic, business, bot = key
        namespace = f"{self._name}:{bot}" if bot else self._name
        return self.storage.address(namespace, (_id(chat), _id(user), topic or None, business or None))


class BlockingRecords(StateRecords):
    """The same for threads. Its coroutines never suspend; ``run`` returns their results.

    Only the operations run on the library's background loop. Those of several threads are sent in one batch.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        super().__init__(storage, name)
        self._queue = OperationQueue(storage)

    @staticmethod
    def run(method: Coroutine[Any, Any, T]) -> T:
        """Run a method of this class in the calling thread."""
        try:
            method.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        raise AssertionError("a coroutine of BlockingRecords was suspended")

    async def _perform(self, operation: Operation) -> Any:
        return self._queue.perform(operation)

    async def _place(self, address: Address, stored: Stored) -> Place:
        try:
            return self.storage.seal(address).open_head(stored.head).place
        except CorruptRecord as error:
            sync(self.storage.quarantine(address, stored, error))
            raise

    async def _fields(self, address: Address, data: Mapping[Any, Any]) -> dict[str, str]:
        return self.storage.seal(address).fields(data)

    async def _data(self, address: Address, stored: Stored) -> dict[Any, Any]:
        try:
            return self.storage.seal(address).data(stored.fields)
        except CorruptRecord as error:
            sync(self.storage.quarantine(address, stored, error))
            raise


def _id(value: Any) -> Any:
    # telebot's keys are texts, so 42 and "42" are the same chat.
    return int(value) if isinstance(value, str) and value.removeprefix("-").isdecimal() else value


def _place_of(state: object) -> Place:
    """Return flow ``Form`` and state ``name`` for ``"Form:name"``; a name without a group has no flow."""
    if state is None:
        return Place(None, None)
    if type(state) is int:
        # No text has this place: one with a colon has a flow.
        return Place(None, f"int:{state}")
    if not isinstance(state, str):
        raise InvalidOption(f"a state must be a State, its name, an int or None, not {quoted(state)}")
    check_name("the state", state)
    flow, colon, name = str.__str__(state).rpartition(":")
    return Place(flow if colon else None, name)


def _state_of(place: Place) -> str | int | None:
    if place.flow is not None:
        return f"{place.flow}:{place.state}"
    if place.state is not None and place.state.startswith("int:"):
        return int(place.state[4:])
    return place.state
