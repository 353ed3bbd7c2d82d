"""Every error of the library.

StepwellError
├── UsageError (also RuntimeError)             the call itself is wrong here
│   ├── WrongLoop                              a storage used from a loop that did not open it
│   ├── AlreadyHeld                            a task claims a key that it, or its parent task, holds
│   ├── ContextClosed                          a context used after its block
│   └── InsideLoop                             a sync entry point called where it would block a loop
├── InvalidKey (also TypeError, ValueError)    a key or a name that cannot be an address
├── InvalidOption (also ValueError)            an unknown option, or a value that it cannot have
├── UnknownScheme (also ValueError)            a URL that no installed backend claims
├── MissingExtra (also ImportError)            an optional package is not installed
├── ExtraTooOld (also ImportError)             an optional package is installed, but too old
├── Unsupported (also NotImplementedError)     this backend does not have that optional protocol
├── EncodeError (also TypeError, ValueError)   a value that cannot be kept, with its path and type
│   └── Unstorable                             what a node of a durable run left behind cannot be kept
├── TooLarge (also ValueError)                 a key, value or record beyond its limit
├── StoredDataError                            what is stored cannot be given back
│   ├── CorruptRecord                          bytes changed under us: checksum, syntax or limits
│   │   └── RunReplaced                        the state of a run was replaced from outside; nobody can go on with it
│   ├── UnknownType                            a stored type that nothing here has registered
│   ├── DamagedStorage                         the store's own structure is broken, beyond one record
│   └── NewerSchema                            written by a newer release
├── Conflict                                   somebody else was there first
│   ├── Busy (also TimeoutError)               the key stayed claimed for as long as we would wait
│   │   └── RunBusy                            the run is still being run elsewhere
│   ├── LeaseLost                              the claim ran out; nothing was written
│   ├── RecordReplaced                         cleared or replaced under the holder; nothing was written
│   └── VersionChanged                         not the version that was shown; nothing was written
├── InvalidFlow (also TypeError, ValueError)   a flow that cannot work, found when it is defined
├── TransitionError (also ValueError)          a move that the flow does not declare
├── MigrationError (also ValueError)           a record that its flow's migrate() cannot bring to this revision
├── UnknownFlowError (also LookupError)        a flow that is not registered here
├── UnknownStateError (also LookupError)       a stored state that is no longer declared
├── NoKeyError (also LookupError)              a change where the update has no key
├── DuplicateUpdate                            this update was handled before
├── FieldError (also TypeError, ValueError)    a data field that its flow's data type does not allow
├── IncompleteData (also ValueError)           data that does not make up the type asked for
├── StorageError
│   ├── StorageUnavailable (also ConnectionError)   not reached; nothing was written
│   ├── OutcomeUnknown (also ConnectionError)       sent, never answered: it may be applied
│   │   └── NotReplicated                           applied, but on no replica yet: a failover may lose it
│   ├── StorageFull (also OSError)                  no room; nothing was written
│   ├── NotCopied                                   after a copy, source and target differ
│   └── StorageClosed                               closed while this was under way
└── NodeFlowError                              a node flow, or what one of its nodes gave
    ├── InvalidGraph (also ValueError)              the graph cannot be run; nothing has run
    ├── InvalidAction (also TypeError)              post returned something that is no action
    ├── UnknownAction (also LookupError)            a named action without an edge
    ├── InvalidItems (also TypeError)               a batch's prep returned no collection of items
    ├── NodeTimeout (also TimeoutError)             one attempt of an exec took too long
    ├── TooManySteps (also RuntimeError)            more nodes visited than max_steps
    ├── MergeConflict (also ValueError)             two branches changed one field
    ├── WorkCancelled (also RuntimeError)           a node, item or branch was cancelled from inside
    ├── KeptError                                   an error that was kept with a run
    ├── ExecutorError (also RuntimeError)           a value cannot travel to an executor or back
    ├── Parked                                      a run waits: for an answer, or for its time
    ├── RunExists (also ValueError)                 a run of this id exists already
    ├── UnknownRun (also LookupError)               no run of this id exists
    ├── RunFinished (also RuntimeError)             the run has ended; there is nothing to answer or resume
    └── FlowChanged (also ValueError)               the run was begun with another graph
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any


class StepwellError(Exception):
    """Everything that the library raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process pools; their constructors take fields, not the message.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[StepwellError], args: tuple[object, ...], fields: dict[str, object]) -> StepwellError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class UsageError(StepwellError, RuntimeError):
    """The call cannot work here, whatever is stored."""


