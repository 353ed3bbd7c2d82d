"""A progress bar: a subscriber that draws the progress of the batches of a run."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from typing import TextIO

from stepwell.nodes.events import Event

__all__ = ["ProgressBar"]

_WIDTH = 30


class ProgressBar:
    """Draw the progress of the running batch on one line of a terminal: ``run(shared, on_event=ProgressBar())``.

    On a stream that is not a terminal, write one line when a batch ends.

    :param stream: the stream to write to; by default ``sys.stderr``.
    :param interval: the least seconds between two updates of the line.

    Example::

        await linear(Read, CountWords).run({"text": "a b c"}, on_event=ProgressBar())
    """

    def __init__(self, stream: TextIO | None = None, *, interval: float = 0.1) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._interval = interval
        self._drawn_at = 0.0
        self._latest: dict[tuple[str, str], tuple[int, int | None, float]] = {}

    def __call__(self, event: Event) -> None:
        place = (event.flow_id, event.node)
        if event.kind == "node.progress" and event.done is not None:
            began = self._latest[place][2] if place in self._latest else event.at
            self._latest[place] = (event.done, event.total, began)
            if self._stream.isatty() and time.monotonic() - self._drawn_at >= self._interval:
                self._drawn_at = time.monotonic()
                self._write("\r", event, "\x1b[K")
        elif event.kind in ("node.finished", "node.failed") and place in self._latest:
            self._write("\r" if self._stream.isatty() else "", event, "\n")
            del self._latest[place]

    def _write(self, before: str, event: Event, after: str) -> None:
        done, total, began = self._latest[event.flow_id, event.node]
        seconds = event.at - began
        rate = f"  {done / seconds:,.0f}/s" if seconds > 0 else ""
        after_bar = f"{done}/{total}{rate}" if total else f"{done}{rate}"
        if event.kind == "node.failed":
            # After Ctrl-C nothing is wrong with the batch.
            stopped = isinstance(event.error, asyncio.CancelledError)
            after_bar += "  stopped" if stopped else f"  failed: {type(event.error).__name__}"
        name, bar = event.node, ""
        width = _WIDTH
        if self._stream.isatty():
            # A line that wraps cannot be redrawn, so first the bar is shortened, then the name.
            room = shutil.get_terminal_size().columns - 1 - len(after_bar) - 2
            width = max(0, min(_WIDTH, room - len(name) - 2))
            name = name if len(name) <= room else f"…{name[len(name) - max(room - 1, 0) :]}"
        if total and width:
            filled = width * done // total
            bar = f"{'█' * filled}{'░' * (width - filled)}  "
        self._stream.write(f"{before}{name}  {bar}{after_bar}{after}")
        self._stream.flush()
