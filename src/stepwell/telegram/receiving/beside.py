"""What runs beside the handlers of a bot: functions at its start and stop, and workers of node flows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

from stepwell import _portal
from stepwell._secrets import quoted
from stepwell.dispatch import dispatcher_of
from stepwell.dispatch.health import POLL_AGE, WRITE_AGE, Health
from stepwell.errors import StepwellError, StoredDataError
from stepwell.fsm import FSM, BotMethods, Router
from stepwell.fsm.beside import WorkerOptions
from stepwell.fsm.flows.hooks import takes
from stepwell.nodes import NodeFlow, worker
from stepwell.nodes.engine import is_queued, observe_submits
from stepwell.record import PROCESSES
from stepwell.storage import Storage
from stepwell.storage.state_storage import is_configured
from stepwell.storage.transport.starting import when_available
from stepwell.telegram.sending.sender import Sender

__all__ = ["beside", "flows_beside", "health_of", "prepared"]

logger: logging.Logger = logging.getLogger("stepwell.telegram")

#: Seconds after which a run that no worker has begun is reported, if no process has a worker for it.
UNTAKEN = 15.0


@contextlib.asynccontextmanager
async def prepared(router: Router, client: BotMethods, *, wait: bool) -> AsyncIterator[None]:
    """Call the functions for the start of a bot, and those for its stop at the end. The storage is open meanwhile."""
    fsm = router.fsm
    assert fsm is not None
    lifecycles = list(router.lifecycles)
    startup = [function for each in lifecycles for function in each.startup]
    shutdown = [function for each in lifecycles for function in each.shutdown]
    async with contextlib.AsyncExitStack() as stack:
        if startup or shutdown:
            if not fsm.storage.is_open:
                stack.push_async_callback(fsm._close)
            await when_available(fsm.storage.open, fsm.storage, wait=wait)
        for function in startup:
            await _call(function, client)
        for function in shutdown:
            stack.push_async_callback(_call_at_stop, function, client)
        yield


@contextlib.asynccontextmanager
async def beside(router: Router, sender: Sender, *, runs: bool, wait: bool) -> AsyncIterator[None]:
    """Run the workers of a router, unless ``runs`` is false, its turns and its other blocks. They end in reverse."""
    async with contextlib.AsyncExitStack() as stack:
        if runs:
            await stack.enter_async_context(_watching_submits())
        for each in (each for lifecycle in router.lifecycles for each in lifecycle.beside):
            if not isinstance(each, WorkerOptions):
                await stack.enter_async_context(each(sender.client))
            elif runs:
                made = _worker_of(router, each)
                if not made.storage.is_open:
                    stack.push_async_callback(made.storage.close)
                await when_available(partial(stack.enter_async_context, made), made.storage, wait=wait)
        await stack.enter_async_context(router.serving(sender.send, sender.client))
        yield


def flows_beside(router: Router) -> Iterator[NodeFlow]:
    """Yield the flows that the workers of a router run."""
    for lifecycle in router.lifecycles:
        for each in lifecycle.beside:
            if isinstance(each, WorkerOptions):
                yield from each.flows


def _worker_of(router: Router, given: WorkerOptions) -> worker:
    assert router.fsm is not None
    options = dict(given.options)
    if options.get("storage") is None and not is_configured() and any(flow.storage is None for flow in given.flows):
        # A flow without a storage gets one with each call, which is that of the conversations.
        options["storage"] = router.fsm.storage
    return worker(given.flows, **options)


async def _call(function: Callable[..., Any], client: BotMethods) -> None:
    await _portal.call_function(function, *((client,) if takes(function, 1) else ()))


async def _call_at_stop(function: Callable[..., Any], client: BotMethods) -> None:
    try:
        await _call(function, client)
    except Exception:
        logger.exception("%s failed at the stop of the bot", getattr(function, "__qualname__", function))


@contextlib.asynccontextmanager
async def _watching_submits() -> AsyncIterator[None]:
    """Warn of submitted runs that no worker takes, once for each flow."""
    loop, known, checks = asyncio.get_running_loop(), set[str](), set[asyncio.Task[None]]()

    def submitted(storage: Storage, flow: str, flow_id: str) -> None:
        if flow in known or asyncio._get_running_loop() is not loop:
            return
        known.add(flow)
        check = asyncio.create_task(_check_taken(storage, flow, flow_id), name="stepwell-untaken")
        checks.add(check)
        check.add_done_callback(checks.discard)

    stop = observe_submits(submitted)
    try:
        yield
    finally:
        stop()
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)


async def _check_taken(storage: Storage, flow: str, flow_id: str) -> None:
    await asyncio.sleep(UNTAKEN)
    try:
        if not await is_queued(storage, flow_id) or flow in await _flows_of_workers(storage):
            return
    except StepwellError as error:
        logger.debug("the workers of %s are not known: %s", flow, error)
        return
    logger.warning(
        "run %s of %s was submitted %g s ago, and no process has a worker that runs it; add router.run_workers(flow), "
        "or start 'async with worker([flow]):' in another process",
        quoted(flow_id), quoted(flow), UNTAKEN,
    )  # fmt: skip


async def _flows_of_workers(storage: Storage) -> set[str]:
    found: set[str] = set()
    async for entry in storage.scan(PROCESSES):
        # It may be of another release.
        with contextlib.suppress(StoredDataError, LookupError, TypeError):
            if entry.place.flow == "worker":
                found.update(entry.state.data["names"])
    return found


def health_of(fsm: FSM, stopping: Callable[[], bool]) -> Health:
    """Return the health of a bot's process: when the timers of its storage were read, and its presence was written."""
    found = Health(stopping)
    found.check("poll", lambda: dispatcher_of(fsm.storage).polled_at, POLL_AGE, needed=False)
    found.check("write", lambda: None if fsm._presence is None else fsm._presence.wrote_at, WRITE_AGE, needed=False)
    return found
