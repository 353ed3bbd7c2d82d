"""The update that a handler runs for: an append to a log in the handler is made once, however often it is delivered."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from contextvars import ContextVar
from hashlib import blake2b

from stepwell import _portal
from stepwell.record import Address

__all__ = ["UpdateAppends", "appends_of_update"]

#: Bytes of a mark. A log has few of them, so the chance that two are equal is negligible.
_SIZE = 9


class UpdateAppends:
    """The appends to logs of one block, which handles one update.

    A log keeps a mark of each append, made from the update's id and the values. If the block runs again for the same
    update, it makes the same marks, and the appends with these marks are not made again.
    """

    __slots__ = ("_counts", "_place", "_update", "any", "ended", "outer")

    def __init__(self, place: object, update: str) -> None:
        self._place = place
        self._update = update
        #: How often this attempt has made an append.
        self._counts: dict[bytes, int] | None = None
        #: The block has ended. Tasks that it has started may go on, and their appends are not of the update.
        self.ended: bool = False
        #: A log was appended to.
        self.any: bool = False
        outer = _current.get()
        #: The block around this one. If blocks end in other tasks, those that have ended stay out of the chain.
        self.outer: UpdateAppends | None = outer.outer if outer is not None and outer.ended else outer
        _current.set(self)

    def mark(self, log: Address, bodies: Sequence[bytes]) -> str:
        """Return the mark of an append. Equal appends of one attempt have different marks."""
        self.any = True
        content = blake2b(
            f"{self._place}\n{self._update}\n{log.text}".encode("utf-8", "surrogatepass"), digest_size=_SIZE
        )
        for body in bodies:
            # JSON has no line feed.
            content.update(b"\n" + body)
        same = content.digest()
        counts = self._counts = self._counts or {}
        counts[same] = counts.get(same, 0) + 1
        content.update(b"\n%d" % counts[same])
        return b64encode(content.digest()).decode()

    def restart(self) -> None:
        """Begin another attempt of the handler, which makes the same appends."""
        self._counts = None

    def end(self) -> None:
        """End the block."""
        self.ended = True
        # The block may have been entered in another task.
        if _current.get() is self:
            _current.set(self.outer)


def appends_of_update() -> UpdateAppends | None:
    """Return the appends of the innermost block that has not ended."""
    found = _current.get()
    while found is not None and found.ended:
        found = found.outer
    return found


_current: ContextVar[UpdateAppends | None] = ContextVar("stepwell_appends_of_update", default=None)
_portal.carried.append(_current)
