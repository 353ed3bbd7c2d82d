"""The bot's process: ``python -m stepwell.playground.bot_process.runner bot.py``.

For a file with a ``router`` or ``make_router(storage)`` this module polls with that router. Any other file runs as a
program; if it ends and has defined a ``router``, this module polls with that one. ``docs/playground.md`` lists the
environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import runpy
import signal
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path
from types import ModuleType
from typing import Any

from stepwell import open_storage
from stepwell.botfile import defines_main, defines_router, hide_own_frames, load_router, started, workers_of
from stepwell.errors import UsageError
from stepwell.fsm import Router, command
from stepwell.nodes import worker
from stepwell.playground.bot_process import errors as error_reporter
from stepwell.playground.bot_process import reporter
from stepwell.playground.bot_process import runs as run_reporter
from stepwell.telegram import BotClient, SendLimits, run_polling

__all__ = ["main"]


def main() -> None:
    """Run the bot whose file is the first argument."""
    _end_with_the_playground()
    hide_own_frames()
    path = Path(sys.argv[1]).resolve()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(path.parent)
    # Python takes the bytecode of a file for current if its size and the second of its change are equal. The variable
    # is for child processes, such as the workers of a pool.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    if address := os.environ.pop("STEPWELL_PLAYGROUND", None):
        reporter.install(address)
        error_reporter.install(run_reporter.install(address))
    try:
        if defines_router(path):
            router: Router | None = load_router(path, os.environ["STEPWELL_STORAGE"])
            names = vars(sys.modules[path.stem])
        else:
            names = _run_program(path)
            if defines_main(path, as_program=True):
                found = names["main"]()
                if inspect.isawaitable(found):
                    asyncio.run(_awaited(found))
            router = _router_of(path, names)
        if router is not None:
            asyncio.run(_poll(router, workers_of(router, names)))
    except KeyboardInterrupt:
        sys.exit(130)


def _run_program(path: Path) -> dict[str, Any]:
    """Run the file as a program, and return the names that it has defined."""
    names = runpy.run_path(str(path), run_name="__main__")
    # Annotations of handlers are resolved in the main module while the bot runs.
    program = sys.modules["__main__"] = ModuleType("__main__")
    vars(program).update(names)
    return names


async def _awaited(found: Awaitable[object]) -> None:
    await found


def _router_of(path: Path, names: dict[str, Any]) -> Router | None:
    router = names.get("router")
    if not isinstance(router, Router):
        print(
            f"{path.name} has ended. stepwell play needs a file that defines router = Router(fsm) or "
            "make_router(storage), or a program that runs a bot with the Bot API at BOT_API."
        )
        return None
    if router.fsm is None:
        raise UsageError(f"the router of {path.name} has no machine; give it one with Router(fsm)")
    if not router.fsm.storage.is_open:
        # As with make_router(storage), so that the playground does not use the real bot's conversations.
        router.fsm.move_to(open_storage(os.environ["STEPWELL_STORAGE"]))
    return router


async def _poll(router: Router, workers: list[worker]) -> None:
    # No limits, unless the local Bot API has some.
    limits = SendLimits() if os.environ.pop("STEPWELL_PLAYGROUND_LIMITS", None) else None
    token, api = os.environ["BOT_TOKEN"], os.environ["BOT_API"]
    async with BotClient(token, api=api, limits=limits) as client, started(workers):
        await client.call("setMyCommands", commands=_commands(router))
        await run_polling(router, client=client)


def _commands(router: Router) -> list[dict[str, str]]:
    """Return the router's commands, each described by its handler's docstring or name."""
    found: dict[str, str] = {}
    for filters, (handler, *_), *_ in router._flat():
        about = str(handler.__doc__ or getattr(handler, "__name__", "")).strip().partition("\n")[0].replace("_", " ")
        for each in filters:
            for name in sorted(each.names) if isinstance(each, command) else ():
                found.setdefault(name, about or name)
    return [{"command": name, "description": about} for name, about in found.items()]


def _end_with_the_playground() -> None:
    """End this process and its children when the playground ends: it holds the other end of stdin and never writes."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline, 1)
        # The playground starts this process in a group of its own; another group may have processes of the user.
        if sys.platform != "win32" and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, name="stepwell-lifeline", daemon=True).start()


if __name__ == "__main__":
    main()
