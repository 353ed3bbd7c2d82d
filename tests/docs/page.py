"""One page of the docs: its snippets, and running them."""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "AGENTS.md", *ROOT.glob("docs/**/*.md")])

SNIPPET = re.compile(r"^( *)```(\w+)(?: title=\"([^\"]+)\")?( run)?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SERVERS = re.compile(r"^<!-- servers: (.*?) -->$", re.MULTILINE)
#: The addresses in pages, and the servers of the tests that take their place.
ADDRESSES = {
    "redis": re.compile(r"redis://localhost(?::6379)?(?:/0)?(\?)?"),
    "postgres": re.compile(r"postgresql://localhost/bot(\?)?"),
}
#: Seconds for one command.
PATIENCE = 120


class Snippet(NamedTuple):
    """A fenced block of a page."""

    line: int
    language: str
    #: The file that it is, if any.
    title: str
    #: Whether its commands are run.
    run: bool
    text: str


def name_of(page: Path) -> str:
    """Return the path of a page in the repository."""
    return page.relative_to(ROOT).as_posix()


def snippets(text: str) -> Iterator[Snippet]:
    """Yield the snippets of a page in order."""
    for match in SNIPPET.finditer(text):
        indent, language, title, run, body = match.groups(default="")
        lines = body.splitlines(keepends=True)
        line = text[: match.start()].count("\n") + 1
        yield Snippet(line, language, title, bool(run), "".join(each.removeprefix(indent) for each in lines))


def servers(text: str) -> set[str]:
    """Return the names of the servers that a page needs."""
    found = SERVERS.search(text)
    return set(found[1].replace(",", " ").split()) if found else set()


def localised(text: str, urls: Mapping[str, str]) -> str:
    """Put the URLs of servers of the tests in place of those in a page."""
    for name, url in urls.items():
        text = ADDRESSES[name].sub(lambda match, url=url: url + ("&" if match[1] else ""), text)  # type: ignore[misc]
    return text


def run_page(page: Path, text: str, folder: Path) -> None:
    """Run the snippets of a page in a folder, which is the working directory."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    # Another test of this process may have imported a module with the name of a file of the page.
    names = {Path(snippet.title).parts[0].removesuffix(".py") for snippet in snippets(text) if snippet.title}
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in names}
    for name in hidden:
        del sys.modules[name]
    try:
        with asyncio.Runner() as runner:
            for snippet in snippets(text):
                if snippet.title:
                    path = folder / snippet.title
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(snippet.text)
                elif snippet.language == "python":
                    _run_python(page, snippet, namespace, runner)
                elif snippet.run:
                    _run_commands(page, snippet, folder)
    finally:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "") or "").startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
        sys.modules.update(hidden)


def _run_python(page: Path, snippet: Snippet, namespace: dict[str, Any], runner: asyncio.Runner) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    # Without the __future__ import of this file.
    code = compile("\n" * snippet.line + snippet.text, str(page), "exec", flags=flags, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        runner.run(_awaited(code, namespace))
    else:
        exec(code, namespace)


async def _awaited(code: CodeType, namespace: dict[str, Any]) -> None:
    await eval(code, namespace)


def _run_commands(page: Path, snippet: Snippet, folder: Path) -> None:
    """Run the lines after ``$`` one by one, and compare what they print with the lines below them, if any."""
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    sources = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(paths),
        "PYTHONPATH": os.pathsep.join(filter(None, sources)),
        "NO_COLOR": "1",
    }
    for command, expected in commands(snippet.text):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        place = f"{page.name}:{snippet.line}: {command}"
        assert done.returncode == 0, f"{place}\n{done.stdout}"
        if expected:
            options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            same = doctest.OutputChecker().check_output(expected, done.stdout, options)
            assert same, f"{place}\nexpected:\n{expected}\nprinted:\n{done.stdout}"


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of a console snippet, each with the output that it shows."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif line.startswith("> ") and found and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", "")
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found
