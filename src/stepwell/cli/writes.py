"""The log of the writes that a command makes: on stderr, or in the file that ``STEPWELL_LOG`` names."""

from __future__ import annotations

import getpass
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from stepwell.cli.output import note
from stepwell.errors import UsageError
from stepwell.operate.audit import LOGGER

__all__ = ["WriteLog", "logged_writes", "user_name"]


def user_name() -> str:
    """Return the name of the user who runs the command."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "unknown"
    before = os.environ.get("SUDO_USER")
    return f"{before} as {name}" if before and before != name else name


class WriteLog(logging.StreamHandler[TextIO]):
    """Appends each write to a file, or prints it to stderr."""

    def __init__(self, file: str | None) -> None:
        super().__init__(Path(file).open("a", encoding="utf-8") if file else None)  # noqa: SIM115
        self._file = file
        #: How many writes could not be logged.
        self.failures: int = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Print the line, because what it tells was done."""
        self.failures += 1
        with suppress(OSError):
            note(f"stepwell: cannot write to the log {self._file} ({sys.exception()}); this was done:")
            note(self.format(record))

    def close(self) -> None:
        """Close the file."""
        if self._file:
            # Closing writes the lines again that could not be written.
            with suppress(OSError):
                self.stream.close()
        super().close()


@contextmanager
def logged_writes() -> Iterator[WriteLog]:
    """Print each write with its time, or append it to the file."""
    file = os.environ.get("STEPWELL_LOG")
    try:
        handler = WriteLog(file)
    except OSError as error:
        raise UsageError(
            f"nothing was changed: cannot write to the log {file} ({error.strerror}); set STEPWELL_LOG to another file"
        ) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger(LOGGER)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()
