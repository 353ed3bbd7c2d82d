"""How a run is submitted: its options, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from stepwell.errors import InvalidOption
from stepwell.options import check_choice, check_function, check_not_async, check_number, check_whole
from stepwell.record import NOTHING

if TYPE_CHECKING:
    from stepwell.nodes.queue.children import Parent
    from stepwell.nodes.run.table import Retention

__all__ = ["Merge", "OnExists", "Submission"]

#: What to do if a run of the given id exists.
OnExists = Literal["return", "raise", "replace", "restart"]
#: Returns the data of a run from the data that it was submitted with before, and that it is submitted with now.
Merge = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


class Submission(NamedTuple):
    """How a run is submitted; the options of :meth:`NodeFlow.submit`."""

    keep: Retention
    partition: str | int | None = None
    after: float | None = None
    priority: int = 0
    params: Mapping[str, Any] = NOTHING
    tags: Mapping[str, str | int] = NOTHING
    timeout: float | None = None
    #: ``None``: return the run if it was submitted with the same data, else raise ``RunExists``.
    on_exists: OnExists | None = None
    debounce: float | None = None
    at_most: float | None = None
    merge: Merge | None = None
    #: The run is a child of this one.
    parent: Parent | None = None

    def check(self) -> None:
        """Raise ``InvalidOption`` unless the options are valid together."""
        check_number(self.after, "after={}: give a number of seconds, or None", least=0, optional=True, finite=True)
        check_whole(
            self.priority,
            "priority={}: give an int of at most 32 bits; higher ones are taken first",
            least=-(1 << 31),
            most=(1 << 31) - 1,
        )
        if (self.timeout, self.on_exists, self.debounce, self.at_most, self.merge) != (None, None, None, None, None):
            self._check_start()

    def _check_start(self) -> None:
        for name in ("timeout", "debounce", "at_most"):
            message = f"{name}={{}}: give a number of seconds above 0, or None"
            check_number(getattr(self, name), message, above=0, optional=True, finite=True)
        choices = get_args(OnExists)
        if self.on_exists is not None:
            check_choice(self.on_exists, choices, f"on_exists={{}}: choose one of {', '.join(map(repr, choices))}")
        check_function(self.merge, "merge={}: give a function of the earlier and the new data, or None", optional=True)
        if self.merge is not None:
            check_not_async(self.merge, "merge={} is an async def, which is not supported; give a def")
        if self.debounce is None:
            given = next((name for name in ("at_most", "merge") if getattr(self, name) is not None), None)
            if given is not None:
                raise InvalidOption(f"{given}= belongs to debounce=, the seconds by which each call delays the run")
        elif self.after is not None or self.on_exists is not None:
            given = "after" if self.after is not None else "on_exists"
            raise InvalidOption(f"{given}= and debounce= exclude each other: debounce= says when the run starts")
        elif self.at_most is not None and self.at_most < self.debounce:
            raise InvalidOption(f"at_most={self.at_most:g} is less than debounce={self.debounce:g}")
        delay = self.after if self.debounce is None else self.at_most or self.debounce
        if self.timeout is not None and delay is not None and self.timeout <= delay:
            raise InvalidOption(f"timeout={self.timeout:g} ends before the run may start, after {delay:g} s")
