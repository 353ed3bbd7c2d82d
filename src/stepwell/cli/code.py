"""The user's code that a command needs: flows of nodes, and the flows of a bot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from stepwell.botfile import file_beside, import_code
from stepwell.engine import quoted
from stepwell.errors import StepwellError, UsageError
from stepwell.fsm import FSM, Flow, Router
from stepwell.nodes import NodeFlow
from stepwell.turns import Turns

__all__ = ["flow_named", "flows_in", "import_types", "load", "node_flows", "used", "used_values"]


def import_types(code: Iterable[str]) -> None:
    """Import files and modules, so that their stored types and the secret fields of their flows are known."""
    for given in code:
        # The machine of the router knows the type of its profiles.
        _made_router(_import_code(given), given, "memory://")


def _import_code(given: str) -> ModuleType:
    """Import a file or a module; raise ``UsageError`` if that fails."""
    try:
        return import_code(given)
    except StepwellError:
        raise
    except Exception as error:
        raise UsageError(f"cannot import {given}: {type(error).__name__}: {error}") from error


def _made_router(module: ModuleType, given: str, url: str | None) -> Any:
    """Return what ``make_router`` of a module makes for a storage; ``None`` if the module has no such function.

    Without a storage it gets the one that ``stepwell run`` gives it.
    """
    make = getattr(module, "make_router", None)
    if not callable(make):
        return None
    return _called(make, f"make_router() of {given}", url or file_beside(Path(str(module.__file__))))


def _called(function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """Call a function of the user; raise ``UsageError`` if that fails."""
    try:
        return function(*arguments)
    except StepwellError:
        raise
    except Exception as error:
        raise UsageError(f"{name} failed: {type(error).__name__}: {error}") from error


def load(given: str) -> tuple[Any, list[str]]:
    """Import ``module:name``, ``file.py:name``, ``module`` or ``file.py``; return the module and the names given."""
    code, colon, names = given.rpartition(":")
    if not colon or names.startswith(("/", "\\")):
        # A path of Windows has a colon too.
        code, names = given, ""
    module = _import_code(code)
    wanted = [name for name in names.split(",") if name]
    for name in wanted:
        if not hasattr(module, name):
            raise UsageError(f"{code} has no {quoted(name)}")
    return module, wanted


def node_flows(given: str) -> list[NodeFlow]:
    """Return the flows of nodes that ``module:name`` names, or all flows of a module.

    A name may be a flow, or a function without arguments that returns one.
    """
    module, names = load(given)
    found: list[NodeFlow] = []
    for name in names:
        value = getattr(module, name)
        is_function = callable(value) and not isinstance(value, NodeFlow)
        flow = _called(value, f"{name}() of {given}") if is_function else value
        if not isinstance(flow, NodeFlow):
            raise UsageError(f"{given}: {name} is a {type(flow).__name__}, not a NodeFlow")
        found.append(flow)
    if not names:
        found = [each for each in vars(module).values() if isinstance(each, NodeFlow)]
        if not found:
            raise UsageError(f"{given} has no NodeFlow; name a flow, or a function that makes one: {given}:make_flow")
    return found


def flow_named(given: str, name: str) -> NodeFlow:
    """Return the flow of this name in a module; raise ``UsageError`` if there is none."""
    flows = node_flows(given)
    for flow in flows:
        if flow._title() == name:
            return flow
    raise UsageError(f"{given} has the flow {', '.join(repr(each._title()) for each in flows)}, not {quoted(name)}")


def used_values(given: str, url: str | None) -> list[Any]:
    """Return the values that ``module:name`` names, or all values of a module.

    Those of a module include the router that its ``make_router`` makes for a storage.
    """
    module, names = load(given)
    values = [getattr(module, name) for name in names] or list(vars(module).values())
    return values if names else [*values, _made_router(module, given, url)]


def flows_in(given: str, url: str | None = "memory://") -> list[Any]:
    """Return the flows, node flows, machines and routers that ``module:name`` names, or all of a file or module.

    ``url`` is the storage for ``make_router``, as for ``used``.
    """
    values = used_values(given, url)
    each = [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]
    found = [value for value in each if _is_flow(value)]
    if not found:
        raise UsageError(f"{given} has no flows; give a file with a Flow, a router, an FSM or a NodeFlow")
    return found


def _is_flow(value: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, Flow) and "__flow__" in vars(value)
    return isinstance(value, NodeFlow | FSM) or (isinstance(value, Router) and value.fsm is not None)


def used(code: list[str], url: str | None) -> tuple[list[FSM], list[NodeFlow]]:
    """Return the machines and node flows of files and modules; raise ``UsageError`` if one of them has none.

    ``url`` is the storage for ``make_router``; without it, the one that ``stepwell run`` gives it.
    """
    machines: dict[int, FSM] = {}
    flows: list[NodeFlow] = []
    for given in code:
        before = len(machines) + len(flows)
        for value in used_values(given, url):
            value = value.as_router() if isinstance(value, Turns) else value  # noqa: PLW2901
            fsm = value.fsm if isinstance(value, Router) else value
            if isinstance(fsm, FSM):
                machines[id(fsm)] = fsm
            elif isinstance(value, NodeFlow):
                flows.append(value)
        if len(machines) + len(flows) == before:
            raise UsageError(f"{given} has no router, FSM or NodeFlow")
    return list(machines.values()), flows
