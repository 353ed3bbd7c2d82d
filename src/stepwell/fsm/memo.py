"""The memo beside a record: which updates were handled, and what was answered to the last.

It is ``["<ids>", <calls>]``, and the ids are one text, ``" 101 102 "``, without anything that JSON would escape:
looking one up and adding one is plain text work, and costs the same for 1 and for 128 of them.
"""

from __future__ import annotations

import logging
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from stepwell.codec.values import conform
from stepwell.errors import EncodeError, InvalidOption, TooLarge
from stepwell.slot import Json, Slot

__all__ = ["REMEMBERED", "Memo"]

logger = logging.getLogger(__name__)

#: The form of a memo: ids, and calls.
_Memo: TypeAlias = tuple[str, list[dict[str, Any]]]
#: How many handled updates are remembered per key: more than one batch of getUpdates.
REMEMBERED = 128
#: Longer ids are remembered by a hash, in bytes of their token.
LONGEST_TOKEN = 64


class Memo(NamedTuple):
    """What a slot's memo says."""

    slot: Slot
    ids: str

    @classmethod
    def of(cls, slot: Slot) -> Memo:
        """The memo of a slot, empty where there is none."""
        text = slot.memo_json
        if text is None:
            return cls(slot, " ")
        ids = text[2 : text.find('"', 2)]
        if text[:2] == '["' and ids[:1] == " " == ids[-1:] and "\\" not in ids:
            return cls(slot, ids)
        slot.drop_memo()
        return cls(slot, " ")

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What was answered to the newest update."""
        memo = self.slot.memo
        if memo is None:
            return []
        problem = conform(memo, _Memo)[1]
        if problem is not None:
            self.slot.drop_memo()
            return []
        calls: list[dict[str, Any]] = memo[1]
        return calls

    def has(self, update_id: int | str) -> bool:
        """This update was handled."""
        token = _token(update_id)
        if f" {_hashed(token)} " in self.ids:
            return True
        # Earlier releases stored long ids whole.
        return len(token) > LONGEST_TOKEN and f" {token} " in self.ids

    def calls_of(self, update_id: int | str) -> list[dict[str, Any]]:
        """What was answered to it, while it is the newest."""
        token = _token(update_id)
        return self.calls if self.ids.endswith((f" {_hashed(token)} ", f" {token} ")) else []

    def with_update(self, update_id: int | str, calls: list[dict[str, Any]]) -> Json:
        """What to keep when this update is handled too."""
        return _json(self.slot, f"{self.ids}{_hashed(_token(update_id))} ", calls)

    def merged(self, other: Memo, mark: str) -> Json:
        """The updates of both, those of the other first, and a mark that they are together."""
        return _json(self.slot, f"{other.ids}{self.ids[1:]}{_hashed(_token(mark))} ", self.calls or other.calls)


def _json(slot: Slot, ids: str, calls: list[dict[str, Any]]) -> Json:
    # The ids take at most half of the limit, so that a full memo never makes a commit fail.
    room = slot.memo_limit // 2
    while ids.count(" ") > REMEMBERED + 1 or len(ids) > room:
        if ids == " ":
            break
        ids = ids[ids.index(" ", 1) :]
    said = "[]"
    if calls:
        try:
            said = slot.memo_part(calls)
            slot.memo_part([ids, calls])
        except (EncodeError, TooLarge) as error:
            # The calls of a redelivered update are a courtesy; the state is not.
            logger.warning("the calls for this update cannot be remembered: %s", error)
            said = "[]"
    return Json(f'["{ids}",{said}]')


def _token(update_id: int | str) -> str:
    if isinstance(update_id, str):
        # Marked, so that "1" is not 1; quoted, so that no space, quote or backslash is in it.
        return "'" + quote(update_id, safe="", errors="surrogatepass")
    if isinstance(update_id, bool) or not isinstance(update_id, int):
        raise InvalidOption(f"an update's id is an int or a str, not {update_id!r}")
    # Python refuses to write very large numbers in decimal.
    return str(update_id) if -_LARGE < update_id < _LARGE else hex(update_id)


def _hashed(token: str) -> str:
    """Return the token itself, or its hash if it is long. No other token begins with ``#``."""
    return token if len(token) <= LONGEST_TOKEN else "#" + blake2b(token.encode(), digest_size=20).hexdigest()


_LARGE = 10**1000
