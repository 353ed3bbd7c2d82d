"""Errors of a call itself, whatever is stored."""

from __future__ import annotations


class StepwellError(Exception):
    """Everything that the library raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process pools; their constructors take fields, not the message.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[StepwellError], args: tuple[object, ...], fields: dict[str, object]) -> StepwellError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class UsageError(StepwellError, RuntimeError):
    """The call cannot work here, whatever is stored."""


class WrongLoop(UsageError):
    """A storage is used from an event loop that did not open it."""

    def __init__(self, *, forked: bool = False) -> None:
        #: It was opened before this process was forked from another.
        self.forked = forked
        super().__init__(
            "this storage was opened before this process was forked, and its connections belong to the other one; "
            "close() it before forking, or use it first in the worker itself"
            if forked
            else "this storage was opened by another event loop; open one storage per loop, "
            "or close() it there before using it here"
        )


class AlreadyHeld(UsageError):
    """A task claims a key that it already holds, or that the task it was started by holds: waiting could never end."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(
            f"this task, or the task that started it, already holds {place}; use the context it has instead of "
            "entering a second one, or enter it when that block has ended"
        )


class InsideLoop(UsageError):
    """A sync entry point is called where it would block a running event loop."""

    def __init__(self, instead: str = "await the coroutine") -> None:
        super().__init__(f"a sync call inside a running event loop would block it; {instead} instead")


class InvalidOption(StepwellError, ValueError):
    """An option is unknown, or has a value that it cannot have."""


class MissingExtra(StepwellError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed; run: pip install 'stepwell[{extra}]'", name=package)


class ExtraTooOld(StepwellError, ImportError):
    """An optional package is installed in a release that is too old."""

    def __init__(self, package: str, found: str, minimum: str, extra: str) -> None:
        self.package, self.found, self.minimum, self.extra = package, found, minimum, extra
        super().__init__(
            f"{package} {found} is too old, {minimum} is the oldest that works; run: "
            f"pip install --upgrade 'stepwell[{extra}]'",
            name=package,
        )


class Unsupported(StepwellError, NotImplementedError):
    """A backend lacks an optional protocol."""

    def __init__(self, backend: str, what: str) -> None:
        self.backend, self.what = backend, what
        super().__init__(f"{backend} cannot {what}; use one of the four built-in storages for that")
