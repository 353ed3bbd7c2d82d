"""A socket that listens, with a readable error."""

from __future__ import annotations

import socket

from stepwell.errors import UsageError

__all__ = ["listen"]


def listen(host: str, port: int, *, advice: str = "") -> socket.socket:
    """Return a socket that listens on a host and port; port 0 chooses a free one.

    Raises ``UsageError`` if that is not possible; ``advice`` ends its message.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        # Python appends the address.
        why = str(error.strerror or error).partition(" (")[0]
        raise UsageError(f"cannot listen on {host} port {port}: {why}{advice and f'; {advice}'}") from error
