"""``StepwellStore``: LangGraph's long-term memory in a Stepwell storage."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from stepwell import Storage
from stepwell.adapters.langgraph.blocking import run_blocking
from stepwell.engine import (
    Address,
    Apply,
    Change,
    Get,
    Guard,
    Seal,
    Stored,
    Version,
    as_storage,
    decode_key,
    encode_key,
    quoted,
)
from stepwell.errors import InvalidOption, RecordReplaced, VersionChanged
from stepwell.options import check_instance

__all__ = ["StepwellStore"]

_MINUTE: Final = 60.0


class StoredItem(NamedTuple):
    """A stored item, its vectors by path, and its time to live in minutes."""

    address: Address
    item: Item
    vectors: dict[str, list[float]]
    ttl: float | None
    #: The version of the record.
    version: Version
    #: The record says when the item was updated, because it was written again since.
    is_dated: bool


class StepwellStore(BaseStore):
    """Items in a Stepwell storage, one record each.

    ``storage``: a storage or its URL. ``namespace``: the namespace of the records. ``index``: an embedding function for
    searches by meaning; its vectors are stored with the items and compared one by one. ``ttl``: as for other stores.
    ``limit``: the largest size of an item, in bytes.

    A search reads the items below its namespace until it has enough. Expired items are never returned.

    Example::

        from stepwell.adapters.langgraph import StepwellStore

        store = StepwellStore(storage)
        await store.aput(("users", "42"), "likes", {"food": "pizza"})
        assert (await store.aget(("users", "42"), "likes")).value == {"food": "pizza"}
    """

    supports_ttl: bool = True

    def __init__(
        self,
        storage: Storage | str,
        *,
        namespace: str = "langgraph-store",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        limit: int = 16 * 1024 * 1024,
    ) -> None:
        self.storage: Storage = as_storage(storage)
        self.namespace: str = namespace
        self.ttl_config: TTLConfig | None = ttl
        self._limit = limit
        self._embeddings = None if index is None else ensure_embeddings(index.get("embed"))
        self._fields: list[str] = [] if index is None else [*(index.get("fields") or ["$"])]

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Apply operations. All reads see the store before the writes."""
        return run_blocking(self.storage, self.abatch(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Apply operations. All reads see the store before the writes."""
        listed = list(ops)
        results = await asyncio.gather(*map(self._read, listed))
        # The last write to an item counts.
        puts = {(op.namespace, op.key): op for op in listed if isinstance(op, PutOp)}
        await asyncio.gather(*map(self._put, puts.values()))
        return list(results)

    async def _read(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            return await self._get(op)
        if isinstance(op, SearchOp):
            return [*await self._search(op)]
        if isinstance(op, ListNamespacesOp):
            return await self._namespaces(op)
        check_instance(op, PutOp, "not an operation of a store: {}")
        return None

    async def _get(self, op: GetOp) -> Item | None:
        address = self._address(op.namespace, op.key)
        stored: Stored | None = await self.storage.perform(Get(address))
        if stored is None:
            return None
        entry = self._entry(address, stored)
        if entry is None:
            return None
        if op.refresh_ttl:
            await self._refresh(entry)
        return entry.item

    async def _put(self, op: PutOp) -> None:
        address = self._address(op.namespace, op.key)
        if op.value is None:
            await self.storage.perform(Apply(address, Change(self.storage.ids(), delete=True, forget=True)))
            return
        vectors = await self._embedded(op)
        known: Stored | None = await self.storage.perform(Get(address))
        seal = self._seal(address)
        before = None if known is None else self._entry(address, known)
        created = datetime.now(UTC) if before is None else before.item.created_at
        fields: dict[str, Any] = {"value": dict(op.value), "created": created}
        if vectors:
            fields["vectors"] = vectors
        if op.ttl is not None:
            fields["ttl"] = op.ttl
        texts = seal.fields(fields, large=True)
        tags = tuple(_tag(op.namespace[:depth]) for depth in range(1, len(op.namespace) + 1))
        expiry = None if op.ttl is None else op.ttl * _MINUTE
        change = Change(self.storage.ids(), replace=True, set=texts, tags=tags, expiry=expiry, limit=self._limit)
        await self.storage.perform(Apply(address, change))

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        wanted = op.offset + op.limit
        found: list[StoredItem] = []
        async for entry in self._below(op.namespace_prefix):
            if op.filter and not _matches(entry.item.value, op.filter):
                continue
            found.append(entry)
            if len(found) >= wanted and not (op.query and self._embeddings):
                break
        ranked: list[tuple[float | None, StoredItem]] = [(None, entry) for entry in found]
        if op.query and self._embeddings:
            query = await self._embeddings.aembed_query(op.query)
            scores = [max((_cosine(query, each) for each in entry.vectors.values()), default=None) for entry in found]
            ranked = sorted(
                zip(scores, found, strict=True),
                key=lambda each: -math.inf if each[0] is None else each[0],
                reverse=True,
            )
        chosen = ranked[op.offset : wanted]
        if op.refresh_ttl:
            await asyncio.gather(*(self._refresh(entry) for _, entry in chosen))
        return [_search_item(entry.item, score) for score, entry in chosen]

    async def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found: set[tuple[str, ...]] = set()
        async for entry in self._below(()):
            namespace = entry.item.namespace
            if all(_is_match(condition, namespace) for condition in op.match_conditions or ()):
                found.add(namespace if op.max_depth is None else namespace[: op.max_depth])
        return sorted(found)[op.offset : op.offset + op.limit]

    async def _below(self, prefix: tuple[str, ...]) -> AsyncIterator[StoredItem]:
        """Yield the items of a namespace and of those below it."""
        async for found in self.storage.scan(self.namespace, tag=_tag(prefix) if prefix else None):
            entry = self._entry(found.address, found.stored)
            if entry is not None:
                yield entry

    async def _refresh(self, entry: StoredItem) -> None:
        """Let an item live for its whole time from now on."""
        if entry.ttl is None:
            return
        fields = {} if entry.is_dated else {"updated": entry.item.updated_at}
        texts = self._seal(entry.address).fields(fields)
        change = Change(self.storage.ids(), set=texts, expiry=entry.ttl * _MINUTE, limit=self._limit)
        # An item that was deleted or replaced meanwhile has no lifetime or another one.
        with suppress(VersionChanged, RecordReplaced):
            await self.storage.perform(Apply(entry.address, change, Guard(version=entry.version)))

    async def _embedded(self, op: PutOp) -> dict[str, list[float]]:
        """Return the vectors of the texts of a new item."""
        if self._embeddings is None or op.index is False:
            return {}
        texts: dict[str, str] = {}
        for path in self._fields if op.index is None else op.index:
            found = get_text_at_path(op.value, path if path == "$" else tokenize_path(path))
            texts.update({path if len(found) == 1 else f"{path}.{at}": text for at, text in enumerate(found)})
        if not texts:
            return {}
        return dict(zip(texts, await self._embeddings.aembed_documents([*texts.values()]), strict=True))

    def _address(self, namespace: tuple[str, ...], key: str) -> Address:
        return self.storage.address(self.namespace, (*namespace, key))

    def _seal(self, address: Address) -> Seal:
        return Seal(address, self.storage.limits, self._limit)

    def _entry(self, address: Address, stored: Stored) -> StoredItem | None:
        """Return the item of a record; ``None`` for one without a value."""
        data = self._seal(address).data(stored.fields)
        if "value" not in data:
            return None
        *namespace, key = decode_key(address.key)
        updated = data.get("updated") or datetime.fromtimestamp(stored.written_at, UTC)
        item = Item(
            value=data["value"], key=key, namespace=tuple(namespace), created_at=data["created"], updated_at=updated
        )
        return StoredItem(
            address, item, data.get("vectors", {}), data.get("ttl"), stored.version, is_dated="updated" in data
        )


def _tag(namespace: tuple[str, ...]) -> str:
    return encode_key(namespace)


def _search_item(item: Item, score: float | None) -> SearchItem:
    return SearchItem(item.namespace, item.key, item.value, item.created_at, item.updated_at, score)


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    sizes = math.hypot(*one) * math.hypot(*other)
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / sizes if sizes else 0.0


def _is_match(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = condition.path
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return len(part) == len(path) and all(wanted in ("*", name) for wanted, name in zip(path, part, strict=True))


def _matches(value: Any, wanted: Any) -> bool:
    """Compare a value with a filter: values, dicts of values, or operators such as ``{"$gt": 3}``."""
    if not isinstance(wanted, Mapping):
        if isinstance(wanted, list | tuple):
            same = isinstance(value, list | tuple) and len(value) == len(wanted)
            return same and all(map(_matches, value, wanted))
        return bool(value == wanted)
    if any(name.startswith("$") for name in wanted):
        return all(_compare(value, name, bound) for name, bound in wanted.items())
    return isinstance(value, Mapping) and all(_matches(value.get(name), each) for name, each in wanted.items())


def _compare(value: Any, operator: str, bound: Any) -> bool:
    if operator == "$eq":
        return bool(value == bound)
    if operator == "$ne":
        return bool(value != bound)
    if operator not in _ORDER:
        raise InvalidOption(f"unknown operator {quoted(operator)} in a filter; use $eq, $ne, {', '.join(_ORDER)}")
    try:
        left, right = float(value), float(bound)
    except (TypeError, ValueError):
        return False
    return _ORDER[operator](left, right)


_ORDER: Final[dict[str, Callable[[float, float], bool]]] = {
    "$gt": lambda left, right: left > right,
    "$gte": lambda left, right: left >= right,
    "$lt": lambda left, right: left < right,
    "$lte": lambda left, right: left <= right,
}
