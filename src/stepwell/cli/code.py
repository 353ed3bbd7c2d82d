"""The user's code that a command needs: flows of nodes, and the flows of a bot."""

from __future__ import annotations

from typing import Any

from stepwell.cli.command import import_code, made_router
from stepwell.errors import UsageError
from stepwell.fsm import FSM, Router
from stepwell.nodes import NodeFlow

__all__ = ["flow_named", "load", "node_flows", "used", "used_values"]


def load(given: str) -> tuple[Any, list[str]]:
    """Import ``module:name``, ``file.py:name``, ``module`` or ``file.py``; return the module and the names given."""
    code, colon, names = given.rpartition(":")
    if not colon or names.startswith(("/", "\\")):
        # A path of Windows has a colon too.
        code, names = given, ""
    module = import_code(code)
    wanted = [name for name in names.split(",") if name]
    for name in wanted:
        if not hasattr(module, name):
            raise UsageError(f"{code} has no {name!r}")
    return module, wanted


def node_flows(given: str) -> list[NodeFlow]:
    """Return the flows of nodes that ``module:name`` names, or all flows of a module.

    A name may be a flow, or a function without arguments that returns one.
    """
    module, names = load(given)
    found: list[NodeFlow] = []
    for name in names:
        value = getattr(module, name)
        flow = value() if callable(value) and not isinstance(value, NodeFlow) else value
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
    raise UsageError(f"{given} has the flow {', '.join(repr(each._title()) for each in flows)}, not {name!r}")


def used_values(given: str, url: str) -> list[Any]:
    """Return the values that ``module:name`` names, or all values of a module.

    Those of a module include the router that its ``make_router`` makes for a storage.
    """
    module, names = load(given)
    values = [getattr(module, name) for name in names] or list(vars(module).values())
    return values if names else [*values, made_router(module, given, url)]


def used(code: list[str], url: str) -> tuple[list[FSM], list[NodeFlow]]:
    """Return the machines and node flows of files and modules; raise ``UsageError`` if one of them has none."""
    machines: dict[int, FSM] = {}
    flows: list[NodeFlow] = []
    for given in code:
        before = len(machines) + len(flows)
        for value in used_values(given, url):
            fsm = value.fsm if isinstance(value, Router) else value
            if isinstance(fsm, FSM):
                machines[id(fsm)] = fsm
            elif isinstance(value, NodeFlow):
                flows.append(value)
        if len(machines) + len(flows) == before:
            raise UsageError(f"{given} has no router, FSM or NodeFlow")
    return list(machines.values()), flows
