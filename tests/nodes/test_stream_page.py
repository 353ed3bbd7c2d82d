"""The pages of the docs that show a stream, in a real browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect
from starlette.responses import HTMLResponse
from starlette.routing import Route

from stepwell.web.serving import Serving
from tests.docs.page import ROOT, snippets
from tests.playground.browser import PATIENCE, launched

HOW_TO = ROOT / "docs/how-to/stream-tokens-to-a-browser.md"
STREAMS = ROOT / "docs/streams.md"
#: A worker of the page's flow, with a second step. Its node waits for a file after two of its tokens.
WORKER = """
import asyncio, os
from stepwell.nodes import Node, linear, step, worker
from stepwell.nodes.run import journal, lease

lease.LEASE, journal.WATCH = 1.0, 0.1

class Greet(Node):
    async def exec(self, prep_res):
        step().write("Go")

class Answer(Node):
    async def exec(self, prep_res):
        for token in ("down", "the"):
            step().write(token)
        while not os.path.exists("go"):
            await asyncio.sleep(0.01)
        step().write("steps")

flow = linear(Greet, Answer, name="answers", storage="sqlite:///answers.db")
asyncio.run(worker([flow]).run())
"""


def code_of(page: Path, language: str) -> str:
    return next(each.text for each in snippets(page.read_text()) if each.language == language)


@pytest.mark.parametrize("page", [HOW_TO, STREAMS], ids=lambda page: page.stem)
async def test_a_page_shows_each_value_once_if_a_worker_is_killed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "worker.py").write_text(WORKER)
    names: dict[str, Any] = {"__name__": "page"}
    exec(code_of(HOW_TO, "python"), names)
    html = f"<!DOCTYPE html><body></body><script>\n{code_of(page, 'js')}</script>"
    names["app"].router.routes.append(Route("/", lambda request: HTMLResponse(html)))
    await names["answers"].submit(flow_id="question-1", keep=60)
    serving = Serving(names["app"], name="page")
    address = f"http://127.0.0.1:{await serving.start('127.0.0.1', 0)}/"
    workers = []
    expect.set_options(timeout=PATIENCE * 1000)
    try:
        async with launched() as browser:
            shown = await browser.new_page()
            await shown.goto(address)
            workers.append(subprocess.Popen([sys.executable, "worker.py"], cwd=tmp_path))
            await expect(shown.locator("body")).to_have_text("Go down the", use_inner_text=True)
            workers[0].kill()
            (tmp_path / "go").touch()
            workers.append(subprocess.Popen([sys.executable, "worker.py"], cwd=tmp_path))
            await shown.wait_for_function("source.readyState === EventSource.CLOSED", timeout=PATIENCE * 1000)
            assert (await shown.inner_text("body")).split() == ["Go", "down", "the", "steps"]
    finally:
        for each in workers:
            each.kill()
            each.wait()
        await serving.stop()
        await names["answers"].storage.close()
