"""The parts of a thread's record: checkpoints, values of channels, and pending writes.

A value is written once for each version of its channel.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from stepwell.adapters.langgraph.checkpoints import is_small, packed, unpacked
from stepwell.adapters.langgraph.names import (
    VALUE,
    WRITES,
    checkpoint_name,
    id_of,
    long,
    name,
    run_name,
    short,
    task_of,
)
from stepwell.engine import Seal, from_json, is_large, to_json
from stepwell.errors import EncodeError

__all__ = ["CheckpointRow", "ThreadCodec", "any_large"]

#: The kind of sealed text, which is part of its checksum.
_KIND: Final = "p"
#: The kind of a value that is stored as JSON. No serializer has a kind of this name.
_JSON: Final = "$"


class CheckpointRow(NamedTuple):
    """The part of one checkpoint: all of it except the values of most channels."""

    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    parent: str | None
    #: Small values.
    values: dict[str, Any]

    def value_names(self, namespace: str) -> dict[str, str]:
        """Return the channels whose values may be parts, with the names of these parts."""
        versions = self.checkpoint["channel_versions"]
        return {
            channel: name(VALUE, namespace, channel, str(version))
            for channel, version in versions.items()
            if channel not in self.values
        }


class ThreadCodec:
    """Encodes and decodes the parts of one thread. Values are encoded by the serializer of LangGraph."""

    def __init__(self, seal: Seal, serde: SerializerProtocol) -> None:
        self._seal = seal
        self._serde = serde
        #: Another serializer may encrypt, and then every value has to pass through it.
        self._plain = type(serde) is JsonPlusSerializer

    def checkpoint(
        self,
        namespace: str,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        parent: str | None,
        new_versions: ChannelVersions,
    ) -> dict[str, str]:
        """Return the parts of a new checkpoint: its own, and those of the channels with a new version."""
        values = checkpoint["channel_values"]
        small, parts = {}, {}
        plain = self._plain
        for channel, value in values.items():
            # The first condition saves a call for each channel that only triggers a node.
            if plain and (value is None or is_small(value)):
                small[channel] = value
            elif channel in new_versions:
                part = name(VALUE, namespace, channel, str(new_versions[channel]))
                parts[part] = self._plainly_sealed(part, self._typed(value))
        part = checkpoint_name(namespace, checkpoint["id"])
        if parent is not None:
            parent = short(parent)
        compact = packed(checkpoint, metadata)
        if compact is not None:
            # Quicker and smaller than the general form.
            try:
                body = to_json({"k": compact, "m": metadata, "p": parent, "s": small})
                parts[part] = self._seal.seal_body(_KIND, part, body)
                return parts
            except UnicodeEncodeError:
                pass  # A name or text has a lone surrogate. The serializer may support it.
        # The id is in the name.
        rest = {key: value for key, value in checkpoint.items() if key not in ("channel_values", "id")}
        try:
            parts[part] = self._sealed(part, {"c": rest, "m": metadata, "p": parent, "s": small})
        except EncodeError:
            parts[part] = self._sealed(part, {"t": self._typed((rest, metadata)), "p": parent, "s": small})
        return parts

    def row(self, part: str, text: str) -> CheckpointRow:
        """Decode the part of a checkpoint."""
        body = self._texts(part, text)
        if "k" in body:
            bare, metadata = unpacked(body["k"]), body["m"]
        else:
            body = self._opened(part, text)
            bare, metadata = self._value(body["t"]) if "t" in body else (body["c"], body["m"])
        checkpoint = cast("Checkpoint", {**bare, "id": id_of(part)})
        parent = body["p"]
        return CheckpointRow(checkpoint, metadata, None if parent is None else long(parent), body["s"])

    def writes(
        self, namespace: str, checkpoint_id: str, task_id: str, task_path: str, writes: Sequence[tuple[str, Any]]
    ) -> dict[str, str]:
        """Return the parts of a task's writes: one for all channels of the graph, and one for each special channel."""
        kinds: dict[str, list[Any]] = {}
        for at, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, at)
            kind = "0" if index >= 0 else str(-index)
            kinds.setdefault(kind, []).append([index, channel, *self._typed(value)])
        parts = {}
        task = f"{WRITES}/{short(namespace)}/{short(checkpoint_id)}/{short(task_id)}"
        for kind, rows in kinds.items():
            part = f"{task}/{kind}"
            parts[part] = self._plainly_sealed(part, [task_path, rows])
        return parts

    def pending(self, parts: Mapping[str, str]) -> list[PendingWrite]:
        """Decode the writes of one checkpoint, in the order in which a graph applies them."""
        found = []
        for part, text in parts.items():
            task_path, rows = self._texts(part, text)
            task_id = task_of(part)
            for index, channel, kind, data in rows:
                found.append((writes_sort_key(task_path, task_id, index), channel, kind, data))
        found.sort(key=lambda each: each[0])
        return [(key[1], channel, self._value((kind, data))) for key, channel, kind, data in found]

    def value(self, part: str, text: str) -> Any:
        """Decode the value of a channel."""
        return self._value(self._texts(part, text))

    def complete(self, config: RunnableConfig, row: CheckpointRow, parts: Mapping[str, str]) -> CheckpointTuple:
        """Return a checkpoint with its values and writes, given their parts."""
        ids = config["configurable"]
        values = dict(row.values)
        for channel, part in row.value_names(ids["checkpoint_ns"]).items():
            if part in parts:
                values[channel] = self.value(part, parts[part])
        parent = None
        if row.parent:
            parent = cast("RunnableConfig", {"configurable": {**ids, "checkpoint_id": row.parent}})
        pending = self.pending({part: text for part, text in parts.items() if part[0] == WRITES})
        checkpoint = cast("Checkpoint", {**row.checkpoint, "channel_values": values})
        return CheckpointTuple(config, checkpoint, row.metadata, parent, pending)

    def copied(self, parts: Mapping[str, str], target: ThreadCodec) -> Iterator[tuple[str, str]]:
        """Yield parts for the record of another thread."""
        for part, text in parts.items():
            yield part, target._seal.seal_body(_KIND, part, self._seal.body(_KIND, part, text).encode())

    def mark(self, run_id: str) -> tuple[str, str]:
        """Return the part that marks a thread of a run."""
        part = run_name(run_id)
        return part, self._sealed(part, 1)

    def _sealed(self, part: str, body: Any) -> str:
        return self._seal.seal(_KIND, part, body)

    def _plainly_sealed(self, part: str, body: Any) -> str:
        """Seal a body that JSON represents exactly."""
        try:
            return self._seal.seal_body(_KIND, part, to_json(body))
        except UnicodeEncodeError:
            # A name has a lone surrogate. This raises a readable error.
            return self._sealed(part, body)

    def _opened(self, part: str, text: str) -> Any:
        return self._seal.value(_KIND, part, text)

    def _texts(self, part: str, text: str) -> Any:
        """Open a part that has only texts and numbers. For a large text this is several times quicker."""
        return from_json(self._seal.body(_KIND, part, text))

    def _typed(self, value: Any) -> list[Any]:
        # Base64 would make a text a third larger.
        if self._plain and (is_small(value) or (type(value) is str and value.isascii())):
            return [_JSON, value]
        kind, data = self._serde.dumps_typed(value)
        return [kind, b64encode(data).decode()]

    def _value(self, typed: Iterable[Any]) -> Any:
        kind, data = typed
        if kind == _JSON:
            return data
        return self._serde.loads_typed((kind, b64decode(data)))


def any_large(values: Iterable[Any]) -> bool:
    """Return whether values should be encoded in a thread, so that other tasks can run."""
    for value in values:
        if value is None or type(value) is int:
            continue
        if type(value) is list and value and hasattr(value[0], "content"):
            # Messages.
            value = [getattr(each, "content", None) for each in value]  # noqa: PLW2901 - the texts of the same value
        if is_large(value):
            return True
    return False