class WrongLoop(UsageError):
    """A storage is used from an event loop that did not open it."""

    def __init__(self, *, forked: bool = False) -> None:
        #: It was opened before this process was forked from another.
        self.forked = forked
        super().__init__(
            "this storage was opened before this process was forked, and its connections belong to the other one; "
            "close() it before forking, or use it first in the worker itself"
            if forked
            else "this storage was opened by another event loop; open one storage per loop, "
            "or close() it there before using it here"
        )


class AlreadyHeld(UsageError):
    """A task claims a key that it already holds, or that the task it was started by holds: waiting could never end."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(
            f"this task, or the task that started it, already holds {place}; use the context it has instead of "
            "entering a second one, or enter it when that block has ended"
        )


class InsideLoop(UsageError):
    """A sync entry point is called where it would block a running event loop."""

    def __init__(self, instead: str = "await the coroutine") -> None:
        super().__init__(f"a sync call inside a running event loop would block it; {instead} instead")


class ContextClosed(UsageError):
    """A conversation's context is used after its block: what it would change is committed already."""

    def __init__(self) -> None:
        super().__init__("this conversation is over; enter a new one with fsm.conversation(...)")


class InvalidKey(StepwellError, TypeError, ValueError):
    """A key or a name cannot be an address."""


class InvalidOption(StepwellError, ValueError):
    """An option is unknown, or has a value that it cannot have."""


class UnknownScheme(StepwellError, ValueError):
    """No installed backend claims the URL's scheme."""

    def __init__(self, scheme: str, known: list[str]) -> None:
        self.scheme, self.known = scheme, known
        super().__init__(
            f"no storage is installed for {scheme!r}; known are {', '.join(known)}; "
            "a third-party backend joins through the entry point group 'stepwell.storage'"
        )


