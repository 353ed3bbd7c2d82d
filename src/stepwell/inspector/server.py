"""Serves the inspector on a port of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from stepwell import Storage
from stepwell.engine import require
from stepwell.inspector.access import AccessFile
from stepwell.inspector.app import Inspector

require("uvicorn", "inspector")

from stepwell.web.serving import Serving, allowed_hosts, page_url  # noqa: E402

__all__ = ["InspectorServer"]


class InspectorServer:
    """An inspector that listens; use ``async with``."""

    def __init__(
        self,
        storage: Storage,
        flows: Iterable[Any] = (),
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        hosts: Iterable[str] = (),
        allow_write: bool = False,
        access: AccessFile | None = None,
        name: str = "inspector",
        new_link: Callable[[str], None] | None = None,
    ) -> None:
        self.host: str = host
        self.port: int = port
        self._hosts = tuple(hosts)
        self._new_link = new_link
        is_shared = access is not None
        self.app: Inspector = Inspector(
            storage,
            flows,
            # A server with TLS in front listens on the port that browsers do not name.
            lambda given: (
                given in allowed_hosts(self.host, self.port, self._hosts) or (is_shared and given in self._hosts)
            ),
            allow_write=allow_write,
            token=(access.tokens or None) if access is not None else None,
            roles=(access.roles or None) if access is not None else None,
            proxy=None if access is None else access.proxy,
            # A proxy in front may speak TLS to browsers.
            schemes=("http",) if access is None else ("http", "https"),
            name=name,
            on_new_token=self._token_replaced,
        )
        self._serving = Serving(self.app, name="inspector")

    @property
    def address(self) -> str:
        """The address of the page, for a browser with a session."""
        return page_url(self.host, self.port)

    @property
    def url(self) -> str:
        """The link that opens the page in one browser. It changes when it was used."""
        return f"{self.address}?token={self.app.token}"

    async def __aenter__(self) -> Self:
        self.port = await self._serving.start(self.host, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._serving.stop()
        await self.app.close()

    def _token_replaced(self) -> None:
        if self._new_link is not None:
            self._new_link(self.url)
