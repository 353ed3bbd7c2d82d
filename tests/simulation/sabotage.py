"""Seeded bugs: how many seeds it takes until a simulated world shows that a line of the library is wrong.

``python -m tests.simulation.sabotage [NAME ...]`` runs each bug, or those whose name contains a text, until a seed
fails that passes without it, and prints the table of docs/simulator.md. ``SEEDS`` is the most seeds of a bug (2,000),
``SECONDS`` the most time.
"""

from __future__ import annotations
import __future__

import asyncio
import contextlib
import functools
import importlib
import inspect
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from tests.simulation.bots import PollingBot, Updates
from tests.simulation.logs import Logs, Timers
from tests.simulation.records import Records
from tests.simulation.runs import Storm
from tests.simulation.seeds import failure_of
from tests.simulation.turns import Agents
from tests.simulation.world import Life, World

__all__ = ["BUGS", "Bug", "Edit", "Found", "fails", "planted", "search"]


class Edit(NamedTuple):
    """A change of the source of one function, given as ``module:name``, which must have the old text once."""

    where: str
    old: str
    new: str


class Bug(NamedTuple):
    """A bug, and the world that has to find it."""

    name: str
    world: type[World]
    edits: tuple[Edit, ...]


class Found(NamedTuple):
    """The search for a bug: the first seed that fails, if there is one, and how long it took."""

    seed: int | None
    seeds: int
    seconds: float
    error: str


class Compactors(Logs):
    """Two tasks compact the log at once."""

    async def compact(self, life: Life) -> None:
        await asyncio.gather(super().compact(life), super().compact(life))


def bug(name: str, world: type[World], *edits: tuple[str, str, str]) -> Bug:
    return Bug(name, world, tuple(Edit(*each) for each in edits))


CELL = "stepwell.storage.reference:Cell"
HEADER = "stepwell.storage.reference:Header"
STORE = "stepwell.testing.simulated_store:SimulatedStore"
LEASE = "stepwell.slot.lease:Lease"
TAIL = "stepwell.log.tail:Tail"
POLICY = "stepwell.turns.policy"
RUNNER = "stepwell.turns.running.runner:Runner"
TOOLS = "stepwell.turns.running.tools:Tools"
POLLER = "stepwell.telegram.receiving.poller:Poller"
OUTBOX = "stepwell.fsm.timers.outbox"
HANDLED = "stepwell.fsm.conversation.duplicates:HandledUpdates"
TIMERS = "stepwell.dispatch.timers"
PARTITIONS = "stepwell.nodes.queue.partitions"
JOURNAL = "stepwell.nodes.run.journal:Journal"