class MissingExtra(StepwellError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed; run: pip install 'stepwell[{extra}]'", name=package)


class ExtraTooOld(StepwellError, ImportError):
    """An optional package is installed in a release that is too old."""

    def __init__(self, package: str, found: str, minimum: str, extra: str) -> None:
        self.package, self.found, self.minimum, self.extra = package, found, minimum, extra
        super().__init__(
            f"{package} {found} is too old, {minimum} is the oldest that works; run: "
            f"pip install --upgrade 'stepwell[{extra}]'",
            name=package,
        )


class Unsupported(StepwellError, NotImplementedError):
    """A backend lacks an optional protocol."""

    def __init__(self, backend: str, what: str) -> None:
        self.backend, self.what = backend, what
        super().__init__(f"{backend} cannot {what}; use one of the four built-in storages for that")


class EncodeError(StepwellError, TypeError, ValueError):
    """A value cannot be kept exactly, so it is refused before anything is written."""

    def __init__(self, path: str, type_name: str, why: str) -> None:
        self.path, self.type_name, self.why = path, type_name, why
        super().__init__(f"{path} ({type_name}) {why}")


class Unstorable(EncodeError):
    """What a node of a durable run left behind cannot be kept; the run stands before that node."""

    def __init__(self, node: str, path: str, type_name: str, why: str) -> None:
        super().__init__(path, type_name, why)
        #: The path of the node; empty for what the run was started with.
        self.node = node
        self.args = (f"{f'after node {node!r}' if node else 'at the start'}: {path} ({type_name}) {why}",)


class TooLarge(StepwellError, ValueError):
    """A key, value or record is beyond its limit; nothing was written."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(
            f"{what} takes {size} bytes, the limit is {limit}; keep large things elsewhere and store "
            "where they are, or raise the limit with limits=Limits(...)"
        )


class StoredDataError(StepwellError):
    """What is stored cannot be given back. It stays where it is; set_state and clear still work."""


class CorruptRecord(StoredDataError):
    """Stored bytes are not the ones that were written."""

    def __init__(self, place: str, what: str, why: str) -> None:
        self.place, self.what, self.why = place, what, why
        super().__init__(
            f"the record at {place} is damaged: {what} {why}; a copy is kept in quarantine, "
            "and set_state() or clear() gives the key a fresh start"
        )


class RunReplaced(CorruptRecord):
    """The state of a run was replaced from outside, and with it what the run needs to go on."""

    def __init__(self, place: str, flow_id: str) -> None:
        super().__init__(place, "its graph", "is gone")
        self.flow_id = flow_id
        self.args = (
            f"the state of run {flow_id!r} was replaced from outside, not merged, so it cannot go on; remove it with "
            f"StateStorage(storage).cleanup({flow_id!r}) and run it again, and change fields of a run with "
            "merge_state(): update_state() replaces all of it",
        )


class UnknownType(StoredDataError):
    """A stored value is of a type that nothing in this process has registered."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name.startswith("$"):
            super().__init__(f"a stored value is tagged {name!r}, which this release does not know; upgrade stepwell")
            return
        super().__init__(
            f"a stored value has the type {name!r}, which is not registered here; import the module that "
            f"declares it, or register its successor with @record_type(name={name!r})"
        )


class DamagedStorage(StoredDataError):
    """The store's own structure is broken, beyond one record."""

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        super().__init__(f"{where} is damaged ({why}); stop writing to it, and restore it from a backup")


class NewerSchema(StoredDataError):
    """The storage was written by a newer release."""

    def __init__(self, where: str, found: int, known: int) -> None:
        self.where, self.found, self.known = where, found, known
        super().__init__(
            f"{where} has schema {found}, this release knows up to {known}; upgrade stepwell, or use another storage"
        )


class Conflict(StepwellError):
    """Somebody else was there first."""


class Busy(Conflict, TimeoutError):
    """A key stayed claimed for as long as we were willing to wait. Nothing was handled; try it again later."""

    def __init__(self, place: str, waited: float) -> None:
        self.place, self.waited = place, waited
        super().__init__(
            f"{place} is still being handled elsewhere after {waited:g} s; nothing was lost: "
            "deliver the update again (a webhook answers 503), or wait longer with wait=..."
        )


class RunBusy(Busy):
    """A run is still being run elsewhere; nothing was done to it, and an answer was not stored."""

    def __init__(self, flow_id: str, waited: float, *, answer: bool = False) -> None:
        super().__init__(flow_id, waited)
        self.flow_id = flow_id
        #: Whether an answer to a wait was given, which was not stored.
        self.answer = answer
        self.args = (
            f"run {flow_id!r} is still being run elsewhere after {waited:g} s, so the answer was not stored; send it "
            "again when the run has parked, which flow.status() shows"
            if answer
            else f"run {flow_id!r} is still being run elsewhere after {waited:g} s, longer than a dead runner's claim "
            "lasts; leave it to its runner, and ask flow.status() how far it is",
        )


class LeaseLost(Conflict):
    """The claim ran out before the commit, so nothing was written."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(
            f"the claim on {place} ran out before the commit, nothing was written; handle the update again, "
            "and keep blocking calls out of the event loop or raise lease=..."
        )


class RecordReplaced(Conflict):
    """The record was cleared or replaced while it was held, so nothing was written."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(
            f"the record at {place} was cleared or replaced while it was held, nothing was written; "
            "handle the update again on the new record"
        )


