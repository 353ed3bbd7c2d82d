"""Tracebacks of errors in the user's code, without the frames of the package above it."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import TracebackType

__all__ = ["hide_own_frames"]

_OWN = (str(Path(__file__).parents[1]), "<frozen ")


def hide_own_frames() -> None:
    """Print an error that ends the process without the frames of this package that led to the user's code."""
    sys.excepthook = _print


def _print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    user = trace
    if user is not None and _is_own(user.tb_next):
        # The script that the installer wrote, or a frame of this package.
        user = user.tb_next
    while _is_own(user):
        user = user and user.tb_next
    # Python compiles the file with a syntax error in a frame of this package.
    hides = user is not None or isinstance(error, SyntaxError)
    traceback.print_exception(kind, error, user if hides else trace)


def _is_own(trace: TracebackType | None) -> bool:
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN)
