"""Every Python snippet in the README and the docs runs, in order, page by page."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    text = page.read_text()
    with asyncio.Runner() as runner:
        for match in SNIPPET.finditer(text):
            line = text[: match.start()].count("\n") + 1
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            # Without the __future__ import of this file.
            code = compile("\n" * line + match[1], str(page), "exec", flags=flags, dont_inherit=True)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(_awaited(code, namespace))
            else:
                exec(code, namespace)


async def _awaited(code: CodeType, namespace: dict[str, Any]) -> None:
    await eval(code, namespace)


def test_the_readme_has_snippets() -> None:
    assert SNIPPET.search((ROOT / "README.md").read_text())


def test_every_path_in_the_architecture_page_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    paths = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_0-9]+\.(?:py|lua|sql))?)`", page))
    assert len(paths) > 30
    assert [path for path in sorted(paths) if not (ROOT / "src" / "stepwell" / path).exists()] == []
