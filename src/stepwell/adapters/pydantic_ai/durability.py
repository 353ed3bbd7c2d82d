"""The model requests and tool calls of an agent, each stored once in a durable run.

::

    agent = Agent("openai:gpt-5", name="clerk", capabilities=[StepwellDurability()])

    class Ask(Node):
        async def exec(self, question):
            return (await agent.run(question)).output
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar
from weakref import WeakKeyDictionary

from pydantic_ai import RunContext
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
)
from pydantic_core import to_json

from stepwell import Log
from stepwell.adapters.framework.agents import digest_of, replay_of
from stepwell.engine import DAY, run_in_loop
from stepwell.errors import TooLarge
from stepwell.nodes.engine import DurableStep, durable_step

if TYPE_CHECKING:
    from pydantic_ai.agent import EventStreamHandler
    from pydantic_ai.capabilities import WrapRunHandler
    from pydantic_ai.models import Model
    from pydantic_ai.run import AgentRunResult


__all__ = ["StepwellDurability"]

AgentDepsT = TypeVar("AgentDepsT")
T = TypeVar("T")

#: The namespace of the logs of operations, which have the id of a step and the mark of its run as key.
NAMESPACE: Final = "pydantic-ai"
#: Seconds after the last operation of a step.
TTL: Final = 7 * DAY


class Operations:
    """The operations of one execution of a step, and the results that were stored before it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[str, Any] | None = None
        #: The place of operations outside a run of an agent.
        self.root: StepPlace = StepPlace(self, "", None)

    async def run(self, key: str, body: Callable[[], Awaitable[object]]) -> object:
        """Return the stored result of an operation, or run it and store its result."""
        known = await self._results()
        if key in known:
            return known[key]
        result = await body()
        await self._in_loop(partial(self._store, key, result))
        return result

    async def run_once(self, key: str, name: str, step: DurableStep, body: Callable[[], Awaitable[object]]) -> object:
        """Do the same with a tool that must not run again: its call is an effect of the step."""

        async def work() -> dict[str, object]:
            result = await body()
            if len(to_json(result)) <= self._log.storage.limits.item // 3:
                return {NAMESPACE: result}
            # Too large for an effect.
            await self._in_loop(partial(self._store, key, result))
            known[key] = result
            return {NAMESPACE: None}

        known = await self._results()
        value = {NAMESPACE: None} if key in known else await step.call_once(name, digest_of(key), work)
        if key in known:
            return known[key]
        # Other values are what ``flow.complete()`` has said.
        is_stored = isinstance(value, Mapping) and set(value) == {NAMESPACE}
        return value[NAMESPACE] if is_stored else {"kind": "tool_return", "result": value}

    async def _results(self) -> dict[str, Any]:
        if self._known is None:
            self._known = await self._in_loop(self._load)
        return self._known

    async def _load(self) -> dict[str, Any]:
        known: dict[str, Any] = {}
        pieces: list[str] = []
        for entry in await self._log.read():
            key, result, *following = entry.value
            if following:
                pieces.append(result)
                if following[0]:
                    continue
                result = json.loads("".join(pieces))
                pieces.clear()
            known.setdefault(key, result)
        return known

    async def _store(self, key: str, result: object) -> None:
        """Append a result, a large one as several entries: a piece of its JSON, and the number of pieces after it."""
        try:
            try:
                await self._log.append([key, result])
            except TooLarge:
                # A piece becomes larger when it is encoded as a text.
                text, size = json.dumps(result), self._log.storage.limits.item // 3
                pieces = [text[at : at + size] for at in range(0, len(text), size)]
                await self._log.append(*([key, piece, len(pieces) - at] for at, piece in enumerate(pieces, 1)))
        except TooLarge as error:
            error.add_note(f"the result of the operation {key!r}; let the tool return less, such as the name of a file")
            raise

    async def _in_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        # ``agent.run_sync()`` in a ``def`` node has a loop of its own.
        return await run_in_loop(self._log.storage, work, self._log.address.text)


class StepPlace:
    """Where operations are numbered: a run of an agent, or an operation in which other agents run.

    Only what happens in the same place has a fixed order. Runs of agents may be concurrent, and what happens inside an
    operation does not happen again once its result is stored.
    """

    def __init__(self, operations: Operations, prefix: str, outer: StepPlace | None) -> None:
        self.operations = operations
        self.outer = outer
        self.ended = False
        self._prefix = prefix
        self._counts: Counter[str] = Counter()

    def key(self, name: str) -> str:
        """Return the key of the next operation or run of this name."""
        self._counts[name] += 1
        return f"{self._prefix}{name}#{self._counts[name]}"

    @contextmanager
    def inside(self, key: str) -> Iterator[None]:
        """Make an operation or run the current place."""
        place = StepPlace(self.operations, f"{key}/", self)
        _place.set(place)
        try:
            yield
        finally:
            # pydantic-ai copies the context to other tasks, where the variable cannot be reset.
            place.ended = True
            _place.set(self)


