"""Listening on a port: a taken port gives a readable error, or a free one."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from stepwell.botapi.http import serving
from stepwell.errors import UsageError
from stepwell.web.listening import listen


def test_a_taken_port_is_reported_or_replaced_by_a_free_one() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UsageError, match=f"cannot listen on 127.0.0.1 port {port}: .*; choose another host or port"
        ):
            listen("127.0.0.1", port)
        with listen("127.0.0.1", port, or_free=True) as free:
            assert free.getsockname()[1] not in (0, port)


def test_only_a_taken_port_is_replaced() -> None:
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1 port 1: "):
        listen("192.0.2.1", 1, or_free=True)


@pytest.mark.parametrize("secret", ["redis://:s3cret@127.0.0.1:1", "123456789:AAHs3cret-J5vGWJxfSeofSAs0K5PALDsaw"])
def test_a_secret_in_the_place_of_the_host_is_not_shown(secret: str) -> None:
    with pytest.raises(UsageError, match=r"cannot listen on <str of \d+ characters> port 0: "):
        listen(secret, 0)


@pytest.mark.parametrize("listen", [listen, serving._listen])
def test_the_second_piece_of_a_response_does_not_wait_for_an_acknowledgement_of_the_first(
    listen: Callable[[str, int], socket.socket],
) -> None:
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
