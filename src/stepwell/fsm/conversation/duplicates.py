"""Updates that are delivered again: the memo of a record has the ids of handled ones, and the calls for the newest.

The memo is ``["<ids>", <calls>]``. The ids are one text, ``" 101 102 "``, without characters that JSON escapes, so
finding one and adding one are text operations that cost the same for 1 and for 128 ids.
"""

from __future__ import annotations

import logging
from hashlib import blake2b
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from stepwell.codec.values import conform
from stepwell.errors import EncodeError, TooLarge
from stepwell.options import check_whole
from stepwell.slot import Json, Slot

__all__ = ["REMEMBERED", "HandledUpdates", "remembered", "token_of"]

logger: logging.Logger = logging.getLogger(__name__)

#: The form of a memo: ids, and calls.
_Memo: TypeAlias = tuple[str, list[dict[str, Any]]]
#: How many handled updates are remembered per key; a batch of getUpdates has at most 100.
REMEMBERED = 128
#: Characters of a token. A longer id is replaced by its hash.
LONGEST_TOKEN = 64


class HandledUpdates:
    """The updates that were handled for one key, read from the memo of a held slot."""

    __slots__ = ("_slot", "ids")

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.ids: str = " "
        text = slot.memo_json
        if text is not None:
            ids = text[2 : text.find('"', 2)]
            if text[:2] == '["' and ids[:1] == " " == ids[-1:] and "\\" not in ids:
                self.ids = ids
            else:
                slot.drop_memo()

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The Bot API calls that answered the newest update."""
        memo = self._slot.memo
        if memo is None:
            return []
        problem = conform(memo, _Memo)[1]
        if problem is not None:
            self._slot.drop_memo()
            return []
        calls: list[dict[str, Any]] = memo[1]
        return calls

    def has(self, token: str) -> bool:
        """Return whether the update with this token was handled."""
        return f" {token} " in self.ids

    def calls_of(self, token: str) -> list[dict[str, Any]]:
        """Return the calls that answered the update with this token, if it is the newest."""
        return self.calls if self.ids.endswith(f" {token} ") else []

    def with_update(self, token: str, calls: list[dict[str, Any]] | None) -> Json:
        """Return the memo after the update with this token."""
        ids, newest = f"{self.ids}{token} ", self.ids[:-1].rpartition(" ")[2]
        if not calls and token.isdecimal() and newest.isdecimal() and int(newest) > int(token):
            # An earlier update that was handled again after a kill, and without an answer this time: the answers to the
            # newest one were perhaps not sent.
            ids = f"{self.ids[: -len(newest) - 1]}{token} {newest} "
            calls = self.calls
        # The ids take at most half of the limit, so that a full memo never makes a commit fail.
        room = self._slot.memo_limit // 2
        while ids.count(" ") > REMEMBERED + 1 or len(ids) > room:
            if ids == " ":
                break
            ids = ids[ids.index(" ", 1) :]
        encoded = self._encoded(calls, beside=len(ids) + 5) if calls else "[]"
        return Json(f'["{ids}",{encoded}]')

    def _encoded(self, calls: list[dict[str, Any]], *, beside: int) -> str:
        """Encode the calls that can be remembered."""
        try:
            return self._slot.memo_part(calls, beside=beside)
        except (EncodeError, TooLarge):
            pass
        kept: list[str] = []
        size = beside + 2
        lost: dict[Any, list[Exception]] = {}
        for call in calls:
            try:
                part = self._slot.memo_part(call, beside=beside)
                length = len(part.encode()) + 1
                if size + length > self._slot.memo_limit:
                    raise TooLarge("the memo", size + length, self._slot.memo_limit)
            except (EncodeError, TooLarge) as error:
                lost.setdefault(call.get("method"), []).append(error)
            else:
                kept.append(part)
                size += length
        for method, errors in lost.items():
            # Losing a call of a redelivered update is better than losing its state.
            which = f"the call {method}" if len(errors) == 1 else f"{len(errors)} calls {method}"
            logger.warning("%s of this update cannot be remembered: %s", which, errors[0])
        return f"[{','.join(kept)}]"

    def merged(self, other: HandledUpdates, mark: str) -> Json:
        """Return the memo with the updates of both, the other's first, and with a mark as the newest id."""
        calls = self.calls or other.calls
        self.ids = other.ids + self.ids[1:]
        return self.with_update(token_of(mark), calls)


def remembered(text: str) -> tuple[int, str | None]:
    """Return how many updates a memo has, given as JSON, and the id of the newest."""
    ids = text[2 : text.find('"', 2)].split() if text[:2] == '["' else []
    return len(ids), unquote(ids[-1].removeprefix("'")) if ids else None


def token_of(update_id: int | str) -> str:
    """Return an update's id as it is written in the memo. A long id is written as its hash."""
    if type(update_id) is int and -_SHORT < update_id < _SHORT:
        return str(update_id)
    text = _text(update_id)
    # No other token begins with "#".
    return text if len(text) <= LONGEST_TOKEN else "#" + blake2b(text.encode(), digest_size=20).hexdigest()


def _text(update_id: int | str) -> str:
    if isinstance(update_id, str):
        # Marked, so that "1" is not 1; quoted, so that no space, quote or backslash is in it.
        return "'" + quote(update_id, safe="", errors="surrogatepass")
    check_whole(update_id, "an update's id must be an int or a str, not {}")
    # Python raises ValueError for the decimal form of a very large int.
    return str(update_id) if -_LARGE < update_id < _LARGE else hex(update_id)


_SHORT, _LARGE = 10**18, 10**1000
