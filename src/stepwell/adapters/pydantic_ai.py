"""pydantic-ai: the model requests and tool calls of an agent, each stored once in a durable run.

::

    agent = Agent("openai:gpt-5", name="clerk", capabilities=[StepwellDurability()])

    class Ask(Node):
        async def exec(self, question):
            return (await agent.run(question)).output
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar
from weakref import WeakKeyDictionary

from stepwell._optional import require
from stepwell.log import Log
from stepwell.nodes import step
from stepwell.nodes.engine.position import Cursor, current
from stepwell.record import DAY

require("pydantic_ai", "pydantic-ai", distribution="pydantic-ai-slim", minimum="2.60", below="3")

from pydantic_ai.durable_exec import (  # noqa: E402 - checked first
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
)

if TYPE_CHECKING:
    from pydantic_ai.agent import EventStreamHandler
    from pydantic_ai.models import Model

    from stepwell.nodes.engine.branch import Branch
    from stepwell.nodes.engine.execution import Execution

__all__ = ["StepwellDurability"]

AgentDepsT = TypeVar("AgentDepsT")

#: The namespace of the logs of operations, which have the id of a step and the mark of its run as key.
NAMESPACE: Final = "pydantic-ai"
#: Seconds after the last operation of a step.
TTL: Final = 7 * DAY


class Operations:
    """The operations of one execution of a step, and the results that were stored before it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._counts: Counter[str] = Counter()
        self._loading: asyncio.Task[dict[str, Any]] | None = None

    async def run(self, name: str, body: Callable[[], Awaitable[object]]) -> object:
        """Return the stored result of the next operation of this name, or run it and store its result."""
        # Operations begin in the same order when the step runs again.
        self._counts[name] += 1
        key = f"{name}#{self._counts[name]}"
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        known = await asyncio.shield(self._loading)
        if key in known:
            return known[key]
        result = await body()
        await self._log.append([key, result])
        return result

    async def _load(self) -> dict[str, Any]:
        known: dict[str, Any] = {}
        for entry in await self._log.read():
            key, result = entry.value
            known.setdefault(key, result)
        return known


#: By the execution of a run, then by step and attempt. All agents of a step share them.
_operations: WeakKeyDictionary[Execution, dict[tuple[str, int], Operations]] = WeakKeyDictionary()


def operations_of(cursor: Cursor, branch: Branch) -> Operations:
    """Return the operations of the step that is running."""
    here = step()
    known = _operations.setdefault(cursor.run, {})
    place = (here.id, here.attempt)
    if place not in known:
        # A later run with the same id must not get the results of this one.
        key = (here.id, branch.journal.mark)
        known[place] = Operations(Log(branch.journal.slot.storage, NAMESPACE, key, ttl=TTL))
    return known[place]


class StepwellBackend(JournalCallableOperationBackend[Mapping[str, Any]]):
    """Runs each operation of an agent once for a step of a durable run."""

    def __init__(self, agent_name: str) -> None:
        none: Mapping[str, Any] = {}
        config = RoleBasedOperationConfig(model=none, event=none, capability=none, tool=none)
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
        cursor = current()
        if cursor is None or cursor.branch is None:
            return await body()
        return await operations_of(cursor, cursor.branch).run(name, body)


@dataclass(init=False, kw_only=True)
class StepwellDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable inside the nodes of a run that has a storage.

    Each model request and each tool call is stored when it has ended. A node that runs again, after an error, a crash
    or on another worker, gets the stored results, and continues with the first operation that has none. The one that
    was running then is run again. Outside a durable run the agent works as without it.

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

    @property
    def in_durable_context(self) -> bool:
        """Whether a node of a durable run is running."""
        cursor = current()
        return cursor is not None and cursor.branch is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Mapping[str, Any]]:
        """Return the backend of the agent's operations."""
        return StepwellBackend(self.name)
