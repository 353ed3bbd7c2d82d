"""``stepwell play bot.py``: run a bot in the playground."""

from __future__ import annotations

import asyncio
import contextlib
import os
from hashlib import sha256
from pathlib import Path

from stepwell.cli import signals
from stepwell.cli.console import tell
from stepwell.cli.storage_url import check_storage, history_path, place_of, state_url

__all__ = ["run"]


def run(file: str, *, storage: str | None, host: str, port: int | None, hosts: tuple[str, ...], limits: bool) -> int:
    """Serve until Ctrl-C, and return the exit code."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(file, storage, host, port, hosts, limits=limits))
    print()
    tell("Bye.")
    return 0


def _name_of(file: str) -> str:
    """Return a name for the bot in a file, unique by path because many bots are called bot.py."""
    path = Path(file).resolve()
    return f"play-{path.stem}-{sha256(str(path).encode()).hexdigest()[:8]}"


async def _serve(
    file: str, storage: str | None, host: str, port: int | None, hosts: tuple[str, ...], *, limits: bool
) -> None:
    # Imported here because only this command needs the playground extra.
    from stepwell.playground.play import Playground

    storage = storage or os.environ.get("STEPWELL_STORAGE") or state_url(_name_of(file))
    await check_storage(storage)
    place = place_of(storage)
    async with Playground(
        file,
        storage=storage,
        place=place,
        host=host,
        port=port,
        hosts=hosts,
        limits=limits,
        history=history_path(_name_of(file), storage),
        output=lambda line: print(line, flush=True),
        new_link=lambda url: print(f"The link was used. This one opens another browser:\n\n  {url}\n", flush=True),
    ) as play:
        tell(f"Running {file}; it restarts when its file changes. Its storage (STEPWELL_STORAGE) is {place}.")
        print(f"\n  {play.url}\n", flush=True)
        tell("Open this link; it works in one browser. Ctrl-C stops the playground. Output of the bot:")
        await signals.stopped()
