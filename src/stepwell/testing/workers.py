"""The workers of a bot in a test: routers that get updates in turn and can be restarted."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from stepwell import _portal
from stepwell._secrets import quoted
from stepwell.errors import InvalidOption, UsageError
from stepwell.fsm import FSM, BotMethods, Router
from stepwell.fsm.base import Send
from stepwell.fsm.conversation.conversation import Conversation
from stepwell.fsm.flows.hooks import takes
from stepwell.options import check_instance, check_whole
from stepwell.storage import MemoryStorage, Storage, open_storage
from stepwell.testing.clock import Clock
from stepwell.testing.run_workers import run_due
from stepwell.testing.turn_workers import Killed, TurnWorkers
from stepwell.turns import Turns

__all__ = ["MakeRouter", "Workers"]

#: Makes a bot for a storage.
MakeRouter = Callable[[Any], Router | Turns]


class Workers:
    """The routers, which get updates in turn, and their storages."""

    def __init__(
        self, bot: Router | Turns | MakeRouter, storage: Storage | str | None, count: int, clock: Clock | None
    ) -> None:
        check_whole(count, "workers must be 1 or more, got {}", least=1)
        if isinstance(bot, Turns):
            if storage is None and not isinstance(bot.storage.clock, Clock):
                # A turn needs time that the test moves.
                bot.move_to(MemoryStorage(clock=clock or Clock()))
                clock = None
            bot = bot.as_router()
        if isinstance(bot, Router):
            if storage is not None or clock is not None or count > 1:
                raise InvalidOption(
                    "a router already has its storage; to choose storage, clock or workers here, "
                    "pass a function that makes the router: Chat(make_router, ...)"
                )
            storage = _fsm_of(bot).storage
        self._given = storage
        if storage is None or storage == "memory://":
            # One memory for all workers: memory of their own would be empty after a restart.
            clock = clock or Clock()
            storage = MemoryStorage(clock=clock)
        if isinstance(storage, Storage):
            if clock is not None and storage.clock is not clock:
                raise InvalidOption("this storage has its own clock; pass the clock to the storage: clock=...")
            clock = storage.clock if isinstance(storage.clock, Clock) else None
        self.clock: Clock | None = clock
        self._storage = storage
        self._show: Send | None = None
        self._show_turn: Send | None = None
        self._turns = TurnWorkers()
        self._client: BotMethods | None = None
        #: Whether the functions of ``on_startup`` were called.
        self._started = False
        #: Kill the bot at the next update or timer: before its commit, or after it.
        self._kill: str | None = None
        self._count = count
        self._turn = 0
        self._make = None if isinstance(bot, Router) else _checked(bot)
        self._routers = [bot] if isinstance(bot, Router) else self._made(bot)

    @property
    def fsm(self) -> FSM:
        return _fsm_of(self._routers[0])

    def now(self) -> float:
        """Return the time of the storage's clock."""
        return time.time() if self.clock is None else self.clock()

    def next(self) -> Router:
        self._turn += 1
        return self._routers[self._turn % len(self._routers)]

    async def handle(self, update: dict[str, Any]) -> list[dict[str, Any]]:
        """Handle an update with the next worker, and return the calls to make; none if the bot is killed."""
        await self._restart_if_dead()
        await self._start()
        router = self.next()
        if self._kill is None:
            return await router.handle(update)
        after_commit = self._kill == "after commit"
        try:
            await _handle_until_killed(router, update, after_commit=after_commit)
        finally:
            self._kill = None
        await self.restart(None)
        return []

    @property
    def is_killed(self) -> bool:
        """Whether the next update kills the bot."""
        return self._kill is not None

    def kill_next(self, when: str, *, at: str | None = None) -> None:
        """Kill the bot at the next update or timer, or ``at`` a point of a turn."""
        if self._make is None:
            raise UsageError("kill_next() needs a function that makes the router: Chat(make_router), not Chat(router)")
        if at is not None:
            self._turns.kill_at(at, self._routers)
        else:
            self._kill = when

    def advance(self, seconds: float) -> None:
        """Advance the clocks of the storages. A memory that uses the system clock gets a clock of its own."""
        clocks = [] if self.clock is None else [self.clock]
        for router in self._routers:
            storage = _fsm_of(router).storage
            if isinstance(storage, MemoryStorage) and storage.clock is None:
                storage.use_clock(Clock(time.time()))
            if isinstance(storage.clock, Clock) and storage.clock not in clocks:
                clocks.append(storage.clock)
        if not clocks:
            advice = (
                "pass the clock beside the URL: Chat(make_router, storage=URL, clock=stepwell.testing.Clock())"
                if isinstance(self._given, str)
                else "create it with clock=stepwell.testing.Clock()"
            )
            raise UsageError(
                f"this storage uses the system clock; {advice}. A test with the fixtures stepwell_chat or "
                "stepwell_storage needs the fixture stepwell_clock too"
            )
        self.clock = clocks[0]
        for clock in clocks:
            clock.advance(seconds)

    async def tick(self, until: asyncio.Event | None = None) -> None:
        """Fire the due timers of every worker, and run the turns that are due until they end or wait for people."""
        await self._restart_if_dead()
        await self._start()
        await self._fire_timers()
        if self._kill is None:
            # Any of the workers may run them.
            await run_due(self._routers[0])
        assert self._show_turn is not None
        if await self._turns.serve(self._routers, self._show_turn, self._client):
            await self._turns.settle(until)
            await self._restart_if_dead()

    @property
    def longest_window(self) -> float:
        """The seconds after which the messages of a turn are complete."""
        return self._turns.longest_window(self._routers)

    async def _start(self) -> None:
        """Call the functions of ``on_startup``, once in each process."""
        if self._started:
            return
        self._started = True
        for router in self._routers:
            for lifecycle in router.lifecycles:
                for function in lifecycle.startup:
                    await _portal.call_function(function, *((self._client,) if takes(function, 1) else ()))

    async def _restart_if_dead(self) -> None:
        if self._turns.dead:
            await self.restart(None)

    async def _fire_timers(self) -> None:
        if self._kill != "before commit":
            try:
                for router in self._routers:
                    await _fsm_of(router).tick()
            except Killed:
                pass
            else:
                return
        self._kill = None
        await self.restart(None)

    async def _show_or_die(self, call: dict[str, Any]) -> None:
        if self._kill == "after commit":
            raise Killed
        assert self._show is not None
        await self._show(call)

    def show_timers(self, show: Send, show_turn: Send, client: BotMethods) -> None:
        """Call ``show`` with each call of a timer, before the bot's own ``send``, if any; ``client`` is ``ctx.bot``.

        ``show_turn`` is called with each call of a turn.
        """
        self._show, self._show_turn, self._client = show, show_turn, client
        for router in self._routers:
            self._prepare(router)

    def _prepare(self, router: Router) -> None:
        fsm = _fsm_of(router)
        fsm.send, fsm.client = _shown(self._show_or_die, fsm.send), self._client
        fsm.expect_ticks()

    async def restart(self, make: MakeRouter | None) -> None:
        self._make = self._make if make is None else _checked(make)
        if self._make is None:
            raise UsageError("restart() needs a function that makes the router: Chat(make_router), not Chat(router)")
        await self.stop()
        self._routers = self._made(self._make)
        for router in self._routers:
            # The function may reuse one storage for every router, and stop() has closed it.
            await _fsm_of(router).storage.open()

    async def stop(self) -> None:
        self._started = False
        await self._turns.stop()
        for router in self._routers:
            storage = _fsm_of(router).storage
            # The caller closes a storage that was passed in.
            if storage is not self._given:
                await storage.close()

    def _made(self, make: MakeRouter) -> list[Router]:
        bots = [make(self._opened()) for _ in range(self._count)]
        routers = [bot.as_router() if isinstance(bot, Turns) else bot for bot in bots]
        for router in routers:
            check_instance(router, Router, "Chat(make_router): the function must return a Router or Turns, got {}")
            _fsm_of(router)
            if self._show is not None:
                self._prepare(router)
        return routers

    def _opened(self) -> Storage:
        if isinstance(self._storage, Storage):
            return self._storage
        return open_storage(self._storage, **({} if self.clock is None else {"clock": self.clock}))


async def _handle_until_killed(router: Router, update: dict[str, Any], *, after_commit: bool) -> None:
    """Handle an update as ``Router.handle`` does, until the process ends: before its commit, or before it answers."""
    conversation = Conversation(_fsm_of(router), update, collects=True, enters=True)
    try:
        async with conversation as ctx:
            if not ctx.duplicate:
                await router._run(conversation, ctx)
            if not after_commit:
                raise Killed
    except Killed:
        pass


def _shown(show: Send, own: Send | None) -> Send:
    async def send(call: dict[str, Any]) -> None:
        await show(call)
        if own is not None:
            await _portal.call_function(own, call)

    return send


def _checked(make: MakeRouter) -> MakeRouter:
    try:
        inspect.signature(make).bind(None)
    except TypeError:
        raise InvalidOption(
            f"Chat takes a Router, Turns, or a function that makes one: def make_router(storage); got {quoted(make)}"
        ) from None
    return make


def _fsm_of(router: Router) -> FSM:
    if router.fsm is None:
        raise InvalidOption("this router has no machine; create it with Router(fsm)")
    return router.fsm
