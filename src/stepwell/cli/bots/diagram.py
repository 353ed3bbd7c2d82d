"""``stepwell diagram``: print flows as Mermaid text."""

from __future__ import annotations

import argparse

from stepwell.cli.code import flows_in
from stepwell.cli.command import Commands, add_command
from stepwell.cli.output import print_json
from stepwell.engine import quoted
from stepwell.errors import UsageError
from stepwell.fsm import FSM, Router
from stepwell.fsm.engine import diagram
from stepwell.nodes import NodeFlow

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "diagram",
        "print flows as Mermaid text, for documents and for mermaid.live",
        action=_diagram,
        example="stepwell diagram bot.py --flow order > order.mmd",
        storage=False,
    )
    parser.add_argument("code", help="a file or module with flows, or module:name")
    parser.add_argument("--flow", metavar="NAME", help="only this flow")


def _diagram(options: argparse.Namespace) -> int:
    drawn: dict[str, str] = {}
    for value in flows_in(options.code):
        machine = value.fsm if isinstance(value, Router) else value
        if isinstance(machine, FSM):
            drawn |= {name: diagram(flow) for name, flow in machine.flows.items()}
        elif isinstance(value, NodeFlow):
            drawn[value._title()] = value.diagram()
        else:
            drawn[value.flow_name] = value.diagram()
    if options.flow is not None:
        if options.flow not in drawn:
            raise UsageError(
                f"{options.code} has no flow {quoted(options.flow)}; it has {', '.join(map(quoted, drawn))}"
            )
        drawn = {options.flow: drawn[options.flow]}
    if options.json:
        print_json({"flows": drawn})
        return 0
    for n, (name, text) in enumerate(drawn.items()):
        if len(drawn) > 1:
            print(("\n" if n else "") + f"%% {name}")
        print(text, end="")
    return 0
