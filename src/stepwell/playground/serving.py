"""An application on a socket, from ``start`` to ``stop``. The only module that knows uvicorn."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stepwell.errors import UsageError
from stepwell.extras import require

_uvicorn: Any = require("uvicorn", "playground")

__all__ = ["Serving"]


class Serving:
    """Serves one application on the running loop."""

    def __init__(self, app: Any, *, name: str) -> None:
        # No access log: every line of it would hold a token.
        config = _uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none")
        self._server = _Server(config)
        self._name = name
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; gives the port, which is a free one for 0."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host, port), family=family)
        except OSError as error:
            raise UsageError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]), name=self._name)
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.005)
        number: int = listening.getsockname()[1]
        return number

    async def stop(self) -> None:
        """Stop listening; whoever is still connected is cut off."""
        if self._task is None:
            return
        self._server.should_exit = True
        # A client that keeps its connection open must not keep us.
        self._server.force_exit = True
        await self._task


class _Server(_uvicorn.Server):  # type: ignore[misc]
    """Signals are for the program that we are a part of."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