class VersionChanged(Conflict):
    """The record is not at the version that the writer saw, so nothing was written."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"the record at {place} has changed since it was read, nothing was written; read it again")


class StorageError(StepwellError):
    """The store itself failed."""


class StorageUnavailable(StorageError, ConnectionError):
    """The store cannot be reached or does not answer; nothing was written."""

    def __init__(self, message: str, *, sent: bool = True, final: bool = False) -> None:
        super().__init__(message)
        #: The request may have reached the store. For a write the caller then gets ``OutcomeUnknown``.
        self.sent = sent
        #: Trying again is pointless (a wrong password).
        self.final = final


class OutcomeUnknown(StorageError, ConnectionError):
    """A write was sent and never answered: it may or may not be applied."""

    def __init__(self, place: str, why: str) -> None:
        self.place, self.why = place, why
        super().__init__(
            f"the write to {place} was sent, but its answer never came ({why}); "
            "read the record before you write it again"
        )


class NotReplicated(OutcomeUnknown):
    """A write was applied, but no replica had it in time: it may still arrive, or be lost in a failover."""

    def __init__(self, place: str) -> None:
        self.place, self.why = place, "no replica had it in time"
        StorageError.__init__(
            self,
            f"the write to {place} is made, but no replica had it in time; it may still arrive there, or be lost "
            "if the server fails now; read the record before you write it again",
        )


class StorageFull(StorageError, OSError):
    """There is no room left; nothing was written and what was stored is intact."""


class NotCopied(StorageError):
    """After a copy some records differ between source and target."""

    def __init__(self, places: list[str]) -> None:
        self.places = places
        shown = ", ".join(places[:3]) + (", ..." if len(places) > 3 else "")
        super().__init__(
            f"{len(places)} records differ between source and target after the copy ({shown}); "
            "stop whatever writes to them, and copy again: what is there already is not copied twice"
        )


class StorageClosed(StorageError):
    """The storage was closed."""

    def __init__(self) -> None:
        super().__init__("this storage is closed; open it again with open() or a new 'async with'")


class InvalidFlow(StepwellError, TypeError, ValueError):
    """A flow cannot work as it is written; found when it is defined or registered."""

    def __init__(self, flow: str, problem: str) -> None:
        self.flow, self.problem = flow, problem
        super().__init__(f"flow {flow!r}: {problem}")


class TransitionError(StepwellError, ValueError):
    """A move that the active flow does not declare. Nothing was changed."""

    def __init__(
        self,
        flow: str | None,
        from_: str | None,
        to: str | None,
        *,
        allowed: Iterable[str] = (),
        starting: bool = False,
        problem: str | None = None,
    ) -> None:
        #: The active flow, ``None`` when there is none.
        self.flow = flow
        #: The state left; with ``starting`` the name of the active flow.
        self.from_ = from_
        #: The state asked for; with ``starting`` the name of the flow; ``None`` for a step back.
        self.to = to
        #: The states that may follow ``from_``.
        self.allowed = tuple(allowed)
        #: Another flow was to be started.
        self.starting = starting
        #: What is wrong and what to do, where it is not a missing edge.
        self.problem = problem
        super().__init__(problem or self._message())

    def _message(self) -> str:
        if self.starting:
            return (
                f"flow {self.to!r} cannot start while {self.from_!r} is active; clear_flow() first, "
                "or jump with set_state(state, flow=...)"
            )
        if self.flow is None:
            way = "" if self.to is None else f", so there is no way to {self.to!r}"
            return f"no flow is active{way}; begin with start_flow(...)"
        if self.to is None:
            return f"flow {self.flow!r} has no state before {self.from_!r} to go back to"
        allowed = ", ".join(map(repr, self.allowed)) or "nothing (it is a last state, or not declared)"
        return (
            f"flow {self.flow!r} does not lead from {self.from_!r} to {self.to!r}; allowed is {allowed}; "
            "declare the edge with state(to=[...]), or jump with set_state(...)"
        )


class MigrationError(StepwellError, ValueError):
    """A record of an earlier revision cannot be migrated; it stays as it was."""

    def __init__(self, flow: str, revision: int, problem: str) -> None:
        self.flow, self.revision, self.problem = flow, revision, problem
        super().__init__(
            f"flow {flow!r}: a record of revision {revision} cannot be migrated: {problem}; "
            "it stays as it was: mend migrate(old_revision, state, data) and deploy again"
        )


class UnknownFlowError(StepwellError, LookupError):
    """A flow is named that is not registered here."""

    def __init__(self, flow: str, known: Iterable[str] = ()) -> None:
        self.flow, self.known = flow, tuple(known)
        known_names = ", ".join(map(repr, self.known)) or "none"
        super().__init__(f"flow {flow!r} is not registered (known: {known_names}); add it to FSM(flows=[...])")


class UnknownStateError(StepwellError, LookupError):
    """A stored flow or state is no longer declared, and ``on_unknown_state="raise"`` was chosen."""

    def __init__(self, flow: str | None, state: str | None) -> None:
        self.flow, self.state = flow, state
        super().__init__(
            f"the stored state {state!r} of flow {flow!r} is not declared here; declare it again, "
            'migrate it, or choose on_unknown_state="keep" or "reset"'
        )


class NoKeyError(StepwellError, LookupError):
    """A change was asked for, but the update has no key, so there is no place to keep it."""

    def __init__(self, kind: str | None, strategy: str | None) -> None:
        #: The kind of the update, such as ``"poll"``.
        self.kind = kind
        #: What was asked for a key; ``None`` where ``key=None`` was given by hand.
        self.strategy = strategy
        why = (
            "key=None was given, so nothing can be kept; give"
            if strategy is None
            else f"{strategy} gives no key for this {kind or 'unknown'} update, so nothing can be kept for it; use"
        )
        super().__init__(f'{why} another key=, leave the state alone here, or choose on_missing_key="log" or "ignore"')


class DuplicateUpdate(StepwellError):
    """This update was handled before; its handler must not run again."""

    def __init__(self, place: str, update_id: int | str, calls: list[dict[str, object]] | None = None) -> None:
        self.place, self.update_id = place, update_id
        #: The Bot API calls of the first time, while this is the newest update of its key.
        self.calls = calls or []
        # Python refuses to write very large numbers in decimal.
        large = isinstance(update_id, int) and update_id.bit_length() > 64
        shown = reprlib.repr(hex(update_id) if large else update_id)  # type: ignore[arg-type]
        super().__init__(
            f"update {shown} was already handled for {place}; acknowledge it and do nothing, "
            'or look at the state with on_duplicate="enter"'
        )


class FieldError(StepwellError, TypeError, ValueError):
    """A data field does not fit the ``data=`` of its flow. Nothing was changed."""

    def __init__(self, flow: str, field: object, expected: str, problem: str) -> None:
        self.flow, self.field, self.expected, self.problem = flow, field, expected, problem
        super().__init__(f"flow {flow!r}: field {field!r} must be {expected}: {problem}")


class IncompleteData(StepwellError, ValueError):
    """The data does not make up the type that was asked for."""

    def __init__(self, type_name: str, missing: Iterable[str] = (), wrong: Mapping[str, str] | None = None) -> None:
        #: Required fields that are not there.
        self.missing = tuple(missing)
        #: What is wrong with each field that is there but does not fit.
        self.wrong = dict(wrong or {})
        self.type_name = type_name
        parts = [f"missing {', '.join(map(repr, self.missing))}"] if self.missing else []
        parts += [f"{name!r}: {problem}" for name, problem in self.wrong.items()]
        super().__init__(f"the data does not make up {type_name} yet: {'; '.join(parts)}")


class NodeFlowError(StepwellError):
    """A node flow, or what one of its nodes gave, cannot be worked with."""


class InvalidGraph(NodeFlowError, ValueError):
    """A flow's graph cannot be run; nothing of it has run."""

    def __init__(self, flow: str, problems: list[str]) -> None:
        self.flow, self.problems = flow, problems
        super().__init__(f"flow {flow!r} cannot run: {'; '.join(problems)}")


