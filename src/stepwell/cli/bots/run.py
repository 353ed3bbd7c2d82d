"""``stepwell run bot.py``: run a bot against Telegram."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import inspect
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stepwell.botfile import defines_main, hide_own_frames, load_module, load_router, started, watched_files, workers_of
from stepwell.cli import signals
from stepwell.cli.console import tell
from stepwell.engine import when_available
from stepwell.errors import UsageError
from stepwell.fsm import Router
from stepwell.nodes import worker
from stepwell.web.listening import listen

__all__ = ["find_workers", "reload", "run", "run_webhook", "set_up_logging", "webhook_secret"]

#: The default port of a webhook.
PORT = 8080

#: Seconds between two checks of the bot's files.
CHECK_EVERY = 0.3


def run(file: str, *, storage: str | None, api: str | None, runs: bool, wait: bool, health: int | None = None) -> int:
    """Run the bot by polling until SIGTERM or Ctrl-C, and return the exit code.

    ``health``: the port of the health endpoint. ``runs``: also run the runs that its handlers submit. ``wait``: wait
    for a storage that is away at the start.
    """
    # Imported here because only these commands need the bot extra.
    from stepwell.telegram import find_token, run_polling
    from stepwell.telegram.engine import TELEGRAM, collect_less_often

    set_up_logging()
    hide_own_frames()
    path = Path(file).resolve()
    if defines_main(path):
        return _run_main(path, storage=storage, api=api)
    router = load_router(path, storage or os.environ.get("STEPWELL_STORAGE"))
    workers = find_workers(path, router) if runs else []
    token = find_token(path.parent)
    api = api or os.environ.get("BOT_API") or TELEGRAM

    async def poll() -> None:
        async with started(workers, wait_for_storage=wait):
            on_start = partial(_tell_started, router, workers, runs, "is running")
            await run_polling(
                router,
                token,
                api=api,
                on_start=on_start,
                wait_for_storage=wait,
                run_workers=runs,
                health=health,
            )

    collect_less_often()
    asyncio.run(poll())
    tell("Stopped.")
    return 0


def _run_main(path: Path, *, storage: str | None, api: str | None) -> int:
    """Run the ``main()`` of a file without a router, which finds the options and the token in the environment."""
    from stepwell.telegram import find_token

    given = {"STEPWELL_STORAGE": storage, "BOT_API": api}
    os.environ.update({name: value for name, value in given.items() if value is not None})
    # It may get its token from another place.
    with contextlib.suppress(UsageError):
        os.environ["BOT_TOKEN"] = find_token(path.parent)
    found = load_module(path).main()
    if inspect.isawaitable(found):
        with contextlib.suppress(signals.Terminated):
            signals.run(_awaited(found))
    tell("Stopped.")
    return 0


async def _awaited(found: Awaitable[object]) -> int:
    await found
    return 0


def run_webhook(
    file: str,
    *,
    storage: str | None,
    api: str | None,
    url: str,
    host: str,
    port: int | None,
    workers: int,
    runs: bool,
    wait: bool,
) -> int:
    """Register the webhook, and serve it until SIGTERM or Ctrl-C. uvicorn replaces this process."""
    from stepwell.telegram import BotClient, find_token
    from stepwell.telegram.engine import TELEGRAM, call_at_start

    set_up_logging()
    hide_own_frames()
    path = Path(file).resolve()
    storage = storage or os.environ.get("STEPWELL_STORAGE")
    api = api or os.environ.get("BOT_API") or TELEGRAM
    router = load_router(path, storage)
    fsm = router.fsm
    assert fsm is not None
    if workers > 1 and not fsm.storage.shared:
        raise UsageError("several workers need a storage that they can share; pass --storage, or --workers 1")
    token = find_token(path.parent)
    with listen(host, PORT if port is None else port, advice="choose another address with --host and --port") as server:
        # uvicorn listens again: this reports a taken port before the address is registered, and chooses a free one.
        port = server.getsockname()[1]

    async def prepare() -> None:
        async with fsm.storage:
            await fsm.prepare()

    async def register() -> dict[str, Any]:
        async with BotClient(token, api=api) as client:
            me: dict[str, Any] = await call_at_start(client, "getMe", wait=wait)
            # The workers open it only after uvicorn has started, and their errors do not end this command.
            fsm.expect_ticks()
            await when_available(prepare, fsm.storage, wait=wait)
            registered = {"url": url, "secret_token": webhook_secret(token), "allowed_updates": router.allowed_updates}
            await call_at_start(client, "setWebhook", wait=wait, **registered)
            return me

    me = asyncio.run(register())
    _tell_started(
        router, find_workers(path, router) if runs else [], runs, f"serves the webhook {url} on {host} port {port}", me
    )
    environment = {
        **os.environ,
        "STEPWELL_BOT_FILE": str(path),
        "BOT_TOKEN": token,
        "BOT_API": api,
        **({"STEPWELL_STORAGE": storage} if storage else {}),
        **({} if runs else {"STEPWELL_NO_RUNS": "1"}),
        **({} if wait else {"STEPWELL_NO_WAIT": "1"}),
    }
    arguments = [
        "stepwell.cli.bots.webhook_app", "stepwell.cli.bots.webhook_app:make_app", "--factory", "--lifespan", "on",
        "--host", host, "--port", str(port), "--workers", str(workers), "--no-access-log", "--log-level", "warning",
    ]  # fmt: skip
    os.execve(sys.executable, [sys.executable, "-m", *arguments], environment)  # noqa: S606 - this Python


def find_workers(path: Path, router: Router) -> list[worker]:
    """Return the workers for the runs that the handlers of a loaded file submit."""
    return workers_of(router, vars(sys.modules[path.stem]))


def set_up_logging() -> None:
    """Log to stderr, unless the program has set up logging."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # httpx logs a line for each request, which is too much.
    logging.getLogger("httpx").setLevel(logging.WARNING)


