"""The process of a holder, in its token, so that a lease whose process has died on this machine is ended at once."""

from __future__ import annotations

import os
import socket
from hashlib import blake2b
from pathlib import Path

__all__ = ["has_died", "process_mark"]

_PROC = Path("/proc")
#: The process that ``_mark`` is of, and its mark; a forked process has another one.
_known: tuple[int, str] = (0, "")


def process_mark() -> str:
    """Return what the tokens of this process end with: its machine, its id and its start time.

    It is empty where these cannot be told for certain, that is, without the ``/proc`` of Linux.
    """
    global _known
    pid = os.getpid()
    if _known[0] != pid:
        try:
            _known = pid, f"~{_place()}.{pid}.{_started(pid)[1]}"
        except (OSError, ValueError):
            _known = pid, ""
    return _known[1]


def has_died(token: str) -> bool:
    """Return whether the process of a holder ran on this machine and has ended; ``False`` if that is not certain.

    A process of another machine, of another boot, or of another container is never said to have died.

    Example::

        from stepwell.engine import Slot, has_died

        async with Slot(storage, "counters", "visits") as slot:
            assert not has_died(slot.guard.token)
    """
    place, _, process = token.rpartition("~")[2].partition(".")
    mine = process_mark()
    if not (mine and process) or mine[1:].partition(".")[0] != place:
        return False
    pid, _, started = process.partition(".")
    try:
        return _has_ended(int(pid), int(started))
    except (OSError, ValueError, OverflowError):
        return False


def _place() -> str:
    """Return a digest of this machine, its boot, and the namespace of its process ids, which each container has."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    # Also the name: machines that were cloned while they ran have one boot id.
    texts = boot, str((_PROC / "self/ns/pid").readlink()), socket.gethostname()
    return blake2b("\n".join(texts).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _started(pid: int) -> tuple[str, int]:
    """Return the state of a process, and when it started, in ticks since the boot."""
    # The name of the program, in parentheses, may contain anything.
    fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    return fields[0].decode("ascii"), int(fields[19])


def _has_ended(pid: int, started: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # A process of another user.
        pass
    state, began = _started(pid)
    if began != started:
        return True
    # A killed process that its parent has not waited for. Its first thread may have ended before the others.
    return state in "ZX" and len(list((_PROC / str(pid) / "task").iterdir())) <= 1
