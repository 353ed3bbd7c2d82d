"""The turns of a bot in a test: they run while the test advances the time, and end at a point that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any, Final

from stepwell._secrets import quoted
from stepwell.codec.effects import Effect
from stepwell.engine import decoder
from stepwell.errors import InvalidOption, UsageError
from stepwell.fsm import BotMethods, Router
from stepwell.fsm.base import Send
from stepwell.record import TURNS, Head
from stepwell.storage import Apply, Operation, Storage
from stepwell.testing.run_workers import is_due, is_running
from stepwell.turns import Turns
from stepwell.turns.policy import ALBUM
from stepwell.turns.record import TurnTable

__all__ = ["POINTS", "Killed", "TurnWorkers"]

#: The points of a turn at which a test can kill the bot.
POINTS: Final = (
    "start", "before tool", "in tool", "behind tool", "before end", "behind end", "behind send", "asking",
)  # fmt: skip
#: Seconds, in real time, that a handler may wait for what is no turn's work.
PATIENCE = 10.0
#: Seconds between two looks at the turns.
LOOK = 0.002

_decode_table = decoder(TurnTable)


class Killed(BaseException):
    """The bot's process ends here. Not an ``Exception``, so that a bot does not handle it."""


class TurnWorkers:
    """Runs the turns that are attached to the routers of a test."""

    def __init__(self) -> None:
        self._stack: AsyncExitStack | None = None
        self._turns: list[Turns] = []
        self._gates: list[_Gate] = []
        self._point: str | None = None
        #: Whether the bot was killed, so that it must be restarted.
        self.dead: bool = False

    async def serve(self, routers: Sequence[Router], send: Send, client: BotMethods | None) -> bool:
        """Run the turns of these routers in the background, and return whether there are any."""
        if self._stack is None:
            self._turns = list(_attached(routers))
            self._stack = AsyncExitStack()

            async def sent(call: dict[str, Any]) -> None:
                if self.dead:
                    raise Killed
                await send(call)
                self.reach("behind send")

            for turns in self._turns:
                await self._stack.enter_async_context(turns.worker(send=sent, client=client, drain=0.0))
        for turns in self._turns:
            turns.wake()
        return bool(self._turns)

    async def stop(self) -> None:
        """Stop the turns: those that run are left to the next worker, unless the bot was killed."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()
        for gate in self._gates:
            gate.remove()
        self._gates, self._point, self.dead = [], None, False

    async def settle(self, until: asyncio.Event | None) -> None:
        """Wait until nothing is due and no turn runs, until the event is set, or until the bot is killed."""
        give_up = monotonic() + PATIENCE
        while not self.dead and not (until is not None and until.is_set()) and await self._works():
            if monotonic() > give_up:
                raise TimeoutError(
                    f"a turn has not ended within {PATIENCE:g} seconds; if its handler waits for what the test does "
                    "next, pass an event that it sets before: chat.advance(1.0, until=event)"
                )
            await asyncio.sleep(LOOK)

    async def _works(self) -> bool:
        for turns in self._turns:
            if await is_due(turns.storage, TURNS, turns.name):
                return True
        # After the reads, because a worker may have claimed a record meanwhile.
        return any(is_running(turns.storage, TURNS) for turns in self._turns)

    def longest_window(self, routers: Sequence[Router]) -> float:
        """Return the seconds after which the messages of a turn are complete."""
        return max((max(each.rules.collect, each.rules.at_most, ALBUM) for each in _attached(routers)), default=0.0)

    # Kills

    def kill_at(self, point: str, routers: Sequence[Router]) -> None:
        """Kill the bot when a turn reaches a point."""
        if point not in POINTS:
            raise InvalidOption(f"{quoted(point)} is no point of a turn; choose one of {', '.join(POINTS)}")
        turns = list(_attached(routers))
        if not turns:
            raise UsageError(f"kill_next({quoted(point)}) is for bots with turns; this one has none")
        self._point = point
        if not self._gates:
            storages = {id(each.storage): each.storage for each in turns}
            self._gates = [_Gate(self, storage) for storage in storages.values()]

    def reach(self, point: str) -> None:
        """Kill the bot if this is the point."""
        if self.dead or point == self._point:
            self.dead = True
            raise Killed


class _Gate:
    """Watches the writes of turns in a storage. Behind the point nothing is written any more."""

    def __init__(self, workers: TurnWorkers, storage: Storage) -> None:
        self._workers, self._storage = workers, storage
        self._perform = storage.perform
        self._started: set[tuple[str, int]] = set()
        storage.perform = self.perform  # type: ignore[method-assign]

    def remove(self) -> None:
        del self._storage.perform

    def perform(self, operation: Operation) -> Any:
        return self._performed(operation)

    async def _performed(self, operation: Operation) -> Any:
        if self._workers.dead:
            raise Killed
        before, behind = self._points_of(operation)
        for point in before:
            self._workers.reach(point)
        result = await self._perform(operation)
        for point in behind:
            self._workers.reach(point)
        return result

    def _points_of(self, operation: Operation) -> tuple[list[str], list[str]]:
        """Return the points before and behind a write."""
        before: list[str] = []
        behind: list[str] = []
        if not isinstance(operation, Apply) or operation.address.namespace != TURNS:
            return before, behind
        change = operation.change
        for name, text in change.parts.items():
            if name.startswith("o:") and text is not None:
                seal = self._storage.seal(operation.address)
                ended = Effect.open(seal, name, text).outcome is not None
                before.append("in tool" if ended else "before tool")
                behind += ["behind tool"] if ended else []
            elif name.startswith("i:") and text is None:
                before.append("before end")
                behind.append("behind end")
        table = self._table_of(operation)
        if table is not None and table.turn is not None:
            if table.turn.asking:
                behind.append("asking")
            elif (attempt := (table.turn.id, table.turn.attempt)) not in self._started:
                self._started.add(attempt)
                behind.append("start")
        return before, behind

    def _table_of(self, operation: Apply) -> TurnTable | None:
        head = operation.change.head
        if not isinstance(head, Head):
            return None
        extension = self._storage.seal(operation.address).open_head(head.text).extension
        return _decode_table(extension) if extension else None


def _attached(routers: Sequence[Router]) -> Iterator[Turns]:
    """Yield the turns of routers."""
    for router in routers:
        for other in router.attached:
            if isinstance(other, Turns):
                yield other
