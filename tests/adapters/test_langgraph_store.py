"""StepwellStore beside LangGraph's own store in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from stepwell.adapters.langgraph import StepwellStore
from stepwell.errors import InvalidOption
from stepwell.record import Change
from stepwell.storage import Apply
from stepwell.testing import Clock
from tests.backends import Backend

ITEMS = {
    (("users", "ann"), "food"): {"likes": "pizza", "rating": 5},
    (("users", "ann"), "music"): {"likes": "jazz", "rating": 3, "deep": {"a": 1, "b": [1, 2]}},
    (("users", "ben"), "food"): {"likes": "soup"},
    (("users", "ben", "old/1"), "ключ"): {"likes": "noodles", "rating": "4"},
    (("docs",), "readme"): {"text": "x" * 300_000},
    (("docs", "*"), "star"): {},
}


async def fill(store: BaseStore) -> None:
    for (namespace, key), value in ITEMS.items():
        await store.aput(namespace, key, value)


def plain(found: list[Any]) -> list[Any]:
    return sorted((each.namespace, each.key, each.value) for each in found)


@pytest.mark.every_backend
async def test_gets_searches_and_lists_as_the_official_store(backend: Backend) -> None:
    store, official = StepwellStore(backend.storage()), InMemoryStore()
    for each in (store, official):
        await fill(each)
        await each.aput(("users", "ann"), "food", {"likes": "pasta", "rating": 4})
        await each.adelete(("users", "ben"), "food")
        await each.adelete(("users", "nobody"), "food")
    for namespace, key in [*ITEMS, (("users",), "food"), (("docs",), "nothing")]:
        mine, theirs = await store.aget(namespace, key), await official.aget(namespace, key)
        assert (mine and mine.dict().keys()) == (theirs and theirs.dict().keys())
        assert (mine and mine.value) == (theirs and theirs.value)
    searches: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        ((), {}),
        (("users",), {}),
        (("users", "ben"), {}),
        (("user",), {}),
        (("docs", "*"), {}),
        (("users",), {"filter": {"likes": "jazz"}}),
        (("users",), {"filter": {"rating": {"$gte": 4}}}),
        (("users",), {"filter": {"deep": {"a": 1}}}),
        (("users",), {"filter": {"deep": {"b": [1, 2]}}}),
        (("users",), {"filter": {"likes": {"$ne": "jazz"}}}),
    ]
    for prefix, options in searches:
        assert plain(await store.asearch(prefix, **options)) == plain(await official.asearch(prefix, **options)), (
            options
        )
    pages = [each for at in range(0, 6, 2) for each in await store.asearch((), limit=2, offset=at)]
    assert plain(pages) == plain(await official.asearch(()))
    # The official store also lists namespaces that were only read.
    official = InMemoryStore()
    await fill(official)
    await store.aput(("users", "ben"), "food", {"likes": "soup"})
    lists: list[dict[str, Any]] = [
        {},
        {"prefix": ("users",)},
        {"suffix": ("ann",)},
        {"prefix": ("users", "*"), "max_depth": 2},
        {"limit": 2, "offset": 1},
    ]
    for options in lists:
        assert await store.alist_namespaces(**options) == await official.alist_namespaces(**options), options


async def test_times_stay_right(backend: Backend, clock: Clock) -> None:
    store = StepwellStore(backend.storage(clock=clock))
    await store.aput(("users",), "ann", {"a": 1})
    first = await store.aget(("users",), "ann")
    clock.advance(60)
    await store.aput(("users",), "ann", {"a": 2})
    second = await store.aget(("users",), "ann")
    assert first is not None
    assert second is not None
    assert second.created_at == first.created_at
    assert (second.updated_at - first.updated_at).total_seconds() == pytest.approx(60, abs=1)


async def test_items_expire_unless_they_are_read(backend: Backend, clock: Clock) -> None:
    store = StepwellStore(backend.storage(clock=clock), ttl={"default_ttl": 10})
    await store.aput(("a",), "default", {"n": 1})
    await store.aput(("a",), "forever", {"n": 2}, ttl=None)
    await store.aput(("a",), "short", {"n": 3}, ttl=1)
    clock.advance(90)
    assert [each.key for each in await store.asearch(("a",), refresh_ttl=False)] == ["default", "forever"]
    clock.advance(480)
    assert await store.aget(("a",), "default") is not None
    clock.advance(540)
    assert await store.aget(("a",), "default", refresh_ttl=False) is not None
    clock.advance(90)
    assert await store.aget(("a",), "default") is None
    assert await store.aget(("a",), "forever") is not None


async def test_reads_of_a_batch_see_the_store_before_its_writes(backend: Backend) -> None:
    store = StepwellStore(backend.storage())
    results = await store.abatch(
        [
            PutOp(("a",), "key", {"n": 1}),
            GetOp(("a",), "key"),
            SearchOp(("a",)),
            PutOp(("a",), "key", {"n": 2}),
        ]
    )
    assert results == [None, None, [], None]
    found = await store.aget(("a",), "key")
    assert found is not None
    assert found.value == {"n": 2}


async def test_searches_by_meaning_with_an_embedding_function(backend: Backend) -> None:
    async def embed(texts: list[str]) -> list[list[float]]:
        return [[text.count("cat"), text.count("dog"), 0.1] for text in texts]

    index: Any = {"dims": 3, "embed": embed, "fields": ["text", "more[*]"]}
    store, official = StepwellStore(backend.storage(), index=index), InMemoryStore(index=index)
    for each in (store, official):
        await each.aput(("a",), "cats", {"text": "cat cat cat"})
        await each.aput(("a",), "dogs", {"text": "dog dog", "more": ["dog", "bird"]})
        await each.aput(("a",), "none", {"text": "cat"}, index=False)
        found = await each.asearch(("a",), query="dog")
        assert [item.key for item in found] == ["dogs", "cats", "none"]
        assert found[0].score == pytest.approx(1, abs=0.01)
        assert found[2].score is None
        assert [item.key for item in await each.asearch(("a",), query="cat", limit=1)] == ["cats"]


async def test_bad_operations_are_refused(backend: Backend) -> None:
    store = StepwellStore(backend.storage())
    await store.aput(("a",), "key", {"n": 1})
    with pytest.raises(InvalidOption, match=r"\$like"):
        await store.asearch(("a",), filter={"n": {"$like": 1}})
    with pytest.raises(InvalidOption, match="not an operation"):
        await store.abatch(["get"])  # type: ignore[list-item]


def test_sync_calls_work_without_a_loop(tmp_path: Any) -> None:
    store = StepwellStore(f"sqlite:///{tmp_path}/memory.db")
    store.put(("a",), "key", {"n": 1})
    assert [each.value for each in store.search(("a",))] == [{"n": 1}]


async def test_concurrent_puts_of_one_item_leave_one_whole_value(backend: Backend) -> None:
    store = StepwellStore(backend.storage())
    await asyncio.gather(*(store.aput(("a",), "key", {"n": number, "m": number}) for number in range(20)))
    found = await store.aget(("a",), "key")
    assert found is not None
    assert found.value["n"] == found.value["m"]


@pytest.mark.parametrize("reads", ["get", "search"])
async def test_a_read_that_renews_the_lifetime_does_not_change_another_write(
    backend: Backend, clock: Clock, reads: str
) -> None:
    storage = backend.storage(clock=clock)
    store, other = StepwellStore(storage), StepwellStore(storage)
    renew = store._refresh
    meanwhile: Any = None

    async def late(entry: Any) -> None:
        await meanwhile
        await renew(entry)

    store._refresh = late  # type: ignore[method-assign]

    async def read() -> Any:
        return await (store.aget(("a",), "key") if reads == "get" else store.asearch(("a",)))

    await store.aput(("a",), "key", {"n": 1}, ttl=1)
    meanwhile = other.adelete(("a",), "key")
    assert await read()
    assert await other.aget(("a",), "key") is None
    assert await other.asearch(()) == await other.alist_namespaces() == []
    await store.aput(("a",), "key", {"n": 2}, ttl=1)
    meanwhile = other.aput(("a",), "key", {"n": 3})
    assert await read()
    clock.advance(600)
    found = await other.aget(("a",), "key")
    assert found is not None
    assert found.value == {"n": 3}


async def test_a_read_that_renews_the_lifetime_keeps_the_time_of_the_update(backend: Backend, clock: Clock) -> None:
    store = StepwellStore(backend.storage(clock=clock))
    await store.aput(("a",), "key", {"n": 1}, ttl=10)
    updated = []
    for _ in range(3):
        found = await store.aget(("a",), "key")
        assert found is not None
        updated.append(found.updated_at)
        clock.advance(300)
    assert len(set(updated)) == 1
    await store.aput(("a",), "key", {"n": 2}, ttl=10)
    found = await store.aget(("a",), "key")
    assert found is not None
    assert (found.updated_at - updated[0]).total_seconds() == pytest.approx(900, abs=2)


async def test_a_record_without_a_value_is_no_item(backend: Backend) -> None:
    # Earlier releases could leave one behind.
    store = StepwellStore(backend.storage())
    address = store.storage.address(store.namespace, ("a", "key"))
    await store.storage.perform(Apply(address, Change(store.storage.ids(), expiry=60.0)))
    assert await store.aget(("a",), "key") is None
    assert await store.asearch(()) == []
    await store.aput(("a",), "key", {"n": 1})
    assert [each.value for each in await store.asearch(("a",))] == [{"n": 1}]
