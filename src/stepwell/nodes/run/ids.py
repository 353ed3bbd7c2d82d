"""Ids of runs and of their waits."""

from __future__ import annotations

import re
import secrets
from typing import Any, NamedTuple, Self

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption
from stepwell.options import check_instance, check_text

__all__ = ["WaitId", "check_flow_id", "flow_of_wait", "new_flow_id"]

_WAIT = re.compile(r"wait:(\d{1,9}):(.*)", re.DOTALL)
_PLACE = re.compile(r"/(?P<node>.*)/(?P<visit>\d{1,18})(:(?P<run>[^/.]{1,8}))?(\.(?P<attempt>\d{1,18}))?", re.DOTALL)


def new_flow_id(prefix: str) -> str:
    """Return a new id for a run: the prefix and 64 random bits.

    Example::

        flow_id = new_flow_id("order-")
        assert flow_id.startswith("order-")
    """
    return f"{prefix}_{secrets.token_hex(8)}"


def check_flow_id(flow_id: Any) -> None:
    """Raise ``InvalidOption`` unless a new run may have this id."""
    check_text(flow_id, "flow_id={}: give a non-empty string, or leave it out for a new id")
    if flow_of_wait(flow_id) is not None:
        raise InvalidOption(f"flow_id={quoted(flow_id)} is the id of a wait; give the run another id")


class WaitId(NamedTuple):
    """One question of one run, so that an answer reaches that question only."""

    flow_id: str
    #: The path of the node that waits.
    node: str
    visit: int
    #: The mark of the run: a flow id may be used again, and an old answer must not reach the new run.
    run: str
    #: The number of the answer, from 1; above 1 only if ``post`` failed on the previous answer.
    attempt: int = 1

    @property
    def text(self) -> str:
        """``wait:7:flow_id/node/visit:run``: the id as users see it."""
        mark = f":{self.run}" if self.run else ""
        again = f".{self.attempt}" if self.attempt > 1 else ""
        return f"wait:{len(self.flow_id)}:{self.flow_id}/{self.node}/{self.visit}{mark}{again}"

    def again(self) -> Self:
        """Return the id of the same wait for its next answer."""
        return self._replace(attempt=self.attempt + 1)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parse an id; ``None`` if it is not the id of a wait."""
        flow_id = flow_of_wait(text)
        if flow_id is None:
            return None
        place = _PLACE.fullmatch(text[text.index(":", 5) + 1 + len(flow_id) :])
        if place is None:
            return None
        return cls(flow_id, place["node"], int(place["visit"]), place["run"] or "", int(place["attempt"] or 1))


def flow_of_wait(given: str) -> str | None:
    """Return the flow id in the id of a wait; ``None`` if it is not the id of a wait.

    Raises ``InvalidOption`` if it is not a text.
    """
    check_instance(given, str, "flow_id={}: give a non-empty string")
    match = _WAIT.fullmatch(given)
    if match is None:
        return None
    length = int(match[1])
    return match[2][:length] if match[2][length : length + 1] == "/" else None
