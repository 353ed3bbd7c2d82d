"""The writers of the runners of a saver with ``ownership="fence"``, and how a runner's write finds its own."""

from __future__ import annotations

from collections import OrderedDict
from contextvars import ContextVar
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, get_checkpoint_id

from stepwell.adapters.langgraph.ownership import FencedWriter
from stepwell.adapters.langgraph.threads import Threads

__all__ = ["Writers", "remember"]

#: The writers of the runners that a task or thread is part of: by saver, thread, and whether a graph is running. A
#: program may look at a thread, or change it, between two steps of a graph that it streams.
_in_context: ContextVar[dict[tuple[Threads, str, bool], FencedWriter]] = ContextVar("stepwell_langgraph_writers")
#: A task that runs one thread after another keeps the writers of the last ones.
_IN_CONTEXT: Final = 16
#: LangGraph passes this key with the config of a graph that is running.
_RUNTIME: Final = "__pregel_runtime"
#: The writers that are found by their last checkpoint.
_CHECKPOINTS: Final = 10_000
#: The runs whose writers are found by LangGraph's object for the run.
_RUNS: Final = 256


class Writers:
    """The writers of the last runners, found by the run, by the task, or by the checkpoint before a write."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._by_checkpoint: OrderedDict[tuple[str, str, str | None], FencedWriter] = OrderedDict()
        #: By thread and the ``id()`` of LangGraph's object for the run, which is kept, so that no other has its id.
        self._by_run: OrderedDict[tuple[str, int], tuple[object, FencedWriter]] = OrderedDict()

    def begin(self, config: RunnableConfig, found: CheckpointTuple | None, writer: FencedWriter) -> None:
        """Remember the writer of a runner that has read a thread. A nested graph has the writer of its parent."""
        ids = config["configurable"]
        thread_id, namespace = str(ids["thread_id"]), ids.get("checkpoint_ns", "")
        if namespace and _RUNTIME in ids and (outer := self.current(config)) is not None:
            self._remember_run(thread_id, ids[_RUNTIME], outer)
            return
        if _RUNTIME in ids:
            self._remember_run(thread_id, ids[_RUNTIME], writer)
        place = (self._threads, thread_id, _RUNTIME in ids)
        others = [each for each in _in_context.get({}).items() if each[0] != place]
        _in_context.set(dict([*others[1 - _IN_CONTEXT :], (place, writer)]))
        self.wrote(
            writer, thread_id, namespace, None if found is None else found.config["configurable"]["checkpoint_id"]
        )

    def wrote(self, writer: FencedWriter, thread_id: str, namespace: str, checkpoint_id: str | None) -> None:
        """Remember the writer that has written or read a checkpoint."""
        remember(self._by_checkpoint, (thread_id, namespace, checkpoint_id), writer, _CHECKPOINTS)

    def current(self, config: RunnableConfig) -> FencedWriter | None:
        """Return the writer of the run or of the current task, or the one that read or wrote the checkpoint before."""
        ids = config["configurable"]
        thread_id = str(ids["thread_id"])
        # LangGraph stores the writes of parallel nodes in threads that do not have the context of the run.
        if _RUNTIME in ids and (of_run := self._by_run.get((thread_id, id(ids[_RUNTIME])))) is not None:
            return of_run[1]
        found = _in_context.get({}).get((self._threads, thread_id, _RUNTIME in ids))
        if found is not None:
            return found
        return self._by_checkpoint.get((thread_id, ids.get("checkpoint_ns", ""), get_checkpoint_id(config)))

    def _remember_run(self, thread_id: str, run: object, writer: FencedWriter) -> None:
        remember(self._by_run, (thread_id, id(run)), (run, writer), _RUNS)


def remember(known: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Add an item as the newest, and drop the oldest above ``most``."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)