def webhook_secret(token: str) -> str:
    """Return the secret that Telegram sends with updates: ``WEBHOOK_SECRET``, or an HMAC of the token.

    All workers and later starts derive the same secret.
    """
    given = os.environ.get("WEBHOOK_SECRET")
    return given or hmac.new(token.encode(), b"stepwell webhook", "sha256").hexdigest()


def reload(file: str, arguments: Sequence[str]) -> int:
    """Run the command without ``--reload`` in a process, and start it again when a file beside the bot changes."""
    path = Path(file).resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = [sys.executable, "-m", "stepwell", *(each for each in arguments if each != "--reload")]
    while True:
        seen = watched_files(path)
        # Ctrl-C in the terminal reaches this process only, which lets the bot's handlers finish.
        process = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - this program itself
        try:
            while process.poll() is None and watched_files(path) == seen:
                time.sleep(CHECK_EVERY)
            if process.poll() is None:
                tell("A file changed; restarting.")
            else:
                tell(f"The bot ended with exit code {process.returncode}; waiting for a change of its files.")
                while watched_files(path) == seen:
                    time.sleep(CHECK_EVERY)
        except KeyboardInterrupt:
            return 0
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Let running handlers finish; a second Ctrl-C ends the process immediately."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait()
    except KeyboardInterrupt:
        process.kill()
        process.wait()


def _tell_started(router: Router, workers: list[worker], runs: bool, what: str, me: dict[str, Any]) -> None:
    from stepwell.telegram.engine import flows_beside

    fsm = router.fsm
    assert fsm is not None
    flows = ", ".join(sorted(fsm.flows)) or "none"
    run = [*(flow for each in workers for flow in each.flows), *(flows_beside(router) if runs else ())]
    names = ", ".join(sorted(flow._title() for flow in run))
    told = f" Runs: {names}." if names else ""
    tell(f"@{me.get('username')} {what}. Storage: {fsm.storage.location}. Flows: {flows}.{told} Ctrl-C stops it.")
