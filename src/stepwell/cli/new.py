"""``stepwell new``: write a small project with code, tests, pyproject, Dockerfile and README."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from stepwell.cli.command import Commands, add_command
from stepwell.cli.output import report
from stepwell.engine import quoted
from stepwell.errors import InvalidOption, UsageError

__all__ = ["add"]

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


class _Framework(NamedTuple):
    #: What the project depends on.
    requirements: tuple[str, ...]
    #: The modules of these packages.
    modules: tuple[str, ...]


_MARKDOWN = "telegramify_markdown"
#: The frameworks of agents.
_FRAMEWORKS: Final = {
    "none": _Framework(("stepwell[bot,markdown]", "openai>=2"), (_MARKDOWN, "openai")),
    "pydantic-ai": _Framework(
        ("stepwell[bot,markdown,pydantic-ai]", "openai>=2"), (_MARKDOWN, "pydantic_ai", "openai")
    ),
    "langgraph": _Framework(
        ("stepwell[bot,markdown,langgraph]", "langchain-openai>=1"), (_MARKDOWN, "langgraph", "langchain_openai")
    ),
    "openai-agents": _Framework(("stepwell[bot,markdown,openai-agents]",), (_MARKDOWN, "agents")),
}


class _Provider(NamedTuple):
    #: The name of the variable with the key.
    key: str
    #: Where it has OpenAI's API of chat completions.
    url: str
    #: The model that a new project uses.
    model: str


#: The providers of models.
_PROVIDERS: Final = {
    "openai": _Provider("OPENAI_API_KEY", "https://api.openai.com/v1", "gpt-5-mini"),
    "anthropic": _Provider("ANTHROPIC_API_KEY", "https://api.anthropic.com/v1/", "claude-sonnet-4-5"),
    "google": _Provider(
        "GEMINI_API_KEY", "https://generativelanguage.googleapis.com/v1beta/openai/", "gemini-2.5-flash"
    ),
    "openrouter": _Provider("OPENROUTER_API_KEY", "https://openrouter.ai/api/v1", "openai/gpt-5-mini"),
    # It takes any key.
    "ollama": _Provider("OLLAMA_API_KEY", "http://localhost:11434/v1", "qwen3"),
}


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
    parser.add_argument(
        "kind",
        choices=("agent", "bot", "flow"),
        help="an agent in a chat, a bot with conversations, or a flow of nodes",
    )
    parser.add_argument("name", help="the name of the project, and of the folder to create")
    parser.add_argument(
        "--framework",
        choices=tuple(_FRAMEWORKS),
        help="the framework of the agent (default: none, a loop of its own)",
    )
    parser.add_argument("--provider", choices=tuple(_PROVIDERS), help="the provider of its model (default: openai)")


def _new(options: argparse.Namespace) -> int:
    if not _NAME.fullmatch(options.name):
        raise InvalidOption(
            f"{quoted(options.name)} is not a name for a project; use lower-case letters, digits, - and _, "
            "such as my-bot"
        )
    if options.name.replace("_", "-") in ("stepwell", "openai", "langchain-openai"):
        # The project depends on this package, and pip would look for it in the project itself.
        raise InvalidOption("a project cannot have the name of the package that it uses; choose another name")
    if options.kind != "agent" and (options.framework or options.provider):
        given = "framework" if options.framework else "provider"
        raise InvalidOption(f"a {options.kind} has no {given}; use --{given} with: stepwell new agent {options.name}")
    folder = Path(options.name)
    if folder.exists():
        raise UsageError(f"{folder} exists already; choose another name")
    values = {"name": options.name}
    install = f"cd {folder}, pip install -e '.[test]', pytest"
    if options.kind == "agent":
        framework = _FRAMEWORKS[options.framework or "none"]
        provider = options.provider or "openai"
        dependencies = ", ".join(f'"{each}"' for each in framework.requirements)
        values |= {"dependencies": dependencies, "provider": provider, **_PROVIDERS[provider]._asdict()}
        is_ready = all(find_spec(each) for each in (*framework.modules, "starlette"))
        install = f"stepwell play {folder}/bot.py" if is_ready else f"{install}, stepwell play bot.py"
    written = []
    try:
        folder.mkdir()
        for template in _templates(options.kind, options.framework or "none"):
            path = folder / template.name.removesuffix(".txt")
            text = template.read_text("utf-8")
            for name, value in values.items():
                text = text.replace(f"@{name}@", value)
            path.write_text(text, "utf-8")
            written.append(str(path))
    except OSError as error:
        raise UsageError(f"cannot write {folder} ({error.strerror}); choose another folder") from error
    return report(options, {"written": written}, f"wrote {', '.join(written)}\nnext: {install}")


def _templates(kind: str, framework: str) -> Iterator[Traversable]:
    """Yield the files of a project: those of every project, those of its kind, and those of its framework."""
    root = files("stepwell.cli") / "templates"
    for folder in (root, root / kind, root / kind / framework):
        if folder.is_dir():
            yield from sorted((each for each in folder.iterdir() if each.is_file()), key=lambda each: each.name)
