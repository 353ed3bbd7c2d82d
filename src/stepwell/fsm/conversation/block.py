"""A block: one update, its record, and what its handler has done so far."""

from __future__ import annotations

import re
from time import monotonic
from typing import Any, TypeAlias

from stepwell.errors import ContextClosed, DuplicateUpdate, NoKeyError
from stepwell.fsm import keys
from stepwell.fsm.base import Machine
from stepwell.fsm.update import Update
from stepwell.record import NO_HEAD
from stepwell.slot import Slot

__all__ = ["CLOSED", "Block", "Move", "NoRecord"]

#: One move: the flow and state that were left, the flow and state that were entered.
Move: TypeAlias = tuple[str | None, str | None, str | None, str | None]


class NoRecord:
    """Replaces the record if the update has no key: empty, and never stored."""

    __slots__ = ("data", "key_given")

    head = NO_HEAD

    def __init__(self, *, key_given: bool) -> None:
        #: ``key=None`` was passed, and no key strategy was called.
        self.key_given: bool = key_given
        self.data: dict[Any, Any] = {}


class _Closed:
    """Replaces the record after the block."""

    def __getattr__(self, name: str) -> Any:
        raise ContextClosed


CLOSED = _Closed()


class Block:
    """The update of a context, its record, and what its handler has done so far; the base of ``Context``."""

    __slots__ = (
        "_calls", "_fsm", "_profile", "_record", "began", "duplicate", "entered", "key", "match", "moves",
        "moves_emitted", "moves_hooked", "moves_saved", "result", "saved", "started", "update", "update_id",
    )  # fmt: skip

    def __init__(self, fsm: Machine, update: Update, key: Any, record: Slot | NoRecord, *, collects: bool) -> None:
        self._fsm = fsm
        self._record: Any = record
        self._calls: list[dict[str, Any]] | None = [] if collects else None
        #: The update; its ``raw`` is ``None`` if only a ``key=`` was given.
        self.update: Update = update
        #: The id that duplicates are recognised by.
        self.update_id: int | str | None = None
        #: The key of the conversation; ``None`` if the update has no key.
        self.key: Any = key
        #: This update was handled before (only with ``on_duplicate="enter"``); changes are refused.
        self.duplicate: bool = False
        #: The match of the regex in the filter that chose this handler.
        self.match: re.Match[str] | None = None
        #: The result that the flow which ended last gave to ``pop_flow``.
        self.result: Any = None
        #: ``save()`` has written something.
        self.saved: bool = False
        # A state was entered since the last write.
        self.entered: bool = False
        # A flow was started.
        self.began: bool = False
        # When the record was claimed, on the monotonic clock.
        self.started: float = monotonic()
        # All moves, for the hooks; how many of them were emitted as events, had their hooks run, and were saved.
        self.moves: list[Move] = []
        self.moves_emitted: int = 0
        self.moves_hooked: int = 0
        self.moves_saved: int = 0
        # The decoded profile, once it was read.
        self._profile: dict[Any, Any] | None = None

    def no_key(self) -> NoKeyError:
        """Return the error for a change if the update has no key."""
        return NoKeyError(self.update.kind, None if self._record.key_given else keys.name_of(self._fsm.key))

    def already_handled(self) -> DuplicateUpdate:
        """Return the error for a change if the update was handled before."""
        return DuplicateUpdate(self._record.address.text, "" if self.update_id is None else self.update_id)

    def _refuses(self) -> bool:
        """Return whether changes are ignored because the update has no key; raise if they are refused."""
        record = self._record
        if record is CLOSED:
            raise ContextClosed
        if self.duplicate:
            raise self.already_handled()
        return type(record) is NoRecord and not self._fsm.missing_key.refuse(self.no_key())