_place: ContextVar[StepPlace | None] = ContextVar("stepwell_pydantic_ai_place", default=None)


def place_of(here: DurableStep) -> StepPlace:
    """Return the place of the current task in the step that is running."""
    operations = operations_of(here)
    place = _place.get()
    while place is not None and (place.ended or place.operations is not operations):
        place = place.outer
    return place or operations.root


#: By the execution of a run, then by step and attempt. All agents of a step share them.
_operations: WeakKeyDictionary[object, dict[tuple[str, int], Operations]] = WeakKeyDictionary()


def operations_of(here: DurableStep) -> Operations:
    """Return the operations of the step that is running."""
    known = _operations.setdefault(here.execution, {})
    place = (here.id, here.attempt)
    if place not in known:
        # A later run with the same id must not get the results of this one.
        known[place] = Operations(Log(here.storage, NAMESPACE, (here.id, here.mark), ttl=TTL))
    return known[place]


class StepwellBackend(JournalCallableOperationBackend[Mapping[str, Any]]):
    """Runs each operation of an agent once for a step of a durable run."""

    def __init__(self, agent_name: str) -> None:
        none: Mapping[str, Any] = {}
        config = RoleBasedOperationConfig(model=none, event=none, capability=none, tool=none, resolve_tool=_config_of)
        super().__init__(agent_name=agent_name, config=config)

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: Mapping[str, Any],
    ) -> object:
        """Run one operation, or return its stored result."""
        here = durable_step()
        if here is None:
            return await body()
        place = place_of(here)
        context = next((each for each in cache_key if isinstance(each, RunContext)), None)
        # The id is stored with the response of the model. Tools that run at once begin in any order.
        call = None if context is None else context.tool_call_id
        key = place.key(name if call is None else f"{name}@{call}")

        async def run() -> object:
            with place.inside(key), here.scope(digest_of(key)):
                return await body()

        if "once" in config:
            return await place.operations.run_once(key, config["once"], here, run)
        return await place.operations.run(key, run)


@dataclass(init=False, kw_only=True)
class StepwellDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable inside the nodes of a run that has a storage.

    Each model request and each tool call is stored when it has ended. A node that runs again, after an error, a crash
    or on another worker, gets the stored results, and continues with the first operation that has none. A model
    request that was running then is made again. A call of a tool that was running is not, unless the tool has
    ``metadata={"replay": "safe"}``: its outcome is unknown, as that of an ``@effect``. Outside a durable run the agent
    works as without it.

    ``models``, ``event_stream_handler`` and ``name``: as for the other durability capabilities of pydantic-ai.

    Example::

        from pydantic_ai import Agent
        from pydantic_ai.models.test import TestModel
        from stepwell.adapters.pydantic_ai import StepwellDurability

        agent = Agent(TestModel(), capabilities=[StepwellDurability()], name="support")
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="Stepwell",
        durable_unit_noun="operation",
        durable_container_noun="node",
        codec=JSON_CODEC,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        tool_config_key="stepwell",
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Give the operations of a run of the agent a place of their own."""
        here = durable_step()
        if here is None:
            return await super().wrap_run(ctx, handler=handler)
        place = place_of(here)
        with place.inside(place.key(f"{self.name}:{_digest(ctx.prompt)}")):
            return await super().wrap_run(ctx, handler=handler)

    @property
    def in_durable_context(self) -> bool:
        """Whether a node of a durable run is running."""
        return durable_step() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Mapping[str, Any]]:
        """Return the backend of the agent's operations."""
        return StepwellBackend(self.name)


def _config_of(operation: DurableOperationId, tool: Any, name: str) -> Mapping[str, Any]:
    """Return the name of a tool that must not run again after a crash; nothing for other operations."""
    if not isinstance(operation, ToolsetCallToolId) or tool is None or replay_of(tool.tool_def.metadata) == "safe":
        return {}
    return {"once": name}


def _digest(prompt: object) -> str:
    """Return a digest of a prompt, which names the run of an agent. Concurrent runs begin in any order."""
    text = to_json(prompt, fallback=lambda value: type(value).__qualname__)
    return blake2b(text, digest_size=9).hexdigest()
