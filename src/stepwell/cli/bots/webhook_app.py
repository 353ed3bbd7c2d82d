"""The server of ``stepwell run --webhook``, and the application that each of its workers serves."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import uvicorn

from stepwell.botfile import load_router, started
from stepwell.cli.bots.run import find_workers, set_up_logging, webhook_secret
from stepwell.nodes import worker
from stepwell.telegram import Webhook, find_token, webhook
from stepwell.telegram.engine import HEALTH, Message, Receive, Send, health_of

__all__ = ["App", "main", "make_app"]


class App:
    """The webhook of a bot with its health endpoint, and the workers for the runs that its handlers submit."""

    def __init__(self, webhook: Webhook, workers: list[worker], *, wait_for_storage: bool = True) -> None:
        self._webhook = webhook
        self._workers = workers
        self._waits = wait_for_storage
        assert webhook.router.fsm is not None
        # A server that stops does not listen.
        self._health = health_of(webhook.router.fsm, lambda: False)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(HEALTH):
            status, text = self._health.respond(scope["method"], scope["path"])
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(text)),
                (b"cache-control", b"no-store"),
            ]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": text})
            return
        if scope["type"] != "lifespan":
            await self._webhook(scope, receive, send)
            return
        # It lasts until the server stops.
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(started(self._workers, wait_for_storage=self._waits))

            async def send_last(message: Message) -> None:
                if message["type"] == "lifespan.shutdown.complete":
                    # The server ends the process then, and with it whatever the workers have not finished.
                    await stack.aclose()
                await send(message)

            await self._webhook(scope, receive, send_last)


def main() -> None:
    """Run uvicorn with the arguments of this process. SIGTERM ends it with 0, as it ends a bot that polls."""
    # After its shutdown uvicorn sends the signal again, to the handler that was there before.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    uvicorn.main()


def make_app() -> App:
    """Return the application of the bot, configured by environment variables."""
    set_up_logging()
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_stop_with_parent, name="stepwell-parent", daemon=True).start()
    path = Path(os.environ["STEPWELL_BOT_FILE"])
    router = load_router(path, os.environ.get("STEPWELL_STORAGE"))
    workers = [] if "STEPWELL_NO_RUNS" in os.environ else find_workers(path, router)
    token = find_token()
    wait = "STEPWELL_NO_WAIT" not in os.environ
    app = webhook(
        router,
        secret_token=webhook_secret(token),
        token=token,
        api=os.environ["BOT_API"],
        wait_for_storage=wait,
        run_workers="STEPWELL_NO_RUNS" not in os.environ,
    )
    return App(app, workers, wait_for_storage=wait)


def _stop_with_parent() -> None:
    """Stop this worker when its parent is killed: it would occupy the port, and the next start would fail."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
