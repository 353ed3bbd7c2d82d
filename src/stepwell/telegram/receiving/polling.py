"""Polling: run a bot until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import Any

from stepwell._backoff import backoff
from stepwell._secrets import quoted
from stepwell.dispatch.health import POLL_AGE, HealthServer
from stepwell.errors import BotUnavailable, InsideLoop, InvalidOption
from stepwell.fsm import FSM, Router
from stepwell.fsm.update import ON_REQUEST
from stepwell.options import check_whole
from stepwell.storage.transport.starting import when_available
from stepwell.telegram.calls.client import TELEGRAM, BotClient
from stepwell.telegram.calls.token import find_token
from stepwell.telegram.receiving.beside import beside, health_of, prepared
from stepwell.telegram.receiving.outcome import sender_for_timers
from stepwell.telegram.receiving.poller import PAUSES, POLL, Poller
from stepwell.telegram.sending.limits import SendLimits
from stepwell.telegram.sending.sender import OnSendError, Sender

__all__ = ["call_at_start", "collect_less_often", "run_polling", "run_polling_sync"]

logger: logging.Logger = logging.getLogger("stepwell.telegram")

#: The thresholds of the garbage collector in a process that only runs a bot.
GARBAGE = (10_000, 20, 20)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def run_polling(
    router: Router,
    token: str | None = None,
    *,
    api: str = TELEGRAM,
    client: BotClient | None = None,
    limits: SendLimits | None = SendLimits(),  # noqa: B008 - frozen
    on_send_error: OnSendError | None = None,
    allowed_updates: Sequence[str] | None = None,
    in_flight: int = 10_000,
    on_start: Callable[[dict[str, Any]], Any] | None = None,
    wait_for_storage: bool = True,
    run_workers: bool = True,
    health: int | None = None,
) -> None:
    """Run a bot by long polling until SIGTERM or Ctrl-C::

        await run_polling(router, "123:abc")

    Without ``token`` it is read from ``BOT_TOKEN``, the file that ``BOT_TOKEN_FILE`` names, or ``.env``.

    Updates of one chat are handled and answered in order, different chats concurrently. A fetched update is kept in
    the storage until it is handled and answered, so it survives a kill. ``in_flight``: stop fetching while this
    many are unfinished; one chat counts for at most a hundredth of it, so that a flood in one chat stops no other. If
    the waiting updates of one chat take a quarter of the inbox, its new updates are dropped with a warning.
    ``on_send_error(call, error)``: called for a call that Telegram refused permanently.
    ``allowed_updates``: the kinds of update to request; by default ``router.allowed_updates``.
    ``on_start(me)``: called with the bot's user before the first request for updates.
    ``wait_for_storage``: if the storage or Telegram is away at the start, log it and wait; with ``False``, raise its
    error.
    ``run_workers``: run the workers of ``router.run_workers``; with ``False`` their runs are left to other processes.
    ``health``: a port on which to serve ``/health/live`` and ``/health/ready``.

    A signal lets running handlers finish; a second one cancels them, and their updates are handled after the next
    start. Raises ``BotApiError`` if the token is not valid, and ``UsageError`` if another process polls or a webhook is
    set.
    """
    if not isinstance(router, Router) or router.fsm is None:
        raise InvalidOption("run_polling() needs a router with a machine: Router(fsm)")
    check_whole(in_flight, "in_flight must be at least 1, got {}", least=1)
    allowed = router.allowed_updates if allowed_updates is None else _checked_kinds(router, allowed_updates)
    own = client is None
    client = client or BotClient(token or find_token(), api=api, limits=limits)
    try:
        poller = Poller(router, client, Sender(client, on_send_error=on_send_error), allowed, in_flight)
        async with contextlib.AsyncExitStack() as stack:
            if health is not None:
                await stack.enter_async_context(_health(health, router.fsm, poller))
            me = await call_at_start(client, "getMe", wait=wait_for_storage)
            # The first request for updates lasts until there is one.
            poller.polled_at = monotonic()
            stack.enter_context(sender_for_timers(router, poller.sender))
            entered = partial(_enter, stack, router.fsm, poller)
            await stack.enter_async_context(prepared(router, client, wait=wait_for_storage))
            await when_available(entered, router.fsm.storage, wait=wait_for_storage)
            await stack.enter_async_context(beside(router, poller.sender, runs=run_workers, wait=wait_for_storage))
            with _signals(poller):
                if on_start is not None:
                    on_start(me)
                await poller.run()
    finally:
        if own:
            await client.close()


def _health(port: int, fsm: FSM, poller: Poller) -> HealthServer:
    found = health_of(fsm, lambda: poller.stopping)
    # A request without updates takes this time.
    found.check("request for updates", lambda: poller.polled_at, POLL + POLL_AGE)
    return HealthServer(port, found)


async def call_at_start(client: BotClient, method: str, *, wait: bool, **params: Any) -> Any:
    """Make a call. If ``wait``, make it again as long as Telegram is away."""
    failures = 0
    while True:
        try:
            return await client.call(method, **params)
        except BotUnavailable as error:
            if not wait:
                raise
            logger.warning("the bot starts when Telegram is available: %s", error)
        failures += 1
        await asyncio.sleep(backoff(failures, *PAUSES))


async def _enter(stack: contextlib.AsyncExitStack, fsm: FSM, poller: Poller) -> None:
    """Enter a machine whose timers the poller holds. If it fails, it can be repeated."""
    async with contextlib.AsyncExitStack() as entered:
        entered.enter_context(poller.holding_timers())
        await entered.enter_async_context(fsm)
        stack.push_async_exit(entered.pop_all())


def run_polling_sync(router: Router, token: str | None = None, **options: Any) -> None:
    """``run_polling`` for a program without an event loop: the last line of a ``bot.py``.

    Raises ``InsideLoop`` if an event loop is running.

    Example::

        if __name__ == "__main__":
            run_polling_sync(router)
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise InsideLoop
    # Not in the except block: its error would be shown as the context of every error of a handler.
    collect_less_often()
    asyncio.run(run_polling(router, token, **options))


