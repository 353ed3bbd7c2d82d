"""The log of the writes that a command makes: on stderr, or in the file that ``STEPWELL_LOG`` names."""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from stepwell.errors import UsageError
from stepwell.operate.log import LOGGER

__all__ = ["logged_writes", "user_name"]


def user_name() -> str:
    """Return the name of the user who runs the command."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "unknown"
    before = os.environ.get("SUDO_USER")
    return f"{before} as {name}" if before and before != name else name


@contextmanager
def logged_writes() -> Iterator[None]:
    """Print each write with its time, or append it to the file."""
    file = os.environ.get("STEPWELL_LOG")
    try:
        handler = logging.FileHandler(file, encoding="utf-8") if file else logging.StreamHandler()
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
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()
