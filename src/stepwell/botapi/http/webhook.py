"""Webhooks: post updates to the bot's URL, in order for each chat, and retry until it accepts them."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from stepwell.botapi.errors import ConnectionCut, Refusal, bad_request
from stepwell.botapi.http.forms import read_body
from stepwell.botapi.http.packages import httpx
from stepwell.botapi.params import Params
from stepwell.botapi.updates import Pending
from stepwell.botapi.world import Bot, World

__all__ = ["WebhookInfo", "Webhooks"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds to wait for a response, as Telegram does.
TIMEOUT = 60.0

Perform = Callable[[Bot, str, Params], Awaitable[Any]]


@dataclass(slots=True)
class WebhookInfo:
    """The webhook of one bot."""

    url: str
    secret: str
    max_connections: int
    failed_at: int = 0
    failed_with: str = ""

    def json(self) -> dict[str, Any]:
        """Return its part of ``getWebhookInfo``."""
        failed = {"last_error_date": self.failed_at, "last_error_message": self.failed_with} if self.failed_at else {}
        return {"url": self.url, "max_connections": self.max_connections, "ip_address": "127.0.0.1", **failed}


class Webhooks:
    """The webhooks of all bots.

    ``pause`` is the delay in seconds after the first failure; it doubles up to ``longest_pause``.
    """

    def __init__(
        self, world: World, perform: Perform, *, outside: bool = False, pause: float = 0.5, longest_pause: float = 30.0
    ) -> None:
        self._world = world
        self._perform = perform
        self._outside = outside
        self._pause, self._longest_pause = pause, longest_pause
        self._deliveries: dict[int, _Delivery] = {}
        self._client: Any = None

    def of(self, bot: Bot) -> WebhookInfo | None:
        """Return the webhook of a bot, if it has one."""
        delivery = self._deliveries.get(bot.id)
        return delivery.webhook if delivery is not None else None

    async def set(self, bot: Bot, webhook: WebhookInfo) -> None:
        """Set a webhook, and start with the pending updates."""
        self._check(webhook.url)
        await self.delete(bot)
        self._deliveries[bot.id] = _Delivery(self, bot, webhook)

    async def delete(self, bot: Bot) -> None:
        """Stop deliveries; unconfirmed updates stay pending."""
        delivery = self._deliveries.pop(bot.id, None)
        if delivery is not None:
            await delivery.stop()

    async def close(self) -> None:
        """Stop all deliveries."""
        for bot_id in list(self._deliveries):
            await self._deliveries.pop(bot_id).stop()
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def pause(self, tries: int) -> float:
        """Return the delay after this many failures."""
        return float(min(self._pause * 2 ** (tries - 1), self._longest_pause))

    def now(self) -> int:
        return int(self._world.clock())

    async def post(self, bot: Bot, webhook: WebhookInfo, update: dict[str, Any]) -> None:
        """Post one update, and run the method call in the response. Raises ``_Failed``."""
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
            self._client = httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, limits=limits)
        headers = {"Content-Type": "application/json"}
        if webhook.secret:
            headers["X-Telegram-Bot-Api-Secret-Token"] = webhook.secret
        try:
            answer = await self._client.post(webhook.url, content=json.dumps(update), headers=headers)
        except httpx.HTTPError as error:
            # Without the message, which may contain the URL and with it the token.
            raise _Failed(f"Connection failed: {type(error).__name__}") from None
        if not 200 <= answer.status_code < 300:
            raise _Failed(f"Wrong response from the webhook: {answer.status_code} {answer.reason_phrase}")
        await self._answered(bot, answer.headers.get("content-type", ""), answer.content)

    async def _answered(self, bot: Bot, content_type: str, body: bytes) -> None:
        try:
            params = read_body(content_type, body)
            method = str(params.given.pop("method", ""))
            if method:
                await self._perform(bot, method, params)
        except Refusal as refusal:
            # As with Telegram, the bot does not learn the result of a call in a webhook response.
            logger.info("the call in a webhook response was refused: %s", refusal.description)
        except ConnectionCut:
            # The call came on a connection of this server, which stays open.
            logger.info("the call in a webhook response was not performed, or its result is lost")

    def _check(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            httpx.URL(url)
        except (ValueError, httpx.InvalidURL):
            raise bad_request("bad webhook: invalid URL specified") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise bad_request("bad webhook: an HTTP or HTTPS URL must be provided")
        if not self._outside and not _is_loopback(parts.hostname):
            raise bad_request("bad webhook: this server delivers to this machine only, such as http://127.0.0.1:8080")


class _Failed(Exception):
    """The bot did not accept an update."""


class _Delivery:
    """Delivers the updates of one bot: one task for each lane, at most ``max_connections`` requests at once."""

    def __init__(self, webhooks: Webhooks, bot: Bot, webhook: WebhookInfo) -> None:
        self.webhook = webhook
        self._webhooks = webhooks
        self._bot = bot
        self._connections = asyncio.Semaphore(webhook.max_connections)
        self._waiting: dict[object, deque[Pending]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        bot.updates.taker = self._take
        for entry in bot.updates.pending:
            self._take(entry)

    def _take(self, entry: Pending) -> None:
        if entry.lane in self._waiting:
            self._waiting[entry.lane].append(entry)
            return
        self._waiting[entry.lane] = deque([entry])
        task = asyncio.get_running_loop().create_task(self._run(entry.lane), name="webhook-lane")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, lane: object) -> None:
        waiting, tries = self._waiting[lane], 0
        while waiting:
            entry = waiting[0]
            # It may have been dropped meanwhile.
            if entry in self._bot.updates.pending:
                try:
                    async with self._connections:
                        await self._webhooks.post(self._bot, self.webhook, entry.update)
                except _Failed as failed:
                    tries += 1
                    self.webhook.failed_at, self.webhook.failed_with = self._webhooks.now(), str(failed)
                    await asyncio.sleep(self._webhooks.pause(tries))
                    continue
                self._bot.updates.done(entry)
            waiting.popleft()
            tries = 0
        del self._waiting[lane]

    async def stop(self) -> None:
        self._bot.updates.taker = None
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