def _checked_kinds(router: Router, allowed: Sequence[str]) -> list[str]:
    """Return the kinds to request. Warns of a kind that a handler waits for and that Telegram would not send."""
    listed = list(allowed) if isinstance(allowed, Iterable) and not isinstance(allowed, str) else []
    if not all(isinstance(each, str) for each in listed) or not (listed or isinstance(allowed, list | tuple)):
        raise InvalidOption(
            f"allowed_updates takes a list of kinds of update, such as ['message'], got {quoted(allowed)}"
        )
    missing = ON_REQUEST.intersection(router.allowed_updates or ()).difference(listed)
    if missing:
        logger.warning("a handler waits for %s, which allowed_updates does not name", ", ".join(sorted(missing)))
    return listed


def collect_less_often() -> None:
    """Let the garbage collector run less often, unless the program has set it up.

    Modules and handlers live as long as the process, and an update leaves few cycles, so most collections free nothing.
    """
    if gc.isenabled() and gc.get_threshold()[0] < GARBAGE[0]:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GARBAGE)


#: The pollers that signals stop.
_pollers: list[Poller] = []


def _stop_pollers() -> None:
    for poller in _pollers:
        poller.stop()


@contextlib.contextmanager
def _signals(poller: Poller) -> Iterator[None]:
    """Stop the poller and all others of this process on SIGTERM and Ctrl-C."""
    loop = asyncio.get_running_loop()
    # Outside the main thread, or on Windows, Ctrl-C cancels the task instead.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        for number in _SIGNALS:
            loop.add_signal_handler(number, _stop_pollers)
        _pollers.append(poller)
    try:
        yield
    finally:
        if poller in _pollers:
            _pollers.remove(poller)
            for number in () if _pollers else _SIGNALS:
                loop.remove_signal_handler(number)
