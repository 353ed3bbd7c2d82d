"""``stepwell crashtest``: kill a bot or a flow at each of its steps, in a simulation."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from stepwell.cli.command import Commands, add_command
from stepwell.cli.output import print_json
from stepwell.errors import UsageError

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "crashtest",
        "kill a bot or a flow at each of its steps, and tell what a kill changes",
        action=_crashtest,
        example="stepwell crashtest bot.py --effect charge",
        storage=False,
    )
    parser.add_argument("file", nargs="?", default="bot.py", help="the bot's file (default: bot.py)")
    parser.add_argument("--flow", metavar="NAME", help="test this node flow of the file instead of its bot")
    parser.add_argument("--shared", metavar="JSON", help="the shared state with which the run of the flow begins")
    parser.add_argument(
        "--script", metavar="FILE", help="what a person says: a line for each text, or label of a button"
    )
    parser.add_argument("--messages", type=int, default=12, help="how many things people say without a script")
    parser.add_argument("--seed", type=int, default=0, help="chooses what people say")
    parser.add_argument("--most", type=int, default=500, metavar="KILLS", help="the most kills (default: 500)")
    parser.add_argument(
        "--effect",
        action="append",
        default=[],
        metavar="FUNCTION",
        help="count the calls of this function of the file, which reaches beyond the bot; may be repeated",
    )


def _crashtest(options: argparse.Namespace) -> int:
    # Imported here because only this command needs it.
    from stepwell.testing import crash_test

    script = None
    if options.script is not None:
        try:
            lines = Path(options.script).read_text("utf-8").splitlines()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"the file of --script cannot be read: {reason}") from error
        script = [line for line in map(str.strip, lines) if line]
    shared = None
    if options.shared is not None:
        try:
            shared = json.loads(options.shared)
        except ValueError as error:
            raise UsageError(f"--shared is not JSON: {error}") from error
        if not isinstance(shared, dict):
            raise UsageError("--shared is a JSON object, such as '{\"order\": 42}'")
    report = crash_test(
        options.file,
        script=script,
        messages=options.messages,
        seed=options.seed,
        most=options.most,
        effects=options.effect,
        flow=options.flow,
        shared=shared,
    )
    if options.json:
        faults = [
            {"kind": each.kind, "what": each.what, "line": each.line, "kills": each.kills} for each in report.faults
        ]
        print_json(
            {
                "steps": report.steps,
                "kills": report.kills,
                "seed": report.seed,
                "script": report.script,
                "faults": faults,
            }
        )
    else:
        print(report)
    return 1 if report.faults else 0
