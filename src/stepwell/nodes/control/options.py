"""The options of the calls on a flow: their checks, and the storage that a call uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from stepwell._secrets import quoted
from stepwell.codec import check_name
from stepwell.errors import InvalidOption, UsageError
from stepwell.options import check, check_choice, check_instance
from stepwell.storage.state_storage import default_storage, is_configured
from stepwell.storage.urls import as_storage

if TYPE_CHECKING:
    from stepwell.nodes.graph.base import BaseFlow
    from stepwell.nodes.run.table import Retention
    from stepwell.storage import Storage

__all__ = [
    "IfExists",
    "OnCancel",
    "OnPark",
    "check_choices",
    "check_options",
    "check_unkept",
    "checked_params",
    "checked_retention",
    "checked_shared",
    "checked_tags",
    "common_storage",
    "storage_for",
    "storage_of",
]

#: What to do if a run of the given id exists.
IfExists = Literal["raise", "resume"]
#: What to do with a durable run whose call is cancelled: let a worker continue it, or cancel it.
OnCancel = Literal["interrupt", "cancel"]
#: What a call does when its run parks: raise ``Parked``, or return a handle.
OnPark = Literal["raise", "return"]
#: The most tags of a run.
MOST_TAGS = 20


@asynccontextmanager
async def storage_for(flow: BaseFlow, storage: Storage | str | None) -> AsyncIterator[Storage]:
    """Yield the storage for one call, and close it at the end if it was given as a URL.

    Raise ``InvalidOption`` if there is none, because a run in the memory of this process would be lost with it.
    """
    if storage is None and flow.storage is None and not is_configured():
        raise InvalidOption(
            f"flow {quoted(flow._title())} has no storage: give NodeFlow(..., storage=...), "
            "stepwell.configure(storage=...), or storage=... with this call"
        )
    found = storage_of(flow, storage)
    try:
        yield found
    finally:
        if isinstance(storage, str):
            await found.close()


def common_storage(flows: Sequence[BaseFlow], storage: Storage | str | None, user: str) -> Storage:
    """Return the storage for the runs of several flows: the given one, else that of the flows.

    Raises ``InvalidOption`` if the flows have different storages. ``user`` is the class that runs them.
    """
    found = storage_of(flows[0], storage)
    if storage is None and not all(_have_one_storage(flows[0], flow) for flow in flows):
        raise InvalidOption(
            f"these flows have different storages: give them one Storage object, give {user}(..., storage=...), or "
            f"make a {user} for each storage"
        )
    return found


def _have_one_storage(one: BaseFlow, other: BaseFlow) -> bool:
    first, second = storage_of(one, None), storage_of(other, None)
    if first is second:
        return True
    # Each memory:// is a storage of its own, and its wake_key shows it.
    return one._storage_url is not None and one._storage_url == other._storage_url and first.wake_key == second.wake_key


def storage_of(flow: BaseFlow, storage: Storage | str | None) -> Storage:
    """Return the given storage, else that of the flow, else the configured one."""
    return as_storage(storage) if storage is not None else flow.storage or default_storage()


def check_choices(if_exists: IfExists, on_cancel: OnCancel, on_park: OnPark) -> None:
    """Raise ``InvalidOption`` if an option of ``run`` is not one of its choices."""
    check_choice(if_exists, ("raise", "resume"), "if_exists={}: choose 'raise' or 'resume'")
    check_choice(on_cancel, ("interrupt", "cancel"), "on_cancel={}: choose 'interrupt' or 'cancel'")
    check_choice(on_park, ("raise", "return"), "on_park={}: choose 'raise' or 'return'")


def check_options(method: str, options: Mapping[str, Any], known: type) -> None:
    """Raise ``TypeError`` if a method got an option that is not in the ``TypedDict`` of its options."""
    unknown = options.keys() - known.__annotations__.keys()
    if unknown:
        raise TypeError(f"{method}() got an unexpected keyword argument {min(unknown)!r}")


def check_unkept(if_exists: IfExists, keep: Retention | None, on_cancel: OnCancel, on_park: OnPark) -> None:
    """Raise ``InvalidOption`` if a run without a storage has an option that needs one."""
    if if_exists != "raise" or keep or on_cancel != "interrupt" or on_park != "raise":
        options = {"keep": keep or None, "on_cancel": on_cancel, "on_park": on_park, "if_exists": if_exists}
        defaults = (None, "interrupt", "raise", "raise")
        changed = next(name for name, usual in zip(options, defaults, strict=True) if options[name] != usual)
        raise InvalidOption(f"{changed}={quoted(options[changed])} needs a storage: run(shared, storage=...)")


def checked_retention(keep: Retention) -> Retention:
    """Return ``keep``; raise ``InvalidOption`` unless it is a bool or a number of seconds."""
    if isinstance(keep, bool) or (isinstance(keep, int | float) and 0 < keep < float("inf")):
        return keep
    raise InvalidOption(f"keep={quoted(keep)}: give True, False or a number of seconds above 0")


def checked_params(params: Mapping[str, Any] | None, *, stored: bool = True) -> Mapping[str, Any]:
    """Return the params of a run; raise ``InvalidOption`` unless they are a dict.

    ``stored``: the run is durable, and its params must have names as keys.
    """
    if params is None:
        return {}
    check_instance(params, Mapping, "params={}: give a dict, or None")
    if stored and (wrong := [name for name in params if not isinstance(name, str)]):
        raise InvalidOption(f"params has the key {quoted(wrong[0])}: give names as keys")
    return params


def checked_tags(tags: Mapping[str, str | int] | None) -> Mapping[str, str | int]:
    """Return tags as they were given; raise ``InvalidOption`` unless they are names with texts or whole numbers."""
    check_instance(tags, Mapping, "tags={}: give a dict such as {{'customer': 7}}, or None", optional=True)
    if not tags:
        return {}
    check(len(tags) <= MOST_TAGS, f"tags has {{}} entries: give at most {MOST_TAGS}", len(tags))
    for name, value in tags.items():
        # A tag of a child run is parent:ID.
        valid = isinstance(name, str) and name and "=" not in name and ":" not in name
        check(valid, "tags has the name {}: give a text without '=' and ':'", name)
        check(type(value) is int or isinstance(value, str), "tags has the value {}: give a str or an int", value)
        check_name("the tag", f"{name}={value}")
    return tags


def checked_shared(shared: object) -> dict[str, Any]:
    """Return the shared state of a run, a new one for ``None``; raise ``UsageError`` unless it is a dict."""
    if shared is None:
        return {}
    if not isinstance(shared, dict):
        raise UsageError(f"the shared state must be a dict, not {type(shared).__name__}")
    return shared
