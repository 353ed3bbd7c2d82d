"""What ``submit`` does if a run of its id exists: return it, refuse, give it other data, or submit it again."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from stepwell.codec import decode_key
from stepwell.codec.large import open_data
from stepwell.errors import RunExists, UnknownRun
from stepwell.nodes.run.reading import Perform, ReadRun, read_known_run
from stepwell.nodes.run.table import ENDED, FINAL, PARAMS

if TYPE_CHECKING:
    from stepwell.nodes.queue.submission import Submission
    from stepwell.record import Address
    from stepwell.storage import Storage

__all__ = ["Act", "act_on", "digest_of", "is_waiting", "read_existing"]

#: What to do with a run that exists. ``next``: leave it alone, and submit a run of another id.
Act = Literal["return", "replace", "restart", "next"]


def digest_of(fields: Mapping[str, str], params: str) -> str:
    """Return a short digest of the data that a run is submitted with, given as sealed texts."""
    digest = blake2b(digest_size=8)
    for name in sorted(fields):
        digest.update(f"{name}\n{fields[name]}\n".encode("utf-8", "surrogatepass"))
    digest.update(params.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


async def read_existing(storage: Storage, address: Address, flow: str, perform: Perform) -> ReadRun | None:
    """Return the run of an id, with its parts if it has not started; ``None`` if it is gone.

    Raises ``RunExists`` if the record is no run, or one of another flow.
    """
    flow_id = str(decode_key(address.key))
    try:
        run = await read_known_run(storage, address, perform=perform)
        if is_waiting(run):
            # It has no other parts than its params and its mail.
            run = await read_known_run(storage, address, parts=True, perform=perform)
    except UnknownRun as unknown:
        if unknown.state_only:
            raise RunExists(flow_id, state_only=True) from unknown
        return None
    if run.place.flow != flow:
        raise RunExists(flow_id, flow=run.place.flow)
    return run


def is_waiting(run: ReadRun) -> bool:
    """Return whether a run was submitted and has never started."""
    return run.table["status"] == "queued" and "before" not in run.table


async def act_on(storage: Storage, run: ReadRun, how: Submission, shared: Mapping[Any, Any], *, digest: str) -> Act:
    """Return what to do with a run that exists; raise ``RunExists`` if it must not be touched.

    ``digest`` is that of the new data.
    """
    status, flow_id = run.table["status"], str(decode_key(run.address.key))
    if how.debounce is not None:
        return "replace" if is_waiting(run) else "restart" if status in FINAL else "next"
    match how.on_exists:
        case "return":
            return "return"
        case "replace" if is_waiting(run):
            return "replace"
        case "restart" if status in ENDED:
            return "restart"
        case "raise" | "replace":
            raise RunExists(flow_id, status=status, on_exists=how.on_exists)
    if run.table.get("input", digest) == digest:
        return "return"
    if not is_waiting(run):
        raise RunExists(flow_id, status=status, differs=())
    # The same values may have other texts: the order of a dict is a part of its text.
    differs = await _differences(storage, run, how, shared)
    if differs:
        raise RunExists(flow_id, status=status, differs=differs)
    return "return"


async def _differences(storage: Storage, run: ReadRun, how: Submission, shared: Mapping[Any, Any]) -> list[str]:
    """Return the names of the fields whose values differ, and ``params`` if these differ."""
    seal = storage.seal(run.address)
    before = await open_data(seal, run.stored.fields)
    differs = [str(name) for name in {**before, **shared} if name not in before or name not in shared]
    differs += [str(name) for name in shared if name in before and before[name] != shared[name]]
    text = (run.stored.parts or {}).get(PARAMS)
    params = {} if text is None else seal.value("p", PARAMS, text)
    return differs if params == dict(how.params) else [*differs, "params"]