class InvalidAction(NodeFlowError, TypeError):
    """A node's ``post`` returned something that is no action."""

    def __init__(self, node: str, type_name: str) -> None:
        self.node, self.type_name = node, type_name
        super().__init__(
            f"post of node {node!r} returned {type_name}; return an action (a string, END or None), "
            "or a pair (action, {field: value}) to change the shared state"
        )


class UnknownAction(NodeFlowError, LookupError):
    """A node returned a named action that no edge leads away for."""

    def __init__(self, node: str, action: str, known: list[str]) -> None:
        self.node, self.action, self.known = node, action, known
        super().__init__(
            f"node {node!r} returned {action!r}, but its edges are {known}; connect that action, "
            "return END to end the flow, or give the flow on_unknown_action='end' or 'default'"
        )


class InvalidItems(NodeFlowError, TypeError):
    """A batch's ``prep`` returned something that is not a collection of items."""

    def __init__(self, node: str, type_name: str, hint: str) -> None:
        self.node, self.type_name, self.hint = node, type_name, hint
        super().__init__(f"prep of batch {node!r} returned {type_name}, which is no collection of items; {hint}")


class NodeTimeout(NodeFlowError, TimeoutError):
    """One attempt of a node's ``exec`` took longer than its timeout."""

    def __init__(self, node: str, timeout: float) -> None:
        self.node, self.timeout = node, timeout
        super().__init__(f"exec of node {node!r} took longer than its timeout of {timeout:g} s")


class TooManySteps(NodeFlowError, RuntimeError):
    """A flow visited more nodes than its ``max_steps``."""

    def __init__(self, flow: str, max_steps: int, node: str) -> None:
        self.flow, self.max_steps, self.node = flow, max_steps, node
        super().__init__(
            f"flow {flow!r} has visited {max_steps} nodes and would go on with {node!r}; "
            "if that is no endless loop, raise max_steps"
        )


class MergeConflict(NodeFlowError, ValueError):
    """Two parallel branches changed the same field, and nothing says how to merge it."""

    def __init__(self, node: str, field: object, branches: list[str]) -> None:
        self.node, self.field, self.branches = node, field, branches
        super().__init__(
            f"branches {branches} of {node!r} all changed {field!r}; let one of them write it, or say how to "
            f"merge it: parallel(..., merge={{{field!r}: function_of_the_list_of_values}})"
        )


