"""A conversation while the record with its state is held: the state in the handler, and the stored one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from telegram import Update
from telegram.ext._handlers.conversationhandler import PendingState

from stepwell.adapters.ptb.conversation import ConversationHandler
from stepwell.adapters.ptb.pending import PendingElsewhere, PendingHandlers, pending_field
from stepwell.adapters.ptb.states import (
    ConversationKey,
    field_of,
    key_text,
    open_state,
    pack_state,
)
from stepwell.adapters.ptb.timeouts import seconds_of, timeout_field
from stepwell.engine import NOWHERE, Place, Slot

__all__ = ["HeldConversation"]


@dataclass(slots=True, eq=False)
class HeldConversation:
    """A conversation that an update may belong to."""

    handler: ConversationHandler
    name: str
    key: ConversationKey
    #: The key of its record.
    record: Any
    #: The key in the fields of the record.
    text: str
    #: The stored state before the update; ``None`` if there was none.
    before: object = None
    #: What was loaded into the handler: the stored state, or a pending one while a ``block=False`` handler runs.
    loaded: object = None
    #: The context of the update, if the handler handles it.
    context: Any = None
    #: The time of its timeout, if this update has set one.
    timeout: float | None = None
    #: The timeout has fired.
    timed_out: bool = False

    @classmethod
    def of(cls, handler: ConversationHandler, key: ConversationKey) -> HeldConversation:
        """Return the conversation with this key, not loaded yet."""
        return cls(handler, handler.stored_name, key, handler.record_of(key), key_text(key))

    @property
    def state(self) -> object:
        """The present state in the handler."""
        return self.handler._conversations.get(self.key)

    @state.setter
    def state(self, state: object) -> None:
        if state is None:
            self.handler._conversations.pop(self.key, None)
        else:
            self.handler._conversations[self.key] = state

    @property
    def starts_pending(self) -> bool:
        """Whether a ``block=False`` handler of this update has not ended."""
        state = self.state
        return isinstance(state, PendingState) and state is not self.loaded

    async def load(self, slot: Slot, pending: PendingHandlers, namespace: str) -> None:
        """Load the state into the handler."""
        stored = slot.data.get(field_of(self.name), {}).get(self.text)
        self.before = None if stored is None else open_state(stored, self.handler.states)
        process = slot.data.get(pending_field(self.name), {}).get(self.text)
        if process is None or process != pending.process or not isinstance(self.state, PendingState):
            self.state = self.before
            if process not in (None, pending.process) and await pending.is_running(namespace, process):
                self.state = PendingElsewhere(self.before)
        self.loaded = self.state

    def restore(self) -> None:
        """Undo the change of the state in the handler."""
        if not isinstance(self.state, PendingState):
            self.state = self.before

    def store(self, slot: Slot, process: str, update: Update, now: float) -> None:
        """Put state, timeout and pending handler into the record. ``process``: the id of this process."""
        state = self.state
        if isinstance(state, PendingState):
            if type(state) is not PendingElsewhere:
                _set_item(slot, pending_field(self.name), self.text, process)
            return
        _set_item(slot, pending_field(self.name), self.text, None)
        if type(state) is not type(self.before) or state != self.before:
            _set_item(slot, field_of(self.name), self.text, None if state is None else pack_state(state))
            # For people who look into the storage.
            text = state.name if isinstance(state, Enum) else str(state)
            slot.place = NOWHERE if state is None else Place(self.name, text)
        seconds = seconds_of(self.handler)
        if state is None or self.timed_out:
            _set_item(slot, timeout_field(self.name), self.text, None)
        elif seconds is not None and self.context is not None:
            self.timeout = now + seconds
            _set_item(slot, timeout_field(self.name), self.text, [self.timeout, _as_json(update)])


def _set_item(slot: Slot, field: str, key: str, value: Any) -> None:
    """Set an item of a field that is a dict; ``None`` deletes it. An empty field is deleted."""
    items = slot.data.get(field)
    if items is None:
        if value is not None:
            slot.data[field] = {key: value}
        return
    if value is None:
        items.pop(key, None)
    else:
        items[key] = value
    if not items:
        del slot.data[field]


def _as_json(update: Update) -> str:
    about = update.to_dict()
    query = update.callback_query
    if query is not None and not isinstance(query.data, str):
        # Arbitrary callback data may be any object.
        about["callback_query"].pop("data", None)
    return json.dumps(about)
