"""A chunk of items in a worker of an executor, which may be another process: pickled there and back."""

from __future__ import annotations

import pickle
import sys
import time
import traceback
from concurrent.futures import Executor, ProcessPoolExecutor
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

from stepwell.errors import ExecutorError
from stepwell.nodes.walk.execution import Cursor, enter, leave

__all__ = ["BUDGET", "NodeBlob", "dumps", "loads", "not_picklable", "pickles_by_value", "run_in_worker"]

#: Seconds after which a chunk runs no further items, so that slow items are spread over all workers.
BUDGET = 0.02


class NodeBlob(NamedTuple):
    """A pickled node, with all that a worker needs to run its items."""

    blob: bytes
    #: The name of its ``exec``.
    exec_name: str
    #: Whether results are pickled as the node is.
    by_value: bool


def pickles_by_value(executor: Executor) -> bool:
    """Return whether to pickle classes of ``__main__`` by value, with cloudpickle.

    Dask and loky import cloudpickle and use it for the functions of their users. The worker processes of a
    ``ProcessPoolExecutor`` import ``__main__`` themselves.
    """
    return not isinstance(executor, ProcessPoolExecutor) and "cloudpickle" in sys.modules


def dumps(value: Any, by_value: bool) -> bytes:
    """Pickle a value, with cloudpickle if ``by_value``."""
    blob: bytes = (import_module("cloudpickle") if by_value else pickle).dumps(value)
    return blob


def loads(blob: bytes) -> Any:
    """Unpickle a value that this run sent to its executor or got back; never data from a storage."""
    return pickle.loads(blob)  # noqa: S301 - pickled by this run


def run_in_worker(node: NodeBlob, step: dict[str, Any], blobs: list[tuple[int, bytes]]) -> list[tuple[bool, bytes]]:
    """Run a chunk in a worker of an executor; return whether each item succeeded, and its result or error."""
    exec_ = getattr(loads(node.blob), node.exec_name)
    # step() needs no more of the execution in another process.
    run: Any = SimpleNamespace(flow_id=step["flow_id"])
    cursor = Cursor(run, step["node"], visit=step["visit"], attempt=step["attempt"], caught=step["error"])
    token = enter(cursor)
    outcomes: list[tuple[bool, bytes]] = []
    until = time.perf_counter() + BUDGET
    try:
        for index, blob in blobs:
            cursor.item = index
            try:
                result = exec_(loads(blob))
            except KeyboardInterrupt:
                # Ctrl-C interrupts every process of the terminal.
                raise
            except BaseException as error:  # noqa: BLE001 - raised where the chunk is awaited
                outcomes.append((False, _pickled_error(error, step["node"], node.by_value)))
                break
            try:
                outcomes.append((True, dumps(result, node.by_value)))
            except Exception as error:  # noqa: BLE001 - pickling raises whatever the result's class raises
                failure = not_picklable(step["node"], f"the result of item {index}", error)
                outcomes.append((False, _pickled_error(failure, step["node"], node.by_value)))
                break
            if time.perf_counter() > until:
                break
    finally:
        leave(token)
    return outcomes


def _pickled_error(error: BaseException, node: str, by_value: bool) -> bytes:
    # A traceback cannot be pickled, so its text becomes a note.
    error.add_note("".join(traceback.format_exception(error)).rstrip())
    try:
        blob = dumps(error, by_value)
        loads(blob)
    except Exception:  # noqa: BLE001
        replacement = ExecutorError(node, f"the error {type(error).__name__}", "it does not pickle")
        replacement.add_note("\n".join(error.__notes__))
        return pickle.dumps(replacement)
    return blob


def not_picklable(node: str, what: str, error: Exception) -> ExecutorError:
    """Return the error for a value that cannot be sent to an executor or back."""
    failure = ExecutorError(node, what, f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
