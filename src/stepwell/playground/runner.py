"""The bot's process: ``python -m stepwell.playground.runner bot.py``.

For a file with ``make_router(storage)`` this module polls with that router. Any other file runs as a program; if it
ends and has defined a ``router``, this module polls with that one. ``docs/playground.md`` lists the environment.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib.util
import json
import os
import runpy
import sys
import threading
import traceback
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

from stepwell import open_storage
from stepwell.errors import UsageError
from stepwell.fsm import Router, Update, command
from stepwell.playground import reporter, run_reporter

__all__ = ["load_router", "main", "makes_router"]

#: Seconds that one getUpdates request waits.
POLL = 20


def main() -> None:
    """Run the bot whose file is the first argument."""
    _end_with_the_playground()
    path = Path(sys.argv[1]).resolve()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(path.parent)
    if address := os.environ.pop("STEPWELL_PLAYGROUND", None):
        reporter.install(address)
        run_reporter.install(address)
    try:
        if makes_router(path):
            asyncio.run(_poll(load_router(path, os.environ["STEPWELL_STORAGE"])))
        else:
            router = _run_program(path)
            if router is not None:
                asyncio.run(_poll(router))
    except KeyboardInterrupt:
        sys.exit(130)


def makes_router(path: Path) -> bool:
    """Return whether the file defines a function ``make_router``."""
    body = ast.parse(path.read_bytes(), str(path)).body
    return any(isinstance(each, ast.FunctionDef) and each.name == "make_router" for each in body)


def load_router(path: Path, storage: str) -> Router:
    """Import the file, and return its ``make_router(storage)``."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    router = module.make_router(storage)
    if not isinstance(router, Router) or router.fsm is None:
        raise UsageError(f"make_router(storage) of {path.name} must return a Router with a machine, got {router!r}")
    return router


def _run_program(path: Path) -> Router | None:
    """Run the file as a program, and return the router that it has defined, if any."""
    names = runpy.run_path(str(path), run_name="__main__")
    # Annotations of handlers are resolved in the main module while the bot runs.
    program = sys.modules["__main__"] = ModuleType("__main__")
    vars(program).update(names)
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


async def _poll(router: Router) -> None:
    fsm = router.fsm
    assert fsm is not None
    if fsm.send is None:
        # For the answers of timers.
        fsm.send = _send
    async with fsm:
        await _call("setMyCommands", commands=_commands(router))
        offset = 0
        while True:
            updates = await _call("getUpdates", offset=offset, timeout=POLL)
            chats: dict[Any, list[dict[str, Any]]] = {}
            for update in updates:
                chat = Update.of(update).chat
                chats.setdefault(chat and chat.id, []).append(update)
            await asyncio.gather(*(_handle(router, each) for each in chats.values()))
            if updates:
                # Confirmed only now, so that a killed bot gets unfinished updates again.
                offset = max(offset, *(update["update_id"] + 1 for update in updates))


async def _handle(router: Router, updates: list[dict[str, Any]]) -> None:
    for update in updates:
        try:
            calls = await router.handle(update)
            if router.send is None:
                for call in calls:
                    await _send(call)
        except Exception:  # noqa: BLE001
            # An error with one update must not stop the bot.
            traceback.print_exc()


async def _send(call: dict[str, Any]) -> Any:
    return await _call(**call)


async def _call(method: str, **params: Any) -> Any:
    return await asyncio.to_thread(_request, method, params)


def _request(method: str, params: dict[str, Any]) -> Any:
    url = f"{os.environ['BOT_API']}/bot{os.environ['BOT_TOKEN']}/{method}"
    body = json.dumps(params).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - the playground's own address
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=POLL + 10) as response:
            return json.load(response)["result"]
    except urllib.error.HTTPError as error:
        with error:
            why = json.load(error)["description"]
    raise UsageError(f"{method}: {why}")


def _commands(router: Router) -> list[dict[str, str]]:
    """Return the router's commands, each described by its handler's docstring or name."""
    found: dict[str, str] = {}
    for filters, handler in router._flat():
        about = str(handler.__doc__ or getattr(handler, "__name__", "")).strip().partition("\n")[0].replace("_", " ")
        for each in filters:
            for name in sorted(each.names) if isinstance(each, command) else ():
                found.setdefault(name, about or name)
    return [{"command": name, "description": about} for name, about in found.items()]


def _end_with_the_playground() -> None:
    """End this process when the playground ends: it holds the other end of stdin and never writes."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait, name="stepwell-lifeline", daemon=True).start()


if __name__ == "__main__":
    main()
