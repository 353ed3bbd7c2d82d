"""The errors of a run, and the stored text of one: its message and its traceback, both bounded."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from stepwell._secrets import masked_text
from stepwell.errors import RunFailed

__all__ = ["LAST", "RunErrors", "failure_of", "message_of", "summary_of", "traceback_of"]

#: How many of the last errors of a run are stored.
LAST = 5
#: The most characters of an error's message, and of its traceback.
MESSAGE, TRACEBACK = 500, 4000
#: The most frames of one error, errors in a chain of causes, errors of a group, and groups inside groups.
FRAMES, CHAIN, GROUP, DEPTH = 12, 4, 3, 3

_NODES = str(Path(__file__).parent.parent)


def message_of(error: BaseException) -> str:
    """Return the message of an error as it is stored: cut to :data:`MESSAGE` characters."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - __str__ may raise; the type is stored in any case
        return ""
    return _storable(text[:MESSAGE])


def failure_of(flow_id: str, table: Mapping[str, Any]) -> RunFailed:
    """Return the error for the result of a run that has failed."""
    _, node, kind, message, *_ = next(iter(table.get("errors", ())), (0.0, "", "Exception", "unknown"))
    return RunFailed(flow_id, node, kind, message, undone="undone" in table)


def summary_of(error: BaseException) -> str:
    """Return the type of an error and its message for a log: in one line, with its secrets masked."""
    return f"{type(error).__name__}: {' '.join(masked_text(message_of(error)).split())}".rstrip(": ")


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error as it is stored: without local variables, its middle cut if it is long."""
    try:
        text = _storable(_chain(error))
    except Exception:  # noqa: BLE001 - the class of an error may raise wherever it is read
        return ""
    if len(text) <= TRACEBACK:
        return text
    # The first lines are those of the first cause, the last ones those of the error itself.
    half = TRACEBACK // 2 - 30
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _chain(error: BaseException) -> str:
    """Return the tracebacks of an error and of the errors that led to it, the first one first."""
    texts: list[str] = []
    following: BaseException | None = error
    seen: set[int] = set()
    while following is not None and len(texts) < CHAIN and id(following) not in seen:
        seen.add(id(following))
        texts.append(_one(following))
        hidden = following.__suppress_context__ and following.__cause__ is None
        following = following.__cause__ or (None if hidden else following.__context__)
    return "\nthen:\n".join(reversed(texts))


def _one(error: BaseException, depth: int = 0) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    # The frames of the runner come first in every traceback of a node.
    own = next((at for at, frame in enumerate(frames) if not frame.filename.startswith(_NODES)), 0)
    lines = traceback.StackSummary.from_list(frames[own:]).format()
    if len(lines) > FRAMES:
        left_out = len(lines) - FRAMES
        lines[FRAMES // 2 : -FRAMES // 2] = [f"  [{left_out} lines of the traceback left out]\n"]
    lines.append(f"{type(error).__name__}: {message_of(error)}".rstrip(": "))
    lines.extend(f"\n{str(note)[:TRACEBACK]}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, BaseExceptionGroup) and depth < DEPTH:
        lines.extend(f"\n{_indented(_one(inside, depth + 1))}" for inside in islice(error.exceptions, GROUP))
        if len(error.exceptions) > GROUP:
            lines.append(f"\n  and {len(error.exceptions) - GROUP} more")
    return "".join(lines)


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())


def _storable(text: str) -> str:
    # A file name may have lone surrogates, which no storage accepts.
    return text.encode("utf-8", "backslashreplace").decode()


class RunErrors:
    """The last errors of a run, as they are stored, and those of this process that they came from."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.rows: deque[list[Any]] = deque(maxlen=LAST)
        #: The paths of the nodes that have failed in this process.
        self.paths: set[str] = set()
        #: The errors of this process, each with its row.
        self._noted: list[tuple[Exception, list[Any]]] = []

    def newest_first(self) -> list[list[Any]]:
        """Return the rows as they are stored."""
        return list(reversed(self.rows))

    def note(self, path: str, error: BaseException, attempt: int, *, leaf: bool) -> None:
        """Add an error of a node once, with the innermost node that raised it."""
        if not isinstance(error, Exception) or any(error is known for known, _ in self._noted):
            return
        if isinstance(error, ExceptionGroup) and not leaf:
            # Each of its errors was added with its own node.
            return
        self.paths.add(path)
        row = [self._now(), path, type(error).__name__, message_of(error), traceback_of(error), attempt]
        self._noted.append((error, row))
        self.rows.append(row)

    def put_last(self, error: Exception) -> None:
        """Put the error that fails the run behind the errors of branches that it has cancelled."""
        for part in error.exceptions if isinstance(error, ExceptionGroup) else ():
            self.put_last(part)
        for noted, row in self._noted:
            if noted is error:
                with suppress(ValueError):
                    self.rows.remove(row)
                self.rows.append(row)
