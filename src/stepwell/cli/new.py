"""``stepwell new``: write a small project with code, tests, pyproject, Dockerfile and README."""

from __future__ import annotations

import argparse
import re
from importlib.resources import files
from pathlib import Path

from stepwell.cli.command import Commands, add_command
from stepwell.cli.output import report
from stepwell.engine import quoted
from stepwell.errors import InvalidOption, UsageError

__all__ = ["add"]

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "new",
        "write a small project: code, test, pyproject.toml, Dockerfile and README",
        action=_new,
        example="stepwell new bot shop",
        storage=False,
    )
    parser.add_argument("kind", choices=("bot", "flow"), help="a Telegram bot, or a flow of nodes")
    parser.add_argument("name", help="the name of the project, and of the folder to create")


def _new(options: argparse.Namespace) -> int:
    if not _NAME.fullmatch(options.name):
        raise InvalidOption(
            f"{quoted(options.name)} is not a name for a project; use lower-case letters, digits, - and _, "
            "such as my-bot"
        )
    if options.name.replace("_", "-") == "stepwell":
        # The project depends on this package, and pip would look for it in the project itself.
        raise InvalidOption("a project cannot have the name of the package that it uses; choose another name")
    folder = Path(options.name)
    if folder.exists():
        raise UsageError(f"{folder} exists already; choose another name")
    templates = files("stepwell.cli") / "templates" / options.kind
    written = []
    try:
        folder.mkdir()
        for template in sorted(templates.iterdir(), key=lambda each: each.name):
            path = folder / template.name.removesuffix(".txt")
            path.write_text(template.read_text("utf-8").replace("@name@", options.name), "utf-8")
            written.append(str(path))
    except OSError as error:
        raise UsageError(f"cannot write {folder} ({error.strerror}); choose another folder") from error
    text = f"wrote {', '.join(written)}\nnext: cd {folder}, pip install -e '.[test]', pytest"
    return report(options, {"written": written}, text)
