"""A batch: a node whose ``exec`` runs once per item."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, ClassVar

from stepwell.errors import InvalidItems, InvalidOption
from stepwell.nodes.engine.durable_batch import run_batch_durable
from stepwell.nodes.engine.execution import check_concurrency
from stepwell.nodes.engine.items import BatchSettings, run_items
from stepwell.nodes.engine.on_error import OnError, check_on_error
from stepwell.nodes.node import Node

if TYPE_CHECKING:
    from stepwell.nodes.engine.plan import Build, Stage, Strategy

__all__ = ["BatchNode", "checked_items"]


class BatchNode(Node):
    """A node whose ``prep`` returns items and whose ``exec`` gets them one by one.

    ``post`` gets the list of results, in the order of the items. Items are taken from ``prep``'s
    iterable or async iterable as they are needed, so a generator is never held in memory. Retries,
    timeout and fallback are those of :class:`Node`, for each item by itself.

    :param concurrency: how many items run at once.
    :param on_error: what happens when an item has failed for good. ``"stop"``: the others are cancelled
        and awaited, and its error is raised. ``"collect"``: all others run, then an ``ExceptionGroup`` is
        raised. ``"skip"``: all others run, and :class:`Failed` stands in its place.
    :param executor: a ``concurrent.futures.Executor`` that runs a ``def exec`` (threads, processes, a
        cluster) in chunks of items, ``concurrency`` chunks at once. The node and its items must then be
        picklable unless it is a ``ThreadPoolExecutor``. It is never shut down.
    """

    _settings: ClassVar[tuple[str, ...]] = (*Node._settings, "concurrency", "on_error", "executor")
    _shape: ClassVar[str] = "batch"

    def __init__(
        self,
        max_retries: int = 1,
        wait: float = 0,
        *,
        name: str | None = None,
        backoff: float = 1,
        jitter: float = 0,
        retry_on: type[Exception] | tuple[type[Exception], ...] = Exception,
        timeout: float | None = None,
        inline: bool = False,
        concurrency: int = 1,
        on_error: OnError = "stop",
        executor: Executor | None = None,
    ) -> None:
        super().__init__(
            max_retries,
            wait,
            name=name,
            backoff=backoff,
            jitter=jitter,
            retry_on=retry_on,
            timeout=timeout,
            inline=inline,
        )
        check_concurrency(concurrency)
        check_on_error(on_error)
        if executor is not None:
            if not isinstance(executor, Executor):
                raise InvalidOption(f"executor={executor!r}: give a concurrent.futures.Executor")
            if inline or timeout is not None:
                raise InvalidOption("an executor's work can be neither inline nor interrupted: drop inline=, timeout=")
        self.concurrency = concurrency
        self.on_error: OnError = on_error
        self.executor = executor

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        super()._strategy(build, stage)
        check_concurrency(self.concurrency)
        check_on_error(self.on_error)
        if self.concurrency > 1:
            build.want_loop(f"{stage.path} runs {self.concurrency} items at once")
        if self.executor is not None:
            build.want_loop(f"{stage.path} has an executor")
            if stage.is_async("exec"):
                build.problem(f"{stage.path} has an executor, which runs a def exec only, no async def")
        stage.extra = BatchSettings(self.concurrency, self.on_error, self.executor)
        stage.items = checked_items
        if build.durable:
            stage.durable = run_batch_durable
        return run_items


def checked_items(stage: Stage, prep_res: Any) -> Iterable[Any] | AsyncIterable[Any]:
    """What ``prep`` returned, if it is a collection of items."""
    if prep_res is None:
        return ()
    if isinstance(prep_res, str | bytes | bytearray):
        raise InvalidItems(stage.path, type(prep_res).__name__, "for one item return [value]")
    if isinstance(prep_res, Mapping):
        raise InvalidItems(stage.path, type(prep_res).__name__, "return its .items(), .keys() or .values()")
    if not isinstance(prep_res, Iterable | AsyncIterable):
        raise InvalidItems(stage.path, type(prep_res).__name__, "return a list or a generator")
    return prep_res
