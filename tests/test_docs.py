"""Every Python snippet in the README and the docs runs, in order, page by page, and no local link is broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.backends.postgres import Postgres
from tests.backends.redis import Redis
from tests.docs import tree
from tests.docs.links import anchors, broken
from tests.docs.page import PAGES, ROOT, commands, localised, name_of, run_page, servers, snippets

WITH_SNIPPETS = [
    page for page in PAGES if any(each.language == "python" or each.run for each in snippets(page.read_text()))
]
#: Files with links and no snippets.
WITHOUT_SNIPPETS = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/llms.txt")]
BACKENDS = {"redis": Redis, "postgres": Postgres}


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=name_of)
def test_the_snippets_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = page.read_text()
    urls = {name: BACKENDS[name](tmp_path).place() for name in servers(text)}
    run_page(page, localised(text, urls), tmp_path)


def test_the_snippets_of_how_to_and_tutorial_pages_are_whole_files() -> None:
    """A reader saves them and runs them, so none has an ``await`` outside of a function."""
    pages = [*ROOT.glob("docs/how-to/*.md"), *ROOT.glob("docs/tutorial/*.md")]
    shown = [(page, re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)) for page in pages]
    texts = [(page, each.text) for page, text in shown for each in snippets(text) if each.language == "python"]
    assert len(texts) > 50
    for page, text in texts:
        compile(text, name_of(page), "exec")


@pytest.mark.parametrize("page", [*PAGES, *WITHOUT_SNIPPETS], ids=name_of)
def test_no_local_link_of_a_page_is_broken(page: Path) -> None:
    assert broken(page) == []


def test_every_page_is_in_a_list_of_contents() -> None:
    listed: list[Path] = []
    for page in PAGES:
        for contents in re.findall(r"^```{toctree}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            entries = [line for line in contents.splitlines() if line and not line.startswith(":")]
            found = [path.resolve() for entry in entries for path in page.parent.glob(f"{entry}.md")]
            listed += [path for path in found if path != page]
    assert [page for page in listed if listed.count(page) > 1] == []
    docs = {page for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert docs - set(listed) == {ROOT / "docs" / "index.md"}


def test_the_readme_has_snippets() -> None:
    assert ROOT / "README.md" in WITH_SNIPPETS


def test_every_path_in_the_architecture_page_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    paths = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_0-9]+\.(?:py|lua|sql))?)`", page))
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / "src" / "stepwell" / path).exists()] == []


def test_the_tree_of_the_architecture_page_fits_on_a_screen_and_is_that_of_the_packages() -> None:
    assert tree.shown() == tree.tree(), "run: python -m tests.docs.tree"
    shown = tree.shown().splitlines()
    assert len(shown) <= 70
    assert [line for line in shown if len(line) > tree.LINE] == []


PAGE = """<!-- servers: redis, postgres -->

```python title="kiosk/bot.py"
URL = "redis://localhost?durability=wait"
```

```python
from kiosk.bot import URL

assert URL == "redis://server/?prefix=x&durability=wait"
```

```console run
$ python -c 'import kiosk.bot; print("loaded", kiosk.bot.__name__)'
loaded ...bot
$ test -e kiosk/bot.py \\
>   && echo found
```

<!--
```python
print = len
```
-->
"""


def test_a_page_writes_its_files_and_runs_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert servers(PAGE) == {"redis", "postgres"}
    run_page(Path("page.md"), localised(PAGE, {"redis": "redis://server/?prefix=x"}), tmp_path)
    wrong = PAGE.replace("loaded ...bot", "loaded nothing")
    with pytest.raises(AssertionError, match=r"loaded kiosk\.bot"):
        run_page(Path("page.md"), localised(wrong, {"redis": "redis://server/?prefix=x"}), tmp_path)


def test_a_command_that_fails_fails_the_page(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"page.md:1: false"):
        run_page(Path("page.md"), "```console run\n$ false\n```\n", tmp_path)
    assert commands("$ one\n> two\nout\n$ three\n") == [("one\ntwo", "out\n"), ("three", "")]


def test_a_broken_link_or_anchor_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One `name`, two\n\n```\n# no heading\n```\n\n## Again\n\n## Again\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#one-name-two) [b](other.md#no-heading) [c](gone.md) `[d](code.md)` [e](https://x.org)"
    )
    assert anchors(tmp_path / "other.md") == {"one-name-two", "again", "again-1"}
    assert broken(page) == ["other.md#no-heading", "gone.md"]
