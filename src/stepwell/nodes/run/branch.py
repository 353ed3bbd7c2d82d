"""A branch of a durable run: the main one, or one of a ``parallel()``."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell.codec.values import step
from stepwell.nodes.graph.hooks import call_hook
from stepwell.nodes.run.journal import Journal
from stepwell.nodes.run.parts import is_inside

if TYPE_CHECKING:
    from stepwell.nodes.graph.plan import Graph, Stage
    from stepwell.slot import Sealed

__all__ = ["Branch", "Park", "park_in"]

_IMMUTABLE = frozenset({str, int, float, bool, type(None), bytes})


class Park(BaseException):
    """Raised by a wait to park its branch. It never leaves the engine.

    A node that awaits a child raises it inside the hooks of users, whose ``except Exception`` must not catch it.
    """

    def __init__(self, wait: dict[str, Any] | None = None) -> None:
        super().__init__()
        #: The wait of a node for a child, until the journal has it.
        self.wait: dict[str, Any] | None = wait


class Branch:
    """The position of one branch. Every method leaves the journal consistent."""

    def __init__(self, journal: Journal, name: str, state: dict[Any, Any], parent: Branch | None = None) -> None:
        self.journal = journal
        #: The path of the branch; the main branch is "".
        self.name = name
        #: The shared state, or the branch's own copy of it.
        self.state = state
        self.parent = parent
        #: The node at which the run was interrupted, until the walk has reached it.
        self._resumed_at = journal.positions.get(name)
        #: The fields that a parallel branch has changed, each with the part that stores it.
        self._fields: dict[Any, _StoredField] = {}
        if parent is not None:
            self._restore()

    def enter(self, graph: Graph) -> tuple[Stage, bool]:
        """Return the stage to begin a graph with, and whether the run was interrupted inside it."""
        at, start = self._resumed_at, graph.start
        assert start is not None
        if at is None:
            return start, False
        for stage in graph.stages:
            if stage.path == at:
                self._resumed_at = None
                return stage, stage.commits_inside and at in self.journal.open
            if is_inside(at, stage.path):
                return stage, True
        # The run was interrupted before it reached this graph.
        self._resumed_at = None
        return start, False

    async def prep(self, stage: Stage, visit: int, node: Any, shared: Any, inside: bool) -> Any:
        """Call ``prep`` and begin the node, or return the stored result if the run was interrupted inside it."""
        if inside:
            return self.journal.parts.get(stage.key, "prep")
        prep_res = await call_hook(stage.prep, node, shared)
        self.begin(stage, visit, prep_res)
        return prep_res

    def begin(self, stage: Stage, visit: int, prep_res: Any, inside: Any = True) -> None:
        """Record that a node which commits before it completes has begun."""
        journal = self.journal
        if self.parent is not None:
            self._store_fields(stage.path)
        if stage.keeps_prep:
            # None too: without this part, prep() was added to the flow after it was entered.
            journal.parts.put(stage.key, "prep", 0, prep_res)
        journal.visits[stage.index] = visit
        if stage.graph is not None:
            if stage.keeps_prep and self.parent is None:
                journal.entered = dict(self.state)
            assert stage.graph.start is not None
            journal.positions[self.name] = stage.graph.start.path
        else:
            journal.positions[self.name] = stage.path
            journal.open[stage.path] = inside

    async def wait(self, stage: Stage, park: Park) -> None:
        """Record that a node waits for a child. It runs again from its start, on the shared state of its start."""
        wait, park.wait = park.wait, None
        if wait is None:
            return
        journal = self.journal
        if self.parent is None:
            await journal.restore_shared()
        before, now = journal.open.get(stage.path), journal.now()
        if isinstance(before, dict) and "since" in before:
            # It has waited for another child before.
            wait["waited"] = before.get("waited", 0.0) + now - before["since"]
        journal.positions[self.name] = stage.path
        journal.open[stage.path] = {**wait, "since": now}
        journal.recover()

    def end(self, stage: Stage, action: Any) -> None:
        """Record that the nodes inside a flow have completed; its ``post`` has not run yet."""
        if stage.key:
            self.journal.positions[self.name] = stage.path
        self.journal.open[stage.key] = action

    async def complete(
        self,
        graph: Graph,
        stage: Stage,
        following: Stage | None,
        *,
        action: object,
        visit: int,
        attempts: int,
        started: float,
        error: tuple[str, str, str] | None = None,
    ) -> None:
        """Commit that a node has completed, or that its error was caught. ``started`` is on the monotonic clock.

        The last node of a graph has no commit: the caller of ``walk`` commits it together with the next step.
        """
        journal, path = self.journal, stage.path
        if self.parent is not None:
            self._store_fields(path)
        journal.visits[stage.index] = visit
        if journal.recoveries:
            journal.recover()
        if error is not None:
            journal.caught[self.name] = list(error)
        journal.note_completed(
            path, started=started, attempts=attempts, visit=visit, action=action, error=error and error[1:]
        )
        if journal.open:
            journal.open = {name: value for name, value in journal.open.items() if not is_inside(name, path)}
        if len(journal.positions) > 1:
            for name in [name for name in journal.positions if name and is_inside(name, path)]:
                del journal.positions[name]
                journal.caught.pop(name, None)
        if len(journal.parts.loaded) > 1:
            # There are parts besides those of the run itself.
            journal.parts.drop(path)
        if following is not None:
            journal.positions[self.name] = following.path
            await (journal.save(path) if self.parent is None else journal.save_whole(path))
        elif graph is journal.program.root.graph:
            await journal.check(path)

    def save(self, node: str) -> Coroutine[Any, Any, None]:
        """Return the commit of the position inside a node, to await."""
        journal = self.journal
        return journal.save(node, between_nodes=False) if self.parent is None else journal.save_whole(node)

    def end_branch(self, action: Any) -> None:
        """Record that the branch has ended."""
        self._store_fields(self.name)
        self.journal.positions.pop(self.name, None)
        self.journal.caught.pop(self.name, None)
        self.journal.open[self.name] = action

    def _restore(self) -> None:
        for part in self.journal.parts.all_of(self.name, "field"):
            key, *rest = part
            value = _DELETED if not rest else rest[0] if len(rest) == 1 else _UNCHANGED
            if value is _DELETED:
                self.state.pop(key, None)
            elif value is not _UNCHANGED:
                self.state[key] = value
            self._fields[key] = _StoredField(len(self._fields), None, value)

    def _store_fields(self, node: str) -> None:
        """Store the fields that this branch has set or deleted, each as a part."""
        assert self.parent is not None
        base, state = self.parent.state, self.state
        for key, value in state.items():
            known = self._fields.get(key)
            if base.get(key, _DELETED) is not value:
                if known is None or known.value is not value or type(value) not in _IMMUTABLE:
                    self._store(node, key, known, value, [key, value])
            elif known is not None and known.value is not _UNCHANGED:
                self._store(node, key, known, _UNCHANGED, [key, None, True])
        if base.keys() - state.keys() or self._fields:
            for key in [*base, *self._fields]:
                known = self._fields.get(key)
                if key not in state and (known is None or known.value is not _DELETED):
                    self._store(node, key, known, _DELETED, [key])

    def _store(self, node: str, key: Any, known: _StoredField | None, value: Any, part: list[Any]) -> None:
        journal = self.journal
        number = len(self._fields) if known is None else known.number
        # An error names the value by its key, not by its index in the part.
        text = journal.parts.seal(node, f"field:{self.name}:{number}", part, lambda at: f"${step(key)}{at[3:]}")
        if known is None or known.text != text:
            journal.parts.put(self.name, "field", number, text)
        self._fields[key] = _StoredField(number, text, value)


def park_in(error: BaseException) -> Park | None:
    """Return the park in the errors of a ``TaskGroup``, if there are no other errors."""
    if not isinstance(error, BaseExceptionGroup):
        return None
    parks, others = error.split(Park)
    if parks is None or others is not None:
        return None
    first: BaseException = parks
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first if isinstance(first, Park) else None


class _StoredField(NamedTuple):
    """A field of a branch as it was last stored."""

    number: int
    text: Sealed | None
    value: Any


_DELETED: Any = object()
#: A field that was changed, and then got the value back that it had before the branch.
_UNCHANGED: Any = object()
