"""The simplest batches: items one after the other on the event loop, without attempts, limits and events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable, Iterator
from itertools import chain, islice
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from stepwell._secrets import quoted
from stepwell.nodes.walk.execution import SLICE
from stepwell.nodes.walk.on_error import add_note, inside_cancelled

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Stage
    from stepwell.nodes.walk.execution import Cursor

__all__ = ["close_source", "each_item", "run_in_loop"]

#: The most items between two checks whether to let the event loop run other tasks.
_LONGEST = 1024


async def run_in_loop(stage: Stage, cursor: Cursor, node: Any, source: Iterable[Any]) -> list[Any]:
    """Return the results of a batch, at the cost of a ``for`` loop."""
    results: list[Any] = []
    add = results.append
    work = stage.exec
    index = -1
    run = cursor.run
    try:
        for stretch in (enumerate(source),) if run.without_loop else _stretches(source):
            for index, item in stretch:
                cursor.item = index
                result = work(node, item)
                if type(result) is CoroutineType:
                    result = await result
                add(result)
            if perf_counter() > run.yield_at:
                await run.yield_now()
    except Exception as error:
        # With as many results as items, the iterable has failed, not an item.
        if len(results) == index:
            add_note(error, f"item {index} of batch {quoted(stage.path)}")
        raise
    except asyncio.CancelledError as cancelled:
        if run.cancelling() or run.without_loop:
            raise
        raise inside_cancelled(f"item {index} of batch {quoted(stage.path)}", cancelled) from cancelled
    finally:
        await close_source(source)
    return results


def _stretches(source: Iterable[Any]) -> Iterator[Iterable[tuple[int, Any]]]:
    """Yield the items with their indexes, in stretches that take about a fourth of a slice of time.

    Each is used up before the next one. A check for each item would take 5 % of its time.
    """
    begin, size, pairs = 0, 1, enumerate(source)
    began = perf_counter()
    while True:
        if isinstance(source, list | tuple | range):
            if not (part := source[begin : begin + size]):
                return
            yield enumerate(part, begin)
            begin += size
        else:
            if (first := next(pairs, None)) is None:
                return
            yield chain((first,), islice(pairs, size - 1))
        now = perf_counter()
        size = min(size * 2, _LONGEST) if now - began < SLICE / 4 else max(1, size // 2)
        began = now


async def each_item(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    """Yield the items, and close them at the end."""
    try:
        if isinstance(items, Iterable):
            for item in items:
                yield item
        else:
            async for item in items:
                yield item
    finally:
        await close_source(items)


async def close_source(items: Iterable[Any] | AsyncIterable[Any]) -> None:
    """Close the items if they are a generator, so that its ``finally`` runs now."""
    if isinstance(items, Generator):
        items.close()
    elif isinstance(items, AsyncGenerator):
        await items.aclose()
