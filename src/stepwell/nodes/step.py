"""``step()``: the step that is running, its effects and child runs; ``durable_step()`` for a layer above."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from stepwell._secrets import quoted
from stepwell.codec.effects import Replay, check_replay
from stepwell.errors import Parked, UsageError
from stepwell.nodes.control.options import checked_params
from stepwell.nodes.effects import inside_effect
from stepwell.nodes.handle import RunHandle
from stepwell.nodes.queue import children, submitting
from stepwell.nodes.queue.submission import Submission
from stepwell.nodes.run.branch import Park
from stepwell.nodes.walk.execution import CaughtError, Cursor, current, enter, leave
from stepwell.options import check_function, check_text

if TYPE_CHECKING:
    from stepwell.nodes.flow import NodeFlow
    from stepwell.storage import Storage

__all__ = ["DurableStep", "Step", "durable_step", "effect", "step"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Step:
    """The step that is running.

    Example::

        class Pay(Node):
            async def exec(self, prep_res):
                current: Step = step()
                print("idempotency key:", current.flow_id, current.node, current.visit)
    """

    #: The id of the run.
    flow_id: str
    #: The path of the node: its name, after the names of the nested flows around it.
    node: str
    #: The visit number of this node in the run, from 1.
    visit: int
    #: The item's index in its batch, from 0; ``None`` outside a batch.
    item: int | None
    #: The attempt number, from 1.
    attempt: int
    #: The last error that an edge ``"error"`` has caught: the handler that the edge leads to reads it here.
    error: CaughtError | None = None

    @property
    def id(self) -> str:
        """``flow_id/node/visit/item``: equal for every attempt, so it can serve as an idempotency key."""
        place = f"{self.flow_id}/{self.node}/{self.visit}"
        return place if self.item is None else f"{place}/{self.item}"

    def write(self, value: Any) -> None:
        """Add a value to the stream of the run, such as a token of a model or a line of progress.

        :meth:`NodeFlow.stream` yields it in any process within about a tenth of a second. Values are gathered into few
        writes, and are stored before the node completes. It works in threads, but not in other processes. The run
        needs a storage.

        Raises ``UsageError`` outside its step, and in a run without a storage.
        """
        cursor = current()
        if cursor is None or cursor.run.flow_id != self.flow_id:
            raise UsageError("write() was called outside its step; call step().write(...) in prep, exec or post")
        if cursor.branch is None:
            raise UsageError(
                f"node {quoted(self.node)} cannot write to a stream here: its run needs a storage, run(shared, "
                "storage=...), and exec must not run in a process pool; write in prep or post there"
            )
        cursor.branch.journal.stream().write(self.id, self.attempt, value)

    def reply(self, value: Any) -> None:
        """Reply to ``flow.update()``, in ``post`` of the :class:`Wait` that has taken the update.

        The reply is stored with the commit of the node. Without this call it is ``None``. If the wait was answered in
        another way, nobody waits for the reply, and nothing happens::

            class Add(Wait):
                def post(self, shared, question, line):
                    shared["lines"].append(line)
                    step().reply({"lines": len(shared["lines"])})

        Raises ``UsageError`` outside its step, and ``Unstorable`` if the value cannot be stored.
        """
        cursor = current()
        if cursor is None or cursor.run.flow_id != self.flow_id or cursor.branch is None:
            raise UsageError("reply() was called outside its step; call step().reply(...) in post of a Wait")
        cursor.branch.journal.reply(self.node, value)

    async def child(
        self,
        flow: NodeFlow,
        shared: dict[str, Any] | None = None,
        *,
        id: str,  # noqa: A002
        partition: str | int | None = None,
        priority: int = 0,
        params: Mapping[str, Any] | None = None,
    ) -> RunHandle:
        """Start a child run with one write, and return its handle. A worker runs it::

            async def exec(self, order):
                invoice = await step().child(invoices, {"order": order}, id="invoice")
                return await invoice.result()

        ``result()`` parks this run until the child has ended. Then the node runs again from its start, and the same
        call returns the same child. The child is in the storage of this run, and is kept for at least a day after
        its end. If this run is cancelled, its children are too.

        :param id: distinguishes the children of this step. The id of the child is made from it and from :attr:`id`.
        :param partition: as for :meth:`NodeFlow.submit`. It must not be that of this run, for which it would wait.
        """
        cursor = current()
        branch = children.branch_of(cursor, self.flow_id)
        check_text(id, "id={}: give a non-empty string that distinguishes the children of this step")
        journal = branch.journal
        parent = children.parent_of(journal)
        children.check_partition(flow, partition, parent)
        place = children.place_of(branch, self.node, self.visit, self.item)
        storage = journal.slot.storage
        how = Submission(
            partition=partition,
            priority=priority,
            params=checked_params(params),
            keep=submitting.kept_child(flow.keep),
            # The node may compute other data when it runs again.
            on_exists="return",
            parent=parent,
        )
        child = children.id_of_child(place, id)
        submitted = await submitting.submit(flow, shared or {}, how, storage=storage, flow_id=child)
        return RunHandle(child, flow, storage, created=submitted.created)


def step() -> Step:
    """Return the current step of the calling node, in threads and executors too.

    Raises ``UsageError`` outside a run.

    Example::

        class Pay(Node):
            def exec(self, amount):
                return {"amount": amount, "idempotency_key": step().id}
    """
    cursor = current()
    if cursor is None:
        raise UsageError("step() was called outside a run; call it in prep, exec or post of a node")
    return Step(**cursor.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableStep:
    """A step of a run that has a storage."""

    #: The same for every attempt: see ``Step.id``.
    id: str
    #: From 1.
    attempt: int
    #: The execution of the run, an object that can be a key of a weak dict.
    execution: object
    #: Differs between two runs with the same id.
    mark: str
    #: The storage of the run.
    storage: Storage
    _cursor: Cursor

    async def call_once(self, name: str, number: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a call that must not run twice as an effect of the step, or return what it has returned before.

        ``number`` distinguishes the effects of the step, instead of the order of its calls.
        """
        cursor = self._cursor
        assert cursor.branch is not None
        effects, place = cursor.branch.journal.effects, cursor.effect_place(number)
        try:
            return await effects.call(place, name, ((), {}), "never", work)
        except (Park, Parked):
            effects.forget(place)
            raise

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Number the effects within the block by themselves: it is left out when its result is stored."""
        token = enter(replace(self._cursor, effects=[0], scope=f"{name}-"))
        try:
            yield
        finally:
            leave(token)


def durable_step() -> DurableStep | None:
    """Return the step that is running; ``None`` outside a run with a storage."""
    cursor = current()
    if cursor is None or cursor.branch is None:
        return None
    here, journal = Step(**cursor.values()), cursor.branch.journal
    return DurableStep(
        id=here.id,
        attempt=here.attempt,
        execution=cursor.run,
        mark=journal.mark,
        storage=journal.slot.storage,
        _cursor=cursor,
    )


@overload
def effect(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def effect(*, replay: Replay = "never") -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def effect(function: Callable[..., Any] | None = None, /, *, replay: Replay = "never") -> Any:
    """Store that a function is called before it runs in a node of a durable run, and what it returned after.

    If the node runs again, because its process died or another attempt follows, a call that has returned is not made
    again: it returns the stored result. If the process died while the function ran, nobody knows whether it has acted.
    With ``replay="never"`` it is not called again: the run takes the edge ``"unknown"`` of the node, or is ``stuck``
    until somebody says what happened with ``flow.complete()``, or calls ``flow.retry()``. With ``replay="safe"`` it is
    called again.

    A call is recognised by its position: the node, the visit, the item of a batch, and its number in the step. Its
    arguments and its result must be values that a run can store. A ``def`` is called in a ``def exec``, which runs in a
    thread; an ``async def`` anywhere. Outside a durable run the function just runs. An effect that raises has ended:
    the next attempt of its node, if there is one, calls it again.

    Example::

        @effect
        async def charge(order: str, amount: int) -> str:
            return f"receipt of {order}: {amount}"

        class Pay(Node):
            async def exec(self, order):
                return await charge(order, 100)
    """
    check_replay(replay)
    if function is None:
        return lambda function: _wrapped(function, replay)
    return _wrapped(function, replay)


def _wrapped(function: Callable[..., Any], replay: Replay) -> Callable[..., Any]:
    check_function(function, "@effect takes a function, not {}: write @effect or @effect(replay=...) above it")
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if iscoroutinefunction(function):

        @wraps(function)
        async def call(*args: Any, **options: Any) -> Any:
            cursor = _step()
            if cursor is None or cursor.branch is None:
                return await function(*args, **options)
            effects, work = cursor.branch.journal.effects, partial(function, *args, **options)
            return await effects.call(cursor.effect_place(), name, (args, options), replay, work)

        return call

    @wraps(function)
    def call_in_thread(*args: Any, **options: Any) -> Any:
        cursor = _step()
        if cursor is None or cursor.branch is None:
            return function(*args, **options)
        if asyncio._get_running_loop() is not None:
            raise UsageError(
                f"the effect {quoted(name)} is a def, and was called in the event loop, where it cannot wait for the "
                "storage: declare it async def and await it, or call it in a def exec, which runs in a thread"
            )
        effects, work = cursor.branch.journal.effects, partial(function, *args, **options)
        return effects.call_in_thread(cursor.effect_place(), name, (args, options), replay, work)

    return call_in_thread


def _step() -> Cursor | None:
    """Return the position of the step whose effect is called; ``None`` outside a run, and within another effect."""
    return None if inside_effect() else current()
