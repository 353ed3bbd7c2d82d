"""The agent of ``chat_agent.py`` as a process, and browsers at its pages."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Browser, Page

from tests.playground.browser import PATIENCE
from tests.servers.packages import lock, program
from tests.servers.process import Process, free_port
from tests.until import until

__all__ = ["STORY", "Agent", "agent_in", "bundle", "chunks_of", "opened", "said"]

HERE = Path(__file__).parent
REACT = HERE / "react"
STORY = "Once upon a time there was a well with a hundred steps."


class Agent:
    """A server with the agent. It can be killed and started again."""

    def __init__(self, folder: Path, storage: str | None) -> None:
        self.folder, self._storage = folder, storage
        self._numbers = count()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: Process | None = None
        #: Who opens pages.
        self.user = "ann"

    async def start(self) -> None:
        command = [sys.executable, str(HERE / "chat_agent.py"), str(self.port), str(self.folder)]
        self._process = Process([*command, *([self._storage] if self._storage else [])], self.folder / "log")
        await until(self._answers)

    async def _answers(self) -> bool:
        assert self._process is not None and self._process.running, (self.folder / "log").read_text()
        try:
            async with httpx.AsyncClient() as client:
                return (await client.get(self.url)).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()

    def let(self, name: str) -> None:
        """Let the turns go on that wait for a file."""
        (self.folder / name).touch()

    def renew(self) -> None:
        """Let turns wait again, and another person open pages."""
        for name in ("go", "found", "calls"):
            (self.folder / name).unlink(missing_ok=True)
        self.user = f"user{next(self._numbers)}"

    def client(self, user: str = "ann") -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"{self.url}/chat", cookies={"user": user} if user else {}, timeout=PATIENCE)


@asynccontextmanager
async def agent_in(folder: Path, storage: str | None = None) -> AsyncIterator[Agent]:
    agent = Agent(folder, storage)
    try:
        await agent.start()
        yield agent
    finally:
        agent.kill()


def said(number: str, text: str, chat: str = "main") -> dict[str, Any]:
    """Return what ``useChat`` sends."""
    message = {"id": number, "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": chat, "messages": [message], "trigger": "submit-message"}


def chunks_of(text: str) -> list[dict[str, Any]]:
    """Return the chunks of a complete UI message stream."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def bundle() -> Path:
    """Return the script of the page with useChat. Its packages are installed from npm on first use."""
    sources = [REACT / "package.json", REACT / "app.jsx"]
    mark = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()[:16]
    found = Path(sys.prefix) / "servers" / f"use-chat-{mark}.js"
    if not found.exists():
        npm = program("npm", "npm")
        with lock(), tempfile.TemporaryDirectory() as folder:
            for each in sources:
                shutil.copy(each, folder)
            install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
            esbuild = ["node_modules/.bin/esbuild", "app.jsx", "--bundle", "--format=esm", "--jsx=automatic"]
            for command in (install, [*esbuild, "--target=es2022", "--minify", "--outfile=bundle.js"]):
                subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
            found.parent.mkdir(exist_ok=True)
            shutil.move(Path(folder) / "bundle.js", found)
    return found


@asynccontextmanager
async def opened(browser: Browser, agent: Agent, path: str = "/", **options: Any) -> AsyncIterator[Page]:
    """Open a page. It must have no errors but those of lost connections."""
    context = await browser.new_context(viewport={"width": 390, "height": 780}, **options)
    context.set_default_timeout(PATIENCE * 1000)
    await context.add_cookies([{"name": "user", "value": agent.user, "url": agent.url}])
    page = await context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    await page.goto(agent.url + path)
    yield page
    await context.close()
    assert problems == []
