"""The history of a playground in a file: users, chats, messages and events, for its next start.

The file has the messages as they were sent, and records as they were stored, so only its owner may read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepwell.botapi import load_world, save_world
from stepwell.engine import quoted
from stepwell.playground.events.group import EventGroup, GroupEvent
from stepwell.playground.played import Play

__all__ = ["PlayHistory"]

logger: logging.Logger = logging.getLogger(__name__)

#: Changes with each incompatible change of the file.
FORMAT = 1
#: Seconds to collect changes before they are written.
DELAY = 0.2


class PlayHistory:
    """Loads the history of a playground from a file, and writes it after each change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = ""
        self._task: asyncio.Task[None] | None = None

    def load(self, play: Play) -> None:
        """Restore the chats. A file that cannot be read is ignored, and is replaced by the next write."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return
        try:
            _restore(play, json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            logger.warning("the history in %s cannot be read and is ignored: %r", self.path, error)

    def start(self, play: Play) -> None:
        """Write each change from now on."""
        self._task = asyncio.create_task(self._follow(play), name="stepwell-playground-history")

    async def stop(self, play: Play) -> None:
        """Write the last changes."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._write(play)

    async def _follow(self, play: Play) -> None:
        changed = play.board.watch()
        while True:
            await changed.wait()
            await asyncio.sleep(DELAY)
            changed.clear()
            await self._write(play)

    async def _write(self, play: Play) -> None:
        # Encoded here, because another thread would see changes under way.
        text = json.dumps(_state(play), ensure_ascii=False, default=repr)
        if text != self._written:
            try:
                await asyncio.to_thread(_replace, self.path, text)
            except OSError as error:
                logger.warning("the history cannot be written to %s: %s", self.path, error)
            self._written = text


def _replace(path: Path, text: str) -> None:
    """Replace a file at once, so that a killed playground leaves the old one or the new one."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)


def _state(play: Play) -> dict[str, Any]:
    groups = [asdict(group) for group in play.observer.timeline.groups]
    return {"format": FORMAT, **save_world(play.world, play.bot), "groups": groups}


def _restore(play: Play, state: dict[str, Any]) -> None:
    if state["format"] != FORMAT:
        raise ValueError(f"format {quoted(state['format'])}")
    # Built first: a damaged file must leave no half of a history.
    groups = [_group(each) for each in state["groups"]]
    load_world(play.world, play.bot, state)
    play.observer.timeline.restore(groups)


def _group(given: dict[str, Any]) -> EventGroup:
    return EventGroup(**{**given, "events": [GroupEvent(**event) for event in given["events"]]})
