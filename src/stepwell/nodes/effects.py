"""The effects of a durable run: calls whose intent is stored before they run, and their outcome after.

Each effect is a part of its node, named by its visit, its item and its number in the step. The parts are dropped when
the node completes. A runner that finds an intent without an outcome does not run it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, TypeVar

from stepwell.codec import Seal
from stepwell.codec.effects import Effect, Replay
from stepwell.errors import KeptError, NodeTimeout, Parked, UnknownOutcome, Unstorable

__all__ = [
    "EXEC",
    "EffectPlace",
    "RunEffects",
    "inside_effect",
    "is_effect",
    "opened_effects",
    "row_of_effect",
    "unknown_in",
]

#: The number of the effect that is the ``exec`` of a node.
EXEC = "exec"
_KIND = "effect"

#: Whether the code that runs is inside an effect. What it calls belongs to that one.
_inside: ContextVar[bool] = ContextVar("stepwell.nodes.effect", default=False)

T = TypeVar("T")
Arguments = tuple[Sequence[Any], Mapping[str, Any]]


def inside_effect() -> bool:
    """Return whether the caller is inside an effect."""
    return _inside.get()


def is_effect(part: str) -> bool:
    """Return whether a part stores an effect."""
    return part.startswith(f"{_KIND}:")


def row_of_effect(effect: Effect) -> list[Any]:
    """Return the stored form of an effect."""
    return [effect.name, effect.digest, effect.replay, effect.outcome, effect.value]


def opened_effects(parts: Mapping[str, Any]) -> dict[str, Effect]:
    """Return the effects in some loaded parts, by the names of their parts."""
    return {name: Effect(*row) for name, row in parts.items() if is_effect(name) and row is not None}


def unknown_in(error: BaseException) -> UnknownOutcome | None:
    """Return the first unknown outcome in an error, which may be the group of a batch."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := unknown_in(each)) is not None), None)
    return error if isinstance(error, UnknownOutcome) else None


class EffectPlace(NamedTuple):
    """Where a run calls an effect."""

    node: str
    visit: int
    item: int | None
    #: The number of the call in its step.
    number: str

    def part(self) -> str:
        """Return the name of the part that stores the effect."""
        return f"{_KIND}:{self.node}:{self.visit}.{'' if self.item is None else self.item}.{self.number}"


class StoredCalls(Protocol):
    """The parts of a run; see ``RunParts``."""

    loaded: dict[str, dict[str, Any]]

    def put(self, path: str, kind: str, number: int | str, value: Any) -> None: ...
    def add(self, name: str, value: Any) -> None: ...
    def forget(self, names: Iterable[str]) -> None: ...


