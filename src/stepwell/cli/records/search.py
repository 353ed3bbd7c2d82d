"""The output of a search: rows as they are found, and on stderr how far it has looked."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from stepwell.cli.output import Table, note, print_json

__all__ = ["Search"]

#: Seconds that rows wait for further ones. The rows of a quick search then have the same column widths.
HOLD = 1.0


class Search:
    """Prints what a search finds. With ``--json`` it prints one document at the end.

    ``things`` is the name of what it looks at. Use ``with search.printed():`` around the search.
    """

    def __init__(self, options: argparse.Namespace, things: str, headers: Sequence[str]) -> None:
        self.found: int = 0
        #: Whether the search ended because enough was found.
        self.enough: bool = False
        #: Members of the JSON document besides the results.
        self.others: dict[str, Any] = {}
        self._json: bool = options.json
        self._limit: int = options.limit
        self._things = things
        #: How many were read, in this list and in the lists before.
        self._looked = self._before = 0
        self._results: list[dict[str, Any]] = []
        self._table = Table(headers)
        self._rows: list[Sequence[Any]] = []
        self._printed_at = monotonic()
        self._progress = sys.stderr.isatty()
        self._width = 0

    def add(self, result: dict[str, Any], row: Sequence[Any], looked: int) -> bool:
        """Add a result, and its row in the table; return ``False`` if there are enough."""
        self._looked = looked
        if self.found == self._limit:
            self.enough = True
            return False
        self.found += 1
        if self._json:
            self._results.append(result)
        else:
            self._rows.append(row)
        return True

    def look(self, looked: int) -> None:
        """Print the rows that were added, once a second, and the progress: so many records of this list were read."""
        self._looked = looked
        if monotonic() - self._printed_at >= HOLD:
            self._print_rows()
        if self._progress:
            text = self._summary()
            self._width = max(self._width, len(text))
            print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)

    def next_list(self) -> None:
        """Count what the next list reads in addition."""
        self._before += self._looked
        self._looked = 0

    @contextmanager
    def printed(self) -> Iterator[None]:
        """Print the rest at the end of the search, also if Ctrl-C ends it."""
        try:
            yield
        except asyncio.CancelledError:
            self._end(stopped=True)
            raise
        except BaseException:
            self._print_rows()
            self._hide_progress()
            raise
        self._end(stopped=False)

    def _end(self, *, stopped: bool) -> None:
        self._print_rows()
        self._hide_progress()
        complete = not stopped and not self.enough
        if self._json:
            looked = self._before + self._looked
            print_json({self._things: self._results, "looked": looked, "complete": complete, **self.others})
        elif stopped:
            note(f"stopped; {self._summary()}")
        elif self.enough:
            note(f"{self._summary()}; there are more, raise --limit to go on")
        else:
            note(self._summary())

    def _summary(self) -> str:
        looked = self._before + self._looked
        things = self._things if looked != 1 else self._things.removesuffix("s")
        return f"looked at {looked} {things}, found {self.found}"

    def _print_rows(self) -> None:
        if self._rows:
            self._hide_progress()
            self._table.print(self._rows)
            self._rows = []
        self._printed_at = monotonic()

    def _hide_progress(self) -> None:
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0