BUGS: tuple[Bug, ...] = (
    # Writes and claims
    bug("a stale holder may write", Records,
        (f"{CELL}._refused", "if token is not None and (token != self.token or self.leased_until <= now):",
         "if False:")),
    bug("a claim does not look for another holder", Records,
        (f"{CELL}._claim", "if self.token != claim.token:", "if False:")),
    bug("a lease never ends", Records,
        (f"{CELL}._claim", "if self.token is not None and self.leased_until > now:", "if self.token is not None:")),
    bug("a release ends the lease of another holder", Records,
        (f"{CELL}._release", "if self.token == release.token:", "if True:")),
    bug("a commit does not name its claim", Records,
        ("stepwell.slot.slot:Slot.commit", "Guard(token=self._token, base=self.base,", "Guard(")),
    bug("an expired claim goes on after the write of another holder", Records,
        (f"{LEASE}._claim_again", "if version == self.version and claimed.base == self.base:", "if True:")),
    bug("a batch is applied again, without its journal", Records,
        (f"{STORE}._apply", "if operations.number == number:", "if False:")),
    bug("a batch that arrives late is applied", Records,
        (f"{STORE}._apply", "if operations.number < number:", "if False:")),
    bug("a batch is sent again in the name of another lane", Records,
        ("stepwell.storage.transport.batch:send", "results = await run(batch)",
         "results = await run(Batch.of(batch, f\"{batch.lane}{attempt or ''}\", batch.number))")),
    bug("a delete keeps the version", Records,
        (f"{HEADER}.delete", "self.version = Version(self.version.number + 1, change.write)", "pass")),
    bug("a replacement keeps the old fields", Records,
        (f"{CELL}._write", "dropped = change.replace or", "dropped =")),
    bug("the answers of a batch are delivered in another order", Records,
        ("stepwell.storage.transport.lane:Lane._deliver", "zip(entries, results, strict=True)",
         "zip(entries, reversed(results), strict=True)")),
    # Logs
    bug("an append does not look at the version", Logs,
        (f"{HEADER}.refusal", "if guard.version is not None and (", "if False and (")),
    bug("two logs are created in one place", Logs,
        (f"{HEADER}.refusal", "if guard.absent and self.visible(now):", "if False:")),
    bug("an append without an answer is made again", Logs,
        (f"{TAIL}._applied", "if unknown is not None and await self._was_applied(known, change, unknown):",
         "if False:")),
    bug("an append without an answer counts as made", Logs,
        (f"{TAIL}._applied", "unknown = unknown or error", "return True")),
    bug("the entry of another writer counts as the own one", Logs,
        (f"{TAIL}._was_applied", "return next(iter(change.parts)) in stored.parts", "return True")),
    bug("a compaction does not look for a newer one", Compactors,
        ("stepwell.log.log:_Compaction.__call__", "self.applied = known.version == self._seen",
         "self.applied = True")),
    bug("a compaction drops the entry after its last one", Logs,
        ("stepwell.log.log:_Compaction.__call__", "drop=entries(0, self._last + 1)",
         "drop=entries(0, self._last + 2)")),
    bug("a follower waits for notices only", Logs,
        ("stepwell.log.log:Log.follow", "asyncio.timeout(backoff(quiet, *POLLS))", "asyncio.timeout(None)")),
    # Timers
    bug("a timer is read early and served without the second look", Timers,
        (f"{TIMERS}:due_records", "limit=PAGE, after=last", "limit=PAGE, after=last, before=float(1 << 40)"),
        (f"{TIMERS}:due_timers", "if at <= slot.now}", "}")),
    bug("a timer is judged by the clock of its process", Timers,
        (f"{TIMERS}:due_records", "limit=PAGE, after=last",
         "limit=PAGE, after=last, before=__import__('time').time()"),
        (f"{TIMERS}:due_timers", "if at <= slot.now}", "if at <= __import__('time').time()}")),
    # Updates and the poller
    bug("a handled update is not remembered", Updates, (f"{HANDLED}.has", 'f" {token} " in self.ids', "False")),
    bug("only the newest update is remembered", Updates,
        (f"{HANDLED}.has", 'f" {token} " in self.ids', 'self.ids.endswith(f" {token} ")')),
    bug("updates are confirmed before they are kept", PollingBot,
        (f"{POLLER}._keep", "await self._inbox.keep(updates)", "pass")),
    bug("an update is finished before it is handled", PollingBot,
        (f"{POLLER}._work", "                if self._stopping.is_set() or not await self._process(unfinished):",
         '                self._inbox.finish(unfinished.update.raw["update_id"])\n'
         "                if self._stopping.is_set() or not await self._process(unfinished):")),
    bug("the answer to a handled update is not sent again", PollingBot,
        (f"{HANDLED}.calls_of", 'self.calls if self.ids.endswith(f" {token} ") else []', "[]")),
    bug("the answer of a timer is not stored before it is sent", PollingBot,
        (f"{OUTBOX}:add", "keep(slot, outbox=(*earlier, entry))", "pass")),
    bug("an outbox entry is removed before it is sent", PollingBot,
        (f"{OUTBOX}:add", "keep(slot, outbox=(*earlier, entry))",
         "keep(slot, outbox=(*earlier, (float(slot.time()), 0, text)))\n    return None"),
        (f"{OUTBOX}:_take_first", "keep(slot, outbox=(entry, *others))", "keep(slot, outbox=others)")),
    bug("an answer that Telegram has not taken is dropped", PollingBot,
        ("stepwell.telegram.receiving.poller:Poller._handle", "except TEMPORARY as error:",
         "except TEMPORARY as error:\n                return True")),
    # Turns
    bug("the intent of a tool is not stored", Agents,
        (f"{TOOLS}.call", 'if replay == "never":', "if False:")),
    bug("a tool that was interrupted runs again", Agents,
        (f"{TOOLS}.call", "(known.outcome is not None or known.unknown)", "known.outcome is not None")),
    bug("a window is closed twice: its messages stay in the queue", Agents,
        (f"{POLICY}:advanced", "waiting = table.waiting[len(chosen) :]", "waiting = table.waiting")),
    bug("the end of a turn drops what has come meanwhile", Agents,
        (f"{POLICY}:advanced", "waiting = table.waiting[len(chosen) :]", "waiting = ()")),
    bug("a message that is delivered again is taken again", Agents,
        ("stepwell.turns.admission:Admissions._store", "if update_id is not None and (", "if False and (")),
    bug("the updates of an ended turn are forgotten", Agents,
        (f"{RUNNER}._write_end", "if before.turn.ids:", "if False:")),
    bug("a turn ends without the condition that it is still its own", Agents,
        (f"{RUNNER}._write_end",
         "if table.turn is None or table.turn.id != turn.id or table.turn.runner != turn.runner:", "if False:")),
    bug("a turn sleeps although its question was answered", Agents,
        (f"{RUNNER}._suspend", "if _goes_on(turn, record.slot.time()):\n", "if False:\n")),
    bug("an answer is stored without waking its turn", Agents,
        (f"{POLICY}:with_answer", "check = now if turn.asking else turn.check", "check = turn.check"),
        (f"{POLICY}:with_answer", "answered=True, ", "")),
    bug("an answer is removed before it is sent", Agents,
        (f"{RUNNER}._deliver_one", "        await record.persist(record.slot.check)",
         "        await record.persist(record.slot.check)\n"
         "        await record.write(lambda table: table, {name: None})")),
    bug("a message that a turn has taken in stays in the queue", Agents,
        ("stepwell.turns.running.attempt:Attempt.steered", "waiting=(), window=None", "window=None")),
    bug("a turn keeps no timer for the death of its worker", Agents,
        (f"{RUNNER}._advanced", "check=now + self.turns.lease", "check=None"),
        (f"{RUNNER}._claimed", "check=slot.time() + self.turns.lease", "check=None"),
        (f"{RUNNER}.take_over", "turns.wake()", "pass")),
    # Runs
    bug("a run does not wait for its partition", Storm,
        (f"{PARTITIONS}:acquire", "    while True:\n", "    while False:\n")),
    bug("the lock of a partition is not read", Storm, (f"{PARTITIONS}:_named", "return run", "return None")),
    bug("a partition is locked without its condition", Storm,
        (f"{PARTITIONS}:_lock", "Guard(absent=True) if stored is None else Guard(version=stored.version)", "Guard()")),
    bug("a partition is not passed on", Storm,
        (f"{PARTITIONS}:release", "await promote(storage, flow, partition)", "pass"),
        (f"{PARTITIONS}:Repairs.check", "if last in self._flows and name != last:", "if False:")),
    bug("a run parks over its mail", Storm,
        (f"{JOURNAL}.park", "only_version=self.mailbox.version, ", "")),
    bug("a run keeps no timer for the death of its worker", Storm,
        (f"{JOURNAL}.watch_timer", 'return {"watch": self.now() + self._watch_for}', "return {}")),
    bug("the end of a child is not reported", Storm,
        ("stepwell.nodes.queue.children:report", 'await mail.send(storage, parent, "child", message_of)', "pass")),
)  # fmt: skip


