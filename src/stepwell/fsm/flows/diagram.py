"""Draw a flow as Mermaid text."""

from __future__ import annotations

import re

from stepwell.fsm.flows.description import FlowDescription

__all__ = ["diagram"]

# Keywords of Mermaid's state diagrams, in any case.
_SYNTAX = frozenset({
    "accdescr", "acctitle", "as", "choice", "class", "classdef", "click", "concurrent", "default", "direction", "end",
    "fork", "hide", "href", "join", "left", "note", "of", "right", "root", "scale", "state", "style",
})  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def diagram(flow: FlowDescription, current: str | None = None) -> str:
    """Return the flow as a Mermaid ``stateDiagram-v2``. The state ``current`` is coloured; it need not be declared."""
    states = [str(state) for state in flow.states]
    if current is not None and current not in states:
        states.append(str(current))
    ids = {state: _id(state, number, states) for number, state in enumerate(states)}
    lines = [f'state "{_label(state)}" as {ids[state]}' if ids[state] != state else state for state in states]
    if flow.default_state is not None:
        lines.append(f"[*] --> {ids[flow.default_state]}")
    for state, targets in flow.transitions.items():
        lines += [f"{ids[state]} --> {ids[target]}" for target in targets]
        if not targets:
            lines.append(f"{ids[state]} --> [*]")
    for state, timeout in flow.timeouts.items():
        if isinstance(timeout.then, str):
            lines.append(f"{ids[state]} --> {ids[timeout.then]} : after {timeout.seconds:g} s")
    if flow.is_open and len(flow.states) > 1:
        lines.append(f"note right of {ids[states[0]]} : every transition is allowed")
    if current is not None:
        lines.append("classDef current fill:#2563eb,stroke:#1e3a8a,color:#ffffff")
        lines.append(f"class {ids[current]} current")
    return "stateDiagram-v2\n" + "".join(f"    {line}\n" for line in lines)


def _id(state: str, number: int, states: list[str]) -> str:
    if _PLAIN.fullmatch(state) and state.lower() not in _SYNTAX:
        return state
    alias = f"state_{number}"
    while alias in states:
        alias += "_"
    return alias


def _label(state: str) -> str:
    # A quote would end the label, and # would begin an escape.
    return " ".join(state.replace("#", "#35;").replace('"', "#quot;").split())
