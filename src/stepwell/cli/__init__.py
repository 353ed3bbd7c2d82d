"""The command line: ``stepwell`` and ``python -m stepwell``."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

import stepwell
from stepwell.cli.demo import play

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(prog="stepwell", description="Durable state for conversations and node flows.")
    parser.add_argument("--version", action="version", version=f"stepwell {stepwell.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    demo = commands.add_parser("demo", help="play a conversation and show its record after each step")
    demo.add_argument("--storage", default="memory://", metavar="URL", help="where to keep it (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        return asyncio.run(play(options.storage))
    except stepwell.StepwellError as error:
        parser.exit(1, f"stepwell: {error}\n")
    except KeyboardInterrupt:
        return 130