@contextlib.contextmanager
def planted(edits: tuple[Edit, ...]) -> Iterator[None]:
    """Change the code of functions, wherever they have been imported, until the end of the block."""
    codes = _prepared(edits)
    before = {function: function.__code__ for function in codes}
    try:
        for function, code in codes.items():
            function.__code__ = code
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


@functools.cache
def _prepared(edits: tuple[Edit, ...]) -> dict[FunctionType, CodeType]:
    sources: dict[FunctionType, str] = {}
    for where, old, new in edits:
        function = _function_of(where)
        source = sources.get(function) or textwrap.dedent(inspect.getsource(function))
        if "." in where.partition(":")[2]:
            old, new = ("\n".join(map(_relative, text.split("\n"))) for text in (old, new))
        assert source.count(old) == 1, f"{where} has {source.count(old)} times {old!r}"
        sources[function] = source.replace(old, new)
    return {function: _compiled(function, source) for function, source in sources.items()}


def _relative(line: str) -> str:
    """Return a line of a method as its source has it without the indentation of the class."""
    return line.removeprefix("    ") if line.startswith("        ") else line


def _function_of(where: str) -> FunctionType:
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    function = inspect.unwrap(found)
    assert isinstance(function, FunctionType)
    return function


def _compiled(function: FunctionType, source: str) -> CodeType:
    flags = __future__.annotations.compiler_flag
    module = compile(source, inspect.getfile(function), "exec", flags=flags, dont_inherit=True)
    code: CodeType = next(
        each for each in module.co_consts if isinstance(each, CodeType) and each.co_name == function.__name__
    )
    assert code.co_freevars == function.__code__.co_freevars
    return code


def fails(bug: Bug, seed: int) -> BaseException | None:
    """Return the error of a seed with a bug."""
    with planted(bug.edits):
        return failure_of(bug.world(seed))


def search(bug: Bug, *, seeds: int = 2000, seconds: float = float("inf")) -> Found:
    """Run seeds of the world of a bug until one fails that passes without the bug."""
    # What an undisturbed run gives is kept, so it must be without the bug.
    failure_of(bug.world(0))
    began, seed = time.monotonic(), 0
    for seed in range(seeds):
        error = fails(bug, seed)
        took = time.monotonic() - began
        if error is not None and failure_of(bug.world(seed)) is None:
            return Found(seed, seed + 1, took, f"{type(error).__name__}: {' '.join(str(error).split())}")
        if took > seconds:
            break
    return Found(None, seed + 1, time.monotonic() - began, "")


def main(names: list[str]) -> int:
    """Search the bugs, print the table, and return the exit code."""
    seeds, seconds = int(os.environ.get("SEEDS") or 2000), float(os.environ.get("SECONDS") or "inf")
    print("| bug | world | seed | seeds | seconds |\n| --- | --- | --- | --- | --- |")
    missed = 0
    for bug in BUGS:
        if names and not any(name in bug.name for name in names):
            continue
        found = search(bug, seeds=seeds, seconds=seconds)
        missed += found.seed is None
        seed = "not found" if found.seed is None else found.seed
        print(f"| {bug.name} | {bug.world.__name__} | {seed} | {found.seeds} | {found.seconds:.1f} |", flush=True)
        if found.error:
            print(f"{bug.name}: {found.error:.300}", file=sys.stderr, flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
