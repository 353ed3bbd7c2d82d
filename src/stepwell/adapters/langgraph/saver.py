"""``StepwellSaver``: the checkpoints of LangGraph's threads in a Stepwell storage."""

from __future__ import annotations

from collections import ChainMap, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from secrets import token_urlsafe
from typing import Any, Final, Literal, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from stepwell import Storage
from stepwell.adapters.langgraph.blocking import blocking, run_blocking
from stepwell.adapters.langgraph.names import id_of, namespace_of
from stepwell.adapters.langgraph.ownership import FencedWriter
from stepwell.adapters.langgraph.parts import CheckpointRow, any_large
from stepwell.adapters.langgraph.threads import Thread, Threads
from stepwell.adapters.langgraph.writers import Writers, remember
from stepwell.engine import Version, as_storage, in_thread, quoted
from stepwell.errors import InvalidOption
from stepwell.options import check_choice

__all__ = ["StepwellSaver", "WriteOwnership"]

#: The runs whose mark is known to be stored, and the threads.
_REMEMBERED: Final = 10_000
#: The items of a write.
_channel, _value = itemgetter(0), itemgetter(1)


class StepwellSaver(BaseCheckpointSaver[str]):
    """The checkpoints of all threads, one record for each thread, for any number of processes.

    ``storage``: a storage or its URL. ``namespace``: the namespace of the records. ``limit``: the largest size of a
    thread, in bytes. ``serde``: as for other savers.

    With ``ownership="fence"`` a thread has one writing runner at a time. A runner that reads a thread and finds at its
    first write that another one has written meanwhile, or that another one has taken over since, gets ``StaleWriter``
    (a ``LeaseLost``), and writes nothing.

    Example::

        graph = builder.compile(checkpointer=StepwellSaver("sqlite:///agents.db", ownership="fence"))
        graph.invoke({"question": "..."}, {"configurable": {"thread_id": "ann"}})
    """

    def __init__(
        self,
        storage: Storage | str,
        *,
        ownership: Literal["fence"] | None = None,
        namespace: str = "langgraph",
        limit: int = 1 << 30,
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        check_choice(ownership, ("fence", None), 'ownership must be "fence" or None, not {}')
        self.storage: Storage = as_storage(storage)
        self.ownership: Literal["fence"] | None = ownership
        self.threads: Threads = Threads(self.storage, namespace, limit)
        self._writers = Writers(self.threads)
        #: The last threads that were used, for the cost of making them.
        self._threads: OrderedDict[str, Thread] = OrderedDict()
        self._marked: OrderedDict[tuple[str, str], None] = OrderedDict()

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the next version of a channel. Versions of two forks of a thread differ."""
        number = "0" if current is None else str(current).partition(".")[0]
        if not number.isdecimal():
            raise InvalidOption(f"{quoted(current)} is not the version of a channel; give one that this saver returned")
        return f"{int(number) + 1:08d}.{token_urlsafe(5)}"

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, or the newest one of a thread."""
        found, version = await self._get(config)
        self._begin(config, found, version)
        return found

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, or the newest one of a thread."""
        found, version = run_blocking(self.storage, self._get(config))
        self._begin(config, found, version)
        return found

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints of a thread, or of all threads, the newest of each first."""
        chosen = {} if config is None else config["configurable"]
        only = get_checkpoint_id(config) if config else None
        left = limit
        given = chosen.get("thread_id")
        ids = self.threads.ids() if given is None else _one(given)
        async for thread_id in ids:
            thread = self._thread(thread_id)
            async for part, row in self._rows(thread, chosen.get("checkpoint_ns"), only, before):
                if left is not None and left <= 0:
                    return
                if filter and any(row.metadata.get(key) != value for key, value in filter.items()):
                    continue
                found = await thread.complete(thread_id, part, row)
                if found is not None:
                    left = None if left is None else left - 1
                    yield found

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints of a thread, or of all threads, the newest of each first."""
        found = self.alist(config, filter=filter, before=before, limit=limit)
        try:
            while (each := run_blocking(self.storage, anext(found, None))) is not None:
                yield each
        finally:
            run_blocking(self.storage, cast("Any", found).aclose())

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. Only the values of channels with a new version are written."""
        writer = await self._writer(config)
        return await self.put_by(writer, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task. Writes of the same task to the same checkpoint are replaced."""
        writer = await self._writer(config)
        await self.put_writes_by(writer, config, writes, task_id, task_path)

    put: Callable[..., RunnableConfig] = blocking(aput)
    put_writes: Callable[..., None] = blocking(aput_writes)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        for known in [each for each in self._marked if each[0] == str(thread_id)]:
            del self._marked[known]
        await self._thread(thread_id).delete()

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete all checkpoints of some runs. It looks at every thread.

        A checkpoint from which a remaining one computes a delta channel is kept.
        """
        chosen = set(map(str, _checked(run_ids, "run_ids")))
        for thread_id in await self.threads.of_runs(chosen):
            await self._thread(thread_id).remove(
                lambda rows: [part for part, row in rows.items() if str(row.metadata.get("run_id")) in chosen]
            )
        for known in [each for each in self._marked if each[1] in chosen]:
            del self._marked[known]

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints, values and writes of a thread to another one."""
        await self._thread(source_thread_id).copy_to(self._thread(target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of some threads.

        ``"keep_latest"`` keeps the newest of each namespace, and its ancestors up to the last snapshot of each delta
        channel. ``"delete"`` deletes the threads.
        """
        _checked(thread_ids, "thread_ids")
        if strategy == "delete":
            for thread_id in thread_ids:
                await self.adelete_thread(thread_id)
            return
        if strategy != "keep_latest":
            raise InvalidOption(f'strategy must be "keep_latest" or "delete", not {quoted(strategy)}')
        for thread_id in thread_ids:
            await self._thread(thread_id).remove(_all_but_newest)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes to delta channels before a checkpoint, and the values that they begin with."""
        ids = config["configurable"]
        thread = self._thread(ids["thread_id"])
        return await thread.history(ids.get("checkpoint_ns", ""), get_checkpoint_id(config), channels)

    delete_thread: Callable[..., None] = blocking(adelete_thread)
    delete_for_runs: Callable[..., None] = blocking(adelete_for_runs)
    copy_thread: Callable[..., None] = blocking(acopy_thread)
    prune: Callable[..., None] = blocking(aprune)
    get_delta_channel_history: Callable[..., Mapping[str, DeltaChannelHistory]] = blocking(aget_delta_channel_history)

    async def aclaim_write_ownership(self, thread_id: str) -> WriteOwnership:
        """Become the writer of a thread. Writers before this one get ``StaleWriter`` from now on."""
        thread = self._thread(thread_id)
        writer = FencedWriter(self.storage, thread.address, thread.limit, None)
        await writer.claim()
        return WriteOwnership(self, writer)

    async def put_by(
        self,
        writer: FencedWriter | None,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, with a writer or without a condition."""
        ids = config["configurable"]
        thread_id, namespace = ids["thread_id"], ids.get("checkpoint_ns", "")
        thread = self._thread(thread_id)
        whole = get_checkpoint_metadata(_with_plain_metadata(config), metadata)
        values = checkpoint["channel_values"]
        args = namespace, checkpoint, whole, get_checkpoint_id(config), new_versions
        if any_large([values[channel] for channel in new_versions if channel in values]):
            parts = await in_thread(thread.codec.checkpoint, *args)
        else:
            parts = thread.codec.checkpoint(*args)
        if counters := whole.get("counters_since_delta_snapshot"):
            thread.awaited.update(counters)
        run = whole.get("run_id")
        mark = None if run is None else (str(thread_id), str(run))
        if mark is not None and mark not in self._marked:
            parts.update([thread.codec.mark(mark[1])])
        await (writer or thread.writer()).write(parts)
        if mark is not None:
            remember(self._marked, mark, None, _REMEMBERED)
        if writer is not None:
            self._writers.wrote(writer, str(thread_id), namespace, checkpoint["id"])
        stored = {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint["id"]}
        return cast("RunnableConfig", {"configurable": stored})

    async def put_writes_by(
        self,
        writer: FencedWriter | None,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        """Store the writes of a task, with a writer or without a condition."""
        ids = config["configurable"]
        thread = self._thread(ids["thread_id"])
        args = ids.get("checkpoint_ns", ""), ids["checkpoint_id"], task_id, task_path, writes
        if any_large(map(_value, writes)):
            parts = await in_thread(thread.codec.writes, *args)
        else:
            parts = thread.codec.writes(*args)
        if parts:
            linger = thread.awaited.isdisjoint(map(_channel, writes))
            await (writer or thread.writer()).write(parts, linger=linger)

    def _thread(self, thread_id: Any) -> Thread:
        key = str(thread_id)
        thread = self._threads.get(key)
        # A clone with another serializer has the same table.
        if thread is None or thread.serde is not self.serde:
            thread = self.threads.one(thread_id, self.serde)
            remember(self._threads, key, thread, _REMEMBERED)
        else:
            self._threads.move_to_end(key)
        return thread

    async def _get(self, config: RunnableConfig) -> tuple[CheckpointTuple | None, Version | None]:
        ids = config["configurable"]
        thread_id = ids["thread_id"]
        return await self._thread(thread_id).get(thread_id, ids.get("checkpoint_ns", ""), get_checkpoint_id(config))

    async def _rows(
        self, thread: Thread, namespace: str | None, only: str | None, before: RunnableConfig | None
    ) -> AsyncIterator[tuple[str, CheckpointRow]]:
        """Yield the checkpoints of a thread, the newest of all namespaces first."""
        end = get_checkpoint_id(before) if before else None
        namespaces = [namespace] if namespace is not None else await thread.namespaces()
        iterators = [thread.newest(each, end) for each in namespaces]
        heads = [await anext(each, None) for each in iterators]
        while any(heads):
            at = max((at for at, head in enumerate(heads) if head), key=lambda at: id_of(cast("Any", heads[at])[0]))
            part, row = cast("tuple[str, CheckpointRow]", heads[at])
            if only is None or id_of(part) == only:
                yield part, row
            heads[at] = await anext(iterators[at], None)

    def _begin(self, config: RunnableConfig, found: CheckpointTuple | None, version: Version | None) -> None:
        """Begin a runner that has read a thread."""
        if self.ownership is not None:
            thread = self._thread(config["configurable"]["thread_id"])
            self._writers.begin(config, found, FencedWriter(self.storage, thread.address, thread.limit, version))

    async def _writer(self, config: RunnableConfig) -> FencedWriter | None:
        if self.ownership is None:
            return None
        current = self._writers.current(config)
        if current is not None:
            return current
        # Nothing was read before: this is a new writer.
        _, version = await self._get(config)
        thread = self._thread(config["configurable"]["thread_id"])
        return FencedWriter(self.storage, thread.address, thread.limit, version)


class WriteOwnership:
    """The right to write to one thread, until another claim supersedes it.

    Example::

        saver = StepwellSaver(storage, ownership="fence")
        ownership = await saver.aclaim_write_ownership("thread-42")
    """

    def __init__(self, saver: StepwellSaver, writer: FencedWriter) -> None:
        self._saver = saver
        self._writer = writer

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. Raises ``StaleWriter`` after another claim."""
        return await self._saver.put_by(self._writer, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task. Raises ``StaleWriter`` after another claim."""
        await self._saver.put_writes_by(self._writer, config, writes, task_id, task_path)

    async def acheck_write_ownership(self) -> None:
        """Raise ``StaleWriter`` after another claim."""
        await self._writer.check()


def _checked(ids: Sequence[str], what: str) -> Sequence[str]:
    """Return a list of ids. A text would be taken for a list of its letters."""
    if isinstance(ids, str):
        raise InvalidOption(f"{what} must be a list of ids, not {quoted(ids)}; write [{quoted(ids)}]")
    return ids


def _with_plain_metadata(config: RunnableConfig) -> RunnableConfig:
    """Return a config with a dictionary of metadata. LangGraph passes a ``ChainMap``, which is slow to iterate over."""
    metadata: Any = config.get("metadata")
    if type(metadata) is not ChainMap or len(metadata.maps) > 1:
        return config
    return cast("RunnableConfig", {**config, "metadata": metadata.maps[0]})


def _all_but_newest(rows: dict[str, CheckpointRow]) -> list[str]:
    newest: dict[str, str] = {}
    for part in rows:
        namespace = namespace_of(part)
        newest[namespace] = max(newest.get(namespace, part), part, key=id_of)
    return [part for part in rows if newest[namespace_of(part)] != part]


async def _one(thread_id: Any) -> AsyncIterator[Any]:
    yield thread_id
