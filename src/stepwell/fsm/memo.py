"""The memo beside a record: which updates were handled, and what was answered to the last.

The ids are one text, ``" 101 102 "``: looking one up and adding one costs the same for 1 and for 128 of them.
"""

from __future__ import annotations

import json
import logging
from typing import Any, NamedTuple

from stepwell.errors import EncodeError, InvalidOption, TooLarge
from stepwell.slot import Slot

__all__ = ["REMEMBERED", "Memo"]

logger = logging.getLogger(__name__)

#: How many handled updates are remembered per key: more than one batch of getUpdates.
REMEMBERED = 128


class Memo(NamedTuple):
    """What a slot's memo says."""

    slot: Slot
    ids: str
    calls: list[dict[str, Any]]

    @classmethod
    def of(cls, slot: Slot) -> Memo:
        """The memo of a slot, empty where there is none."""
        ids, calls = slot.memo or (" ", [])
        return cls(slot, ids, calls)

    def has(self, update_id: int | str) -> bool:
        """This update was handled."""
        return f" {_token(update_id)} " in self.ids

    def calls_of(self, update_id: int | str) -> list[dict[str, Any]]:
        """What was answered to it, while it is the newest."""
        return self.calls if self.ids.endswith(f" {_token(update_id)} ") else []

    def with_update(self, update_id: int | str, calls: list[dict[str, Any]]) -> list[Any]:
        """What to keep when this update is handled too."""
        ids = f"{self.ids}{_token(update_id)} "
        if ids.count(" ") > REMEMBERED + 1:
            ids = ids[ids.index(" ", 1) :]
        if calls:
            try:
                self.slot.check_memo([ids, calls])
            except (EncodeError, TooLarge) as error:
                # The calls of a redelivered update are a courtesy; the state is not.
                logger.warning("the calls for this update cannot be remembered: %s", error)
                calls = []
        return [ids, calls]

    def merged(self, other: Memo, mark: str) -> list[Any]:
        """The updates of both, those of the other first, and a mark that they are together."""
        ids = f"{other.ids}{self.ids[1:]}{_token(mark)} "
        while ids.count(" ") > REMEMBERED + 1:
            ids = ids[ids.index(" ", 1) :]
        return [ids, self.calls or other.calls]


def _token(update_id: int | str) -> str:
    if isinstance(update_id, bool) or not isinstance(update_id, int | str):
        raise InvalidOption(f"an update's id is an int or a str, not {update_id!r}")
    if isinstance(update_id, str):
        # Quoted, so that "1" is not 1; and without a space, which separates.
        return json.dumps(update_id).replace(" ", "\\u0020")
    return str(update_id)
