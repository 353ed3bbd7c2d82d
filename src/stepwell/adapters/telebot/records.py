"""The records of telebot's states: state and data of a key are one record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stepwell import Storage
from stepwell.adapters.framework.states import place_of, state_name
from stepwell.engine import Address, Apply, Change, Get, OpenedHead, Place, Stored, check_name, quoted, seal_data
from stepwell.options import check_instance

__all__ = ["RecordKey", "Snapshot", "StateRecords"]


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
        stored: Stored | None = await self.storage.perform(Get(address))
        return None if stored is None else _state_of((await self.storage.read_head(address, stored)).place)

    async def set_state(self, key: RecordKey, state: object) -> bool:
        """Set the state, and keep the data. Creates the record if there is none."""
        address = self._address(key)
        head = self.storage.seal(address).head(OpenedHead(_place_of(getattr(state, "name", state))))
        await self.storage.check_keys(address)
        await self.storage.perform(Apply(address, self.storage.change(address, head=head, tags=key.tags)))
        return True

    async def delete(self, key: RecordKey) -> bool:
        """Delete the record, and return whether there was one."""
        return await self._write(self._address(key), delete=True)

    async def data(self, key: RecordKey) -> dict[Any, Any]:
        """Return the data; empty if there is no record."""
        return (await self.snapshot(key)).data

    async def set_field(self, key: RecordKey, name: Any, value: Any) -> bool:
        """Set one field of the data. Raises ``RuntimeError`` if there is no record."""
        address = self._address(key)
        if not await self._write(address, set=await seal_data(self.storage.seal(address), {name: value})):
            raise RuntimeError(
                f"chat {quoted(key.chat_id)} and user {quoted(key.user_id)} have no state, so no data can be added; "
                "call set_state() first"
            )
        return True

    async def set_data(self, key: RecordKey, data: Mapping[Any, Any]) -> bool:
        """Replace the data, and return whether there is a record."""
        address = self._address(key)
        return await self._write(address, replace=True, set=await seal_data(self.storage.seal(address), data))

    async def snapshot(self, key: RecordKey) -> Snapshot:
        """Return the record for a block of interactive data."""
        address = self._address(key)
        stored: Stored | None = await self.storage.perform(Get(address))
        return Snapshot(stored, {} if stored is None else await self.storage.read_data(address, stored))

    async def merge(self, key: RecordKey, before: Snapshot, data: Mapping[Any, Any]) -> bool:
        """Write the fields that differ from those of ``before``, and return whether there is a record.

        Other fields keep the values that other workers have written since.
        """
        address = self._address(key)
        stored = before.stored
        old = {} if stored is None else stored.fields
        texts = await seal_data(self.storage.seal(address), data)
        changed = {name: text for name, text in texts.items() if old.get(name) != text}
        gone = tuple([name for name in old if name not in texts])
        if not changed and not gone:
            return stored is not None
        return await self._write(address, stored, set=changed, unset=gone)

    async def _write(self, address: Address, known: Stored | None = None, **parts: Any) -> bool:
        """Change a record, and return whether there is one. ``known``: its last known version."""

        def decide(stored: Stored | None) -> Change | None:
            return None if stored is None else self.storage.change(address, **parts)

        return await self.storage.edit(address, decide, known=known) is not None

    def _address(self, key: RecordKey) -> Address:
        chat, user, topic, business, bot = key
        namespace = f"{self._name}:{bot}" if bot else self._name
        return self.storage.address(namespace, (_id(chat), _id(user), topic or None, business or None))


def _id(value: Any) -> Any:
    # telebot's keys are texts, so 42 and "42" are the same chat.
    return int(value) if isinstance(value, str) and value.removeprefix("-").isdecimal() else value


def _place_of(state: Any) -> Place:
    if type(state) is int:
        # No text has this place: one with a colon has a flow.
        return Place(None, f"int:{state}")
    check_instance(state, str, "a state must be a State, its name, an int or None, not {}", optional=True)
    check_name("the state", state)
    return place_of(state)


def _state_of(place: Place) -> str | int | None:
    if place.flow is None and place.state is not None and place.state.startswith("int:"):
        return int(place.state[4:])
    return state_name(place)
