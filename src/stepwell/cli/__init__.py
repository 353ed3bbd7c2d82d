"""The command line: ``stepwell`` and ``python -m stepwell``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import stepwell
from stepwell.cli import demo

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(prog="stepwell", description="Durable state for conversations and node flows.")
    parser.add_argument("--version", action="version", version=f"stepwell {stepwell.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    about = "chat with a registration bot that survives kill -9; without a terminal, play a scripted chat and check it"
    demo_command = commands.add_parser("demo", help=about, description=about.capitalize() + ".")
    demo_command.add_argument(
        "--storage", metavar="URL", help="where to keep the conversation (default: an SQLite file, whose path is shown)"
    )
    demo_command.add_argument("--script", action="store_true", help="play the scripted chat in a terminal too")
    options = parser.parse_args(arguments)
    try:
        return demo.run(options.storage, scripted=options.script)
    except stepwell.StepwellError as error:
        parser.exit(1, f"stepwell: {error}\n")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever was reading has gone; nothing is left to be said, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