class RunEffects:
    """The effects of one run, of the nodes that it runs now. ``save`` commits those that are not stored yet."""

    def __init__(
        self,
        parts: StoredCalls,
        seal: Seal,
        flow_id: str,
        *,
        save: Callable[[str], Coroutine[Any, Any, None]],
        loop: Callable[[], asyncio.AbstractEventLoop | None],
    ) -> None:
        self._parts = parts
        self._seal = seal
        self._flow_id = flow_id
        self._save = save
        self._loop = loop
        #: The effects that have raised in this process, or whose stored error was raised here: another attempt runs
        #: them again.
        self._raised: set[str] = set()

    def check(self, path: str, visit: int, item: int | None = None, *, error: Exception | None = None) -> None:
        """Raise ``UnknownOutcome`` if a visit, or one item of it, was interrupted in an effect that must not run again.

        ``error``: what the visit or the item has just failed with, for example its timeout.
        """
        parts = self._parts.loaded.get(path)
        if parts is None or isinstance(error, Unstorable) or (error is not None and unknown_in(error) is not None):
            return
        place = EffectPlace(path, visit, item, "")
        prefix = f"{_KIND}:{path}:{visit}." if item is None else place.part()
        for name, effect in opened_effects(parts).items():
            if effect.unknown and name.startswith(prefix):
                raise self._unknown(effect.name, place) from error

    def names_of_raised(self) -> list[str]:
        """Return the parts of effects that have raised. A run that is retried calls them again."""
        loaded = list(self._parts.loaded.values())
        return [
            name for parts in loaded for name, effect in opened_effects(parts).items() if effect.outcome == "raised"
        ]

    async def run_node(self, place: EffectPlace, replay: Replay, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run all attempts of an ``exec`` as one effect."""
        try:
            return await self.call(place, place.node, ((), {}), replay, work)
        except NodeTimeout as error:
            raise self._unknown(place.node, place) from error

    def forget(self, place: EffectPlace) -> None:
        """Forget the intent of an ``exec`` that waits for a child: it runs again from its start."""
        if place.part() in self._parts.loaded.get(place.node, {}):
            self._parts.forget([place.part()])

    async def call(
        self, place: EffectPlace, name: str, arguments: Arguments, replay: Replay, work: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Run a function as an effect of the current step, or return what it has returned before."""
        known = await self._in_loop(self._begin(place, name, arguments, replay))
        if known is not None:
            return known.value
        try:
            with _Inside():
                result = await work()
        except (Parked, NodeTimeout):
            # It has not ended.
            raise
        except Exception as error:
            await self._in_loop(self._end(place, error=error))
            raise
        await self._in_loop(self._end(place, result))
        return result

    def call_in_thread(
        self, place: EffectPlace, name: str, arguments: Arguments, replay: Replay, work: Callable[[], Any]
    ) -> Any:
        """Do the same in a thread, with a function that is not a coroutine function."""
        loop = self._loop()
        assert loop is not None
        known = asyncio.run_coroutine_threadsafe(self._begin(place, name, arguments, replay), loop).result()
        if known is not None:
            return known.value
        try:
            with _Inside():
                result = work()
        except Exception as error:
            asyncio.run_coroutine_threadsafe(self._end(place, error=error), loop).result()
            raise
        asyncio.run_coroutine_threadsafe(self._end(place, result), loop).result()
        return result

    async def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Read or write in the loop of the run. A function that a thread calls may have a loop of its own."""
        loop = self._loop()
        if loop is None or loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    async def _begin(self, place: EffectPlace, name: str, arguments: Arguments, replay: Replay) -> Effect | None:
        """Store the intent; or return the effect, if it has returned before.

        Raises ``UnknownOutcome`` if it was interrupted, and its stored error if it has raised before a crash.
        """
        part = place.part()
        intent = Effect.of(self._seal, name, arguments, replay)
        row = self._parts.loaded.get(place.node, {}).get(part)
        if row is not None:
            known = Effect(*row)
            if known.unknown:
                raise self._unknown(known.name, place)
            if known.digest == intent.digest and known.outcome == "returned":
                return known
            if known.digest == intent.digest and known.outcome == "raised" and part not in self._raised:
                self._raised.add(part)
                raise KeptError(*known.value)
        await self._store(place, intent)
        return None

    async def _end(self, place: EffectPlace, result: Any = None, *, error: Exception | None = None) -> None:
        """Store the outcome."""
        intent = Effect(*self._parts.loaded[place.node][place.part()])
        if error is not None:
            self._raised.add(place.part())
        await self._store(place, intent.returned(result) if error is None else intent.raised(error))

    async def _store(self, place: EffectPlace, effect: Effect) -> None:
        """Commit an effect, even if the caller is cancelled meanwhile."""
        part, row = place.part(), row_of_effect(effect)
        self._parts.put(place.node, _KIND, part.rpartition(":")[2], row)
        # Another attempt of this process needs it.
        self._parts.add(part, row)
        saving = asyncio.ensure_future(self._save(place.node))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            while not saving.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((saving,))
            if not saving.cancelled():
                saving.exception()
            raise

    def _unknown(self, name: str, place: EffectPlace) -> UnknownOutcome:
        text = f"{self._flow_id}/{place.node}/{place.visit}"
        text = text if place.item is None else f"{text}/{place.item}"
        return UnknownOutcome(name, text, node=place.node, item=place.item)


class _Inside:
    """Marks the code within ``with`` as part of an effect."""

    def __enter__(self) -> None:
        self._token = _inside.set(True)

    def __exit__(self, *error: object) -> None:
        _inside.reset(self._token)
