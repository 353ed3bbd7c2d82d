"""A socket that listens, with a readable error."""

from __future__ import annotations

import errno
import socket

from stepwell._secrets import displayed
from stepwell.errors import UsageError

__all__ = ["listen"]


def listen(
    host: str, port: int, *, or_free: bool = False, advice: str = "choose another host or port"
) -> socket.socket:
    """Return a socket that listens on a host and port; port 0 chooses a free one, ``or_free`` too if it is taken.

    Raises ``UsageError`` if that is not possible; ``advice`` ends its message.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        if or_free and error.errno == errno.EADDRINUSE:
            return listen(host, 0, advice=advice)
        # Python appends the address.
        why = str(error.strerror or error).partition(" (")[0]
        raise UsageError(f"cannot listen on {displayed(host)} port {port}: {why}; {advice}") from error
    # Accepted connections inherit it. asyncio sets it only on sockets of ``getaddrinfo``, and uvicorn writes a response
    # in two pieces: the second one would wait 40 ms for the client's delayed acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
