"""The ``on_error`` policies of batches and parallel branches. Every policy raises or keeps all errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from stepwell._secrets import quoted
from stepwell.codec.types import register_shape
from stepwell.errors import KeptError, NodeExited, WorkCancelled
from stepwell.nodes.run.errors import message_of
from stepwell.nodes.walk.threads import ExecutorFailed
from stepwell.nodes.walk.workgroup import WorkGroup
from stepwell.options import check_choice

__all__ = [
    "Failed",
    "OnError",
    "add_note",
    "attach",
    "check_on_error",
    "conclude",
    "exit_of",
    "inside_cancelled",
    "kept_error",
    "together",
]

#: The most notes of the engine on one error. A run inside a run adds a note at each level.
NOTES = 10

OnError = Literal["stop", "collect", "skip"]


@dataclass(frozen=True, slots=True)
class Failed:
    """The result of an item or a branch that failed, with ``on_error="skip"``.

    Example::

        class Divide(BatchNode):
            def prep(self, shared):
                return [1, 0]

            def exec(self, number):
                return 1 / number

            def post(self, shared, numbers, results):
                shared["failed"] = [result.item for result in results if isinstance(result, Failed)]

        assert (await linear(Divide(on_error="skip")).run({}))["failed"] == [0]
    """

    #: The item, or the name of the branch.
    item: Any
    #: After a resume, a :class:`KeptError` with the name of the type and the message.
    error: Exception


def kept_error(error: Exception) -> KeptError:
    """Return the stored form of an error."""
    return error if isinstance(error, KeptError) else KeptError(type(error).__name__, message_of(error))


def _pack(failed: Failed) -> dict[str, Any]:
    kept = kept_error(failed.error)
    return {"item": failed.item, "type": kept.type_name, "message": kept.message}


def _unpack(stored: dict[str, Any]) -> Failed:
    return Failed(stored["item"], KeptError(stored["type"], stored["message"]))


register_shape(Failed, "stepwell.Failed", _pack, _unpack)


def inside_cancelled(place: str, cancelled: asyncio.CancelledError) -> WorkCancelled:
    """Return the error for work that was cancelled while the run was not."""
    error = WorkCancelled(place)
    error.__cause__ = cancelled
    return error


def exit_of(place: str, error: BaseException, *, in_thread: bool) -> NodeExited | None:
    """Return the error for a ``SystemExit`` or similar of a node of a durable run, else ``None``.

    Call it where the error is caught. Ctrl-C raises ``KeyboardInterrupt`` in the main thread only, so in another thread
    it is one that the node raised.
    """
    if isinstance(error, Exception | asyncio.CancelledError | ExecutorFailed):
        return None
    if isinstance(error, GeneratorExit) and (error.__traceback__ is None or error.__traceback__.tb_next is None):
        # The coroutine is being closed, and must not await anything. Each coroutine then gets an exception of its own,
        # while one that a node has raised comes from a deeper frame.
        return None
    in_thread = in_thread or threading.current_thread() is not threading.main_thread()
    if isinstance(error, KeyboardInterrupt) and not in_thread:
        return None
    failure = NodeExited(place, type(error).__name__, message_of(error))
    failure.__cause__ = error
    return failure


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, unless it has the same note, or many."""
    notes: Sequence[str] = getattr(error, "__notes__", ())
    if note not in notes and len(notes) < NOTES:
        error.add_note(note)


async def together(works: Iterable[Coroutine[Any, Any, None]], failures: Sequence[Exception]) -> None:
    """Run coroutines concurrently until the last has ended; a ``Halt`` from one cancels and awaits the others.

    ``failures`` are the errors so far, which are attached to a cancellation from outside.
    """
    try:
        async with WorkGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseException as error:
        attach(error, failures)
        raise


def check_on_error(on_error: object) -> None:
    """Raise ``InvalidOption`` unless this is one of the policies."""
    check_choice(
        on_error, get_args(OnError), f"on_error={{}}: choose one of {', '.join(map(quoted, get_args(OnError)))}"
    )


def attach(error: BaseException, others: Sequence[BaseException]) -> None:
    """Attach further errors to the context of a raised one, where tracebacks show them."""
    further = list({id(other): other for other in others if other is not error}.values())
    if not further:
        return
    last, seen = error, {id(error)}
    while last.__context__ is not None and id(last.__context__) not in seen:
        last = last.__context__
        seen.add(id(last))
    last.__context__ = BaseExceptionGroup("further errors", further)


def conclude(
    on_error: OnError, failures: Sequence[Exception], what: str, *, fatal: Exception | None = None, names: str = ""
) -> None:
    """Raise according to the policy, after everything has ended.

    ``failures`` are in the order in which they happened. ``fatal`` is an error of the batch or the branches as a
    whole, which is raised under every policy. ``names`` are those of what has failed, for the message.
    """
    if on_error == "collect" and failures:
        errors = [*failures, fatal] if fatal is not None else failures
        raise ExceptionGroup(f"{len(failures)} {what} failed{names and f': {names}'}", errors)
    if fatal is not None:
        _raise_with(fatal, failures)
    if on_error == "stop" and failures:
        _raise_with(failures[0], failures[1:])


def _raise_with(error: Exception, others: Sequence[Exception]) -> NoReturn:
    try:
        raise error
    except Exception:
        # After ``raise``, which may have overwritten the context.
        attach(error, others)
        raise
