"""The bot in a separate process, which the script can kill."""

from __future__ import annotations

import multiprocessing
from typing import Any

from stepwell import StepwellError
from stepwell.cli.demo.bot import make_router

__all__ = ["DemoProcess", "serve"]


class DemoProcess:
    """A process that handles one update after the other."""

    def __init__(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._updates, theirs = context.Pipe()
        # Daemonic, so that it ends with the script.
        self._process = context.Process(target=serve, args=(url, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.pid: int | None = self._process.pid

    def handle(self, update: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the bot's calls for an update."""
        try:
            self._updates.send(update)
            calls: list[dict[str, Any]] = self._updates.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise StepwellError(f"the bot's process {self.pid} ended with exit code {self._process.exitcode}") from None
        return calls

    def kill(self) -> int | None:
        """Kill the process without cleanup, and return its id."""
        self._process.kill()
        self._process.join()
        self._updates.close()
        return self.pid


def serve(url: str, updates: Any) -> None:
    """Handle updates from a pipe; runs in the process."""
    router = make_router(url)
    while True:
        updates.send(router.handle_sync(updates.recv()))
