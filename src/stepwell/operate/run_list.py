"""Lists of runs by status, flow, age, tags and the values of their shared state."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args

from stepwell import Storage
from stepwell.engine import RUNS, Address, Entry, Query, Stored, decode_key, encode_namespace, quoted
from stepwell.errors import InvalidOption, StoredDataError
from stepwell.nodes import Run
from stepwell.nodes.engine import FINAL, Status, run_of
from stepwell.operate.record import version_text
from stepwell.operate.runs import masked_run, secrets_of
from stepwell.operate.search import matches, pages, written_before
from stepwell.options import check_choice

__all__ = [
    "OPEN",
    "DamagedRun",
    "ListedRun",
    "NodeCount",
    "RunCount",
    "RunFilter",
    "check_status",
    "listed_runs",
    "node_counts",
    "run_counts",
]

#: The statuses of runs that have not ended.
OPEN: Final = tuple(status for status in get_args(Status) if status not in FINAL)
#: The statuses of runs that are at a node.
AT_NODES: Final = ("running", "parked", "sleeping", "paused", "failed", "stuck")


class DamagedRun(NamedTuple):
    """A run of a list that cannot be read."""

    flow_id: str
    reason: str


class ListedRun(NamedTuple):
    """One run of a list."""

    run: Run | DamagedRun
    #: How many runs were read so far, with those that do not match.
    looked: int
    #: The list continues behind this run: ``listed_runs(after=...)``.
    cursor: str
    #: The version of its record, which guards an edit.
    version: str


class RunCount(NamedTuple):
    """The runs of a flow with one status."""

    flow: str
    status: str
    runs: int
    #: The time of the oldest last write among them; ``None`` if it is not known.
    oldest: float | None
    #: Whether there are more than ``runs``.
    more: bool = False


class NodeCount(NamedTuple):
    """The runs of a flow that are at one node with one status."""

    flow: str
    #: The path of the node.
    node: str
    status: str
    runs: int
    #: The time of the oldest last write among them.
    oldest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list. Status and tag are found by an index; everything else reads each run."""

    statuses: tuple[str, ...] = OPEN
    flow: str | None = None
    #: The path of the node that they are at, or of a node around it.
    node: str | None = None
    partition: str | None = None
    #: Child runs have the tag ``parent:ID``.
    tags: tuple[str, ...] = ()
    #: Only runs that were last written at least this many seconds ago.
    older_than: float | None = None
    #: Fields of the shared state and their values as JSON of the codec. A name may be a path: ``address.city``.
    fields: Mapping[str, Any] | None = None
    #: Whether fields are compared as they are shown, with secrets masked. A path to a secret is then refused.
    masked: bool = False


def check_status(status: str) -> str:
    """Return a status; raise ``InvalidOption`` if there is no such status."""
    check_choice(status, get_args(Status), f"{{}} is not a status; choose one of {', '.join(get_args(Status))}")
    return status


async def listed_runs(
    storage: Storage,
    wanted: RunFilter,
    *,
    after: str | None = None,
    on_look: Callable[[int], None] | None = None,
    on_page: Callable[[str], None] | None = None,
) -> AsyncIterator[ListedRun]:
    """Yield the runs that match a filter. Stop the iteration to stop the search.

    ``after``: the cursor of a run that was listed before. ``on_look`` is called with the number of runs read, after
    each page; before that, ``on_page`` is called with the cursor of the last run.
    """
    # A record that has no position yet has no status in the index.
    sections = [*wanted.statuses, ""]
    status, key = sections[0], None
    if after is not None:
        status, _, key = after.partition("/")
        if status not in sections or not key:
            raise InvalidOption(f"{quoted(after)} is not a position in this list; start from its beginning")
    before = written_before(storage, wanted.older_than)
    hidden: Collection[str] | None = () if wanted.masked else None
    namespace, tag = encode_namespace(RUNS, storage.limits), wanted.tags[0] if wanted.tags else None
    seen: set[str] = set()
    looked = 0
    for section in sections[sections.index(status) :]:
        query = Query(namespace, state=section or None, tag=tag, may_lag=True)
        async for page in pages(storage, query, key):
            for address, stored in page:
                if address.key in seen:
                    # Its status has changed meanwhile.
                    continue
                seen.add(address.key)
                looked += 1
                if matches(
                    storage, address, stored, tags=wanted.tags, before=before, fields=wanted.fields, hidden=hidden
                ):
                    run = _read(storage, address, stored)
                    if isinstance(run, DamagedRun) or (run is not None and _is_wanted(run, wanted)):
                        yield ListedRun(run, looked, f"{section}/{address.key}", version_text(stored.version))
            if on_page is not None and page:
                on_page(f"{section}/{page[-1][0].key}")
            if on_look is not None:
                on_look(looked)
        key = None


def _is_wanted(run: Run, wanted: RunFilter) -> bool:
    if run.status not in wanted.statuses or wanted.flow not in (None, run.flow):
        return False
    if wanted.partition is not None and wanted.partition not in (run.partition, str(run.partition)):
        return False
    return wanted.node is None or (run.node is not None and f"{run.node}/".startswith(f"{wanted.node}/"))


def _read(storage: Storage, address: Address, stored: Stored) -> Run | DamagedRun | None:
    try:
        run = run_of(Entry(address, stored, storage.seal(address)))
    except StoredDataError as error:
        return DamagedRun(str(decode_key(address.key)), str(error))
    if run is None or not (run.errors or run.reason):
        return run
    return masked_run(run, secrets_of(storage, address, stored))


async def run_counts(storage: Storage, *, limit: int) -> tuple[list[RunCount], bool]:
    """Count the runs by flow and status, and return whether all were counted. It reads up to ``limit`` runs."""
    found: Counter[tuple[str, str]] = Counter()
    oldest: dict[tuple[str, str], float] = {}
    complete = True
    async for run, looked, *_ in listed_runs(storage, RunFilter(statuses=get_args(Status))):
        if looked > limit:
            complete = False
            break
        at = ("", "unreadable") if isinstance(run, DamagedRun) else (run.flow, run.status)
        written = 0.0 if isinstance(run, DamagedRun) else run.updated_at
        found[at] += 1
        oldest[at] = min(oldest.get(at, written), written)
    return [RunCount(*at, found[at], oldest[at]) for at in sorted(found)], complete


async def node_counts(storage: Storage, *, limit: int) -> tuple[list[NodeCount], bool]:
    """Count the runs by flow, node and status, and return whether all were counted.

    No index has the node of a run, so it reads up to ``limit`` runs of each status.
    """
    found: dict[tuple[str, str, str], NodeCount] = {}
    complete = True
    for status in AT_NODES:
        async for run, looked, *_ in listed_runs(storage, RunFilter(statuses=(status,))):
            if looked > limit:
                complete = False
                break
            if isinstance(run, DamagedRun) or run.node is None:
                continue
            at = run.flow, run.node, run.status
            known = found.get(at, NodeCount(*at, 0, run.updated_at))
            found[at] = NodeCount(*at, known.runs + 1, min(known.oldest, run.updated_at))
    return [found[at] for at in sorted(found)], complete