class WorkCancelled(NodeFlowError, RuntimeError):
    """A node, an item or a branch ended by a cancellation that came from inside its own work."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"{place} awaited something that was cancelled, while the run itself was not")


class KeptError(NodeFlowError):
    """An error that was kept with a run: the name of its type, and its message."""

    def __init__(self, type_name: str, message: str) -> None:
        self.type_name, self.message = type_name, message
        super().__init__(f"{type_name}: {message}")


class ExecutorError(NodeFlowError, RuntimeError):
    """An item's value or error cannot travel to an executor's worker or back."""

    def __init__(self, node: str, what: str, why: str) -> None:
        self.node, self.what, self.why = node, what, why
        super().__init__(
            f"{what} of node {node!r} cannot travel between processes ({why}); "
            "keep it picklable, or use threads: executor=ThreadPoolExecutor()"
        )


class Parked(NodeFlowError):
    """A run waits, durably: for somebody's answer, or for its time. Nothing is lost, and nothing is final yet."""

    def __init__(self, id: str, flow_id: str, node: str, question: Any, deadline: float | None) -> None:  # noqa: A002
        #: Answers this very wait, once: ``flow.resume(parked.id, value)``.
        self.id = id
        self.flow_id = flow_id
        #: The path of the node that waits.
        self.node = node
        #: What the node's ``prep`` returned.
        self.question = question
        #: When it times out, in seconds since 1970 on the storage's clock.
        self.deadline = deadline
        super().__init__(
            f"run {flow_id!r} waits at {node!r}; go on with flow.resume({id!r}, answer), "
            "in this process or in another one"
            if id
            else f"run {flow_id!r} sleeps at {node!r}{_until(deadline)}; a worker goes on with it then, "
            f"or flow.resume({flow_id!r})"
        )


def _until(deadline: float | None) -> str:
    try:
        return f" until {datetime.fromtimestamp(deadline or 0, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError):
        return " for longer than there are dates"


class RunExists(NodeFlowError, ValueError):
    """A run of this id exists already, or a state that is no run; it was left alone."""

    def __init__(self, flow_id: str, *, state_only: bool = False) -> None:
        self.flow_id = flow_id
        #: There is a state, but no run.
        self.state_only = state_only
        super().__init__(
            f"{_only_a_state(flow_id)}, or give another flow_id"
            if state_only
            else f"run {flow_id!r} exists already; go on with flow.resume({flow_id!r}) or run(if_exists='resume'), "
            "or give another flow_id"
        )


class UnknownRun(NodeFlowError, LookupError):
    """No run of this id exists: it was never started, or it ended and was not kept."""

    def __init__(self, flow_id: str, *, state_only: bool = False) -> None:
        self.flow_id = flow_id
        #: There is a state, but no run.
        self.state_only = state_only
        super().__init__(
            f"{_only_a_state(flow_id)}, and then start the run"
            if state_only
            else f"there is no run {flow_id!r} in this storage; start it with flow.run(shared, storage=..., "
            f"flow_id={flow_id!r}), or keep finished runs with keep=..."
        )


def _only_a_state(flow_id: str) -> str:
    return (
        f"there is no run {flow_id!r} in this storage, only a state that update_state() or merge_state() made; "
        f"remove it with StateStorage(storage).cleanup({flow_id!r})"
    )


class RunFinished(NodeFlowError, RuntimeError):
    """The run has ended: there is nothing left to answer or to resume."""

    def __init__(self, flow_id: str, wait_id: str | None = None) -> None:
        self.flow_id = flow_id
        #: The question that was answered too late, if another run of the same id has begun since.
        self.wait_id = wait_id
        super().__init__(
            f"run {flow_id!r} has finished; keep=True (or seconds) keeps its final state for a resume"
            if wait_id is None
            else f"{wait_id!r} belongs to an earlier run {flow_id!r}, which has ended, so nothing was answered; "
            f"flow.status({flow_id!r}) tells what the present run waits for"
        )


class FlowChanged(NodeFlowError, ValueError):
    """A run was begun with another graph than the flow has now; it was left as it was."""

    def __init__(self, flow_id: str, differences: list[str]) -> None:
        self.flow_id, self.differences = flow_id, differences
        super().__init__(
            f"run {flow_id!r} was begun with another graph: {'; '.join(differences)}; finish it with the graph "
            "it was begun with (give the new one another name), or remove it with StateStorage(storage).cleanup()"
        )
