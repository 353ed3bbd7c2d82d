"""A batch: a node whose ``exec`` runs once per item."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Iterable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias

from stepwell._secrets import quoted
from stepwell.errors import InvalidItems, InvalidOption
from stepwell.nodes.batch.durable import run_batch_durable
from stepwell.nodes.batch.executor import MakeExecutor
from stepwell.nodes.batch.items import BatchSettings, run_items
from stepwell.nodes.graph.base import Exec, Prep
from stepwell.nodes.graph.hooks import is_async
from stepwell.nodes.node import Node
from stepwell.nodes.walk.execution import check_concurrency
from stepwell.nodes.walk.on_error import OnError, check_on_error

if TYPE_CHECKING:
    from stepwell.codec.effects import Replay
    from stepwell.nodes.graph.base import PostResult
    from stepwell.nodes.graph.plan import Build, Stage, Strategy

#: The result of ``prep`` of a batch.
Items: TypeAlias = Iterable[Prep] | AsyncIterable[Prep] | None

__all__ = ["BatchNode", "checked_items"]


class BatchNode(Node[Any, Any], Generic[Prep, Exec]):
    """A node whose ``prep`` returns items and whose ``exec`` gets them one by one.

    ``post`` gets the list of results, in the order of the items. ``prep`` returns an iterable or an async
    iterable. Its items are taken when they are needed, so the items of a generator are not all in memory.
    Retries, timeout and fallback of :class:`Node` apply to each item.

    ``BatchNode[Item, Result]`` names the types of one item and of one result for type checkers; with
    ``on_error="skip"``, use ``BatchNode[Item, Result | Failed]``.

    Example::

        class Lengths(BatchNode):
            def prep(self, shared):
                return shared["words"]

            async def exec(self, word):
                return len(word)

            def post(self, shared, words, lengths):
                shared["lengths"] = lengths

        final = await linear(Lengths(concurrency=10)).run({"words": ["one", "three"]})
        assert final["lengths"] == [3, 5]

    :param concurrency: how many items run at once.
    :param on_error: what to do after the last attempt of an item has failed. ``"stop"``: cancel and await
        the other items, and raise its error. ``"collect"``: run all other items, then raise an
        ``ExceptionGroup``. ``"skip"``: run all other items, and put :class:`Failed` in the place of its result.
    :param executor: a ``concurrent.futures.Executor`` that runs a ``def exec`` (threads, processes, a
        cluster) in chunks of items, ``concurrency`` chunks at once. The node and its items must be picklable
        unless it is a ``ThreadPoolExecutor``. The node does not shut it down. Or a function that returns one: it is
        called when the batch begins, and again if the executor breaks, and the executor is shut down at the end.
    """

    _settings: ClassVar[tuple[str, ...]] = (*Node._settings, "concurrency", "on_error", "executor")
    _shape: ClassVar[str] = "batch"

    def __init__(
        self,
        max_retries: int | None = None,
        wait: float | None = None,
        *,
        name: str | None = None,
        backoff: float | None = None,
        jitter: float | None = None,
        retry_on: type[Exception] | tuple[type[Exception], ...] | None = None,
        timeout: float | None = None,
        inline: bool | None = None,
        replay: Replay | None = None,
        concurrency: int = 1,
        on_error: OnError = "stop",
        executor: Executor | MakeExecutor | None = None,
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
            replay=replay,
        )
        check_concurrency(concurrency)
        check_on_error(on_error)
        if executor is not None:
            if not (isinstance(executor, Executor) or callable(executor)):
                raise InvalidOption(f"executor={quoted(executor)}: give a concurrent.futures.Executor, or a function")
            if self.inline or self.timeout is not None:
                raise InvalidOption("an executor supports neither inline= nor timeout=: remove them, or the executor")
        self.concurrency: int = concurrency
        self.on_error: OnError = on_error
        self.executor: Executor | MakeExecutor | None = executor

    if TYPE_CHECKING:

        def prep(self, shared: Any, /) -> Items[Prep] | Awaitable[Items[Prep]]: ...

        def exec(self, item: Prep, /) -> Exec | Awaitable[Exec]: ...

        def exec_fallback(self, item: Prep, error: Exception, /) -> Exec | Awaitable[Exec]: ...

        def post(self, shared: Any, prep_res: Any, exec_res: list[Exec], /) -> PostResult: ...

    def _strategy(self, build: Build, stage: Stage) -> Strategy | None:
        super()._strategy(build, stage)
        check_concurrency(self.concurrency)
        check_on_error(self.on_error)
        if self.concurrency > 1:
            build.want_loop_for.append(f"{stage.path} runs {self.concurrency} items at once")
        if self.executor is not None and self.replay == "never":
            build.problems.append(
                f'{stage.path} has an executor and replay="never", which stores each item before it runs: '
                "drop one of the two"
            )
        if self.executor is not None:
            build.want_loop_for.append(f"{stage.path} has an executor")
            if is_async(stage.exec):
                build.problems.append(f"{stage.path} has an executor, which runs a def exec only, not an async def")
        stage.extra = BatchSettings(concurrency=self.concurrency, on_error=self.on_error, executor=self.executor)
        stage.items = checked_items
        if build.durable:
            stage.durable = run_batch_durable
        return run_items


def checked_items(stage: Stage, prep_res: Any) -> Iterable[Any] | AsyncIterable[Any]:
    """Return the items that ``prep`` returned; raise ``InvalidItems`` if it returned something else."""
    if prep_res is None:
        return ()
    if isinstance(prep_res, str | bytes | bytearray):
        raise InvalidItems(stage.path, type(prep_res).__name__, "for one item return [value]")
    if isinstance(prep_res, Mapping):
        raise InvalidItems(stage.path, type(prep_res).__name__, "return its .items(), .keys() or .values()")
    if not isinstance(prep_res, Iterable | AsyncIterable):
        raise InvalidItems(stage.path, type(prep_res).__name__, "return a list or a generator")
    return prep_res
