"""A webhook: an ASGI application that Telegram delivers updates to."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from hashlib import blake2b
from typing import Any, TypeAlias

from stepwell.errors import InvalidOption, StepwellError, StorageError
from stepwell.fsm import Router, Update
from stepwell.telegram.client import TELEGRAM, BotClient
from stepwell.telegram.limits import SendLimits
from stepwell.telegram.outcome import TEMPORARY, log_of_outages, process, sender_for_timers
from stepwell.telegram.sending import OnSendError, Sender
from stepwell.telegram.token import find_token

__all__ = ["Webhook", "webhook"]

logger: logging.Logger = logging.getLogger("stepwell.telegram")

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

#: The largest accepted body, in bytes. Telegram's updates are far smaller.
MAX_BODY = 1024 * 1024
#: How many deliveries are remembered.
REMEMBERED = 1000
#: Seconds for one call. Telegram ends a delivery that takes much longer, and repeats it.
PATIENCE = 20.0
_HEADER = b"x-telegram-bot-api-secret-token"


def webhook(
    router: Router,
    *,
    secret_token: str,
    token: str | None = None,
    api: str = TELEGRAM,
    client: BotClient | None = None,
    limits: SendLimits | None = SendLimits(),  # noqa: B008 - frozen
    on_send_error: OnSendError | None = None,
    max_body: int = MAX_BODY,
) -> Webhook:
    """Return an ASGI application for a bot's webhook::

        app = webhook(router, secret_token=os.environ["WEBHOOK_SECRET"])

    Serve it by itself, or mount it in Starlette or FastAPI. ``secret_token`` is the secret passed to setWebhook; other
    requests get 403. Answers are sent before the response, so Telegram repeats an update whose process died:

    - 200: the update was handled and answered, or failed permanently, which is logged;
    - 503: the storage or the Bot API is unavailable, or the conversation is busy. Telegram sends the update again.

    ASGI's lifespan opens the machine and the client; where the server does not pass it on (a mounted application),
    use ``async with app:``. Without ``token`` it is read as by ``run_polling``.
    """
    if router.fsm is None:
        raise InvalidOption("webhook() needs a router with a machine: Router(fsm)")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,256}", secret_token):
        raise InvalidOption("secret_token must be 1 to 256 characters of A-Z, a-z, 0-9, _ and -")
    own = client is None
    client = client or BotClient(token or find_token(), api=api, limits=limits, patience=PATIENCE)
    return Webhook(router, Sender(client, on_send_error=on_send_error), client if own else None, secret_token, max_body)


class Webhook:
    """The ASGI application that ``webhook`` returns."""

    def __init__(
        self, router: Router, sender: Sender, client: BotClient | None, secret_token: str, max_body: int
    ) -> None:
        self.router: Router = router
        self.sender: Sender = sender
        #: The client to close at the end; ``None`` if the caller owns it.
        self._client = client
        self._secret = secret_token.encode()
        self._max_body = max_body
        self._stack: contextlib.AsyncExitStack | None = None
        #: Deliveries by the hash of their content. Telegram repeats a slow delivery, and one whose response was lost.
        self._deliveries: dict[bytes, asyncio.Task[int]] = {}
        self._outage = log_of_outages()

    async def __aenter__(self) -> Webhook:
        assert self.router.fsm is not None
        async with contextlib.AsyncExitStack() as stack:
            if self._client is not None:
                await stack.enter_async_context(self._client)
            stack.enter_context(sender_for_timers(self.router, self.sender))
            await stack.enter_async_context(self.router.fsm)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            status = await self._respond(scope, receive)
            headers = [(b"content-length", b"0"), *([(b"allow", b"POST")] if status == 405 else ())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

    async def handle(self, secret: str, body: bytes) -> int:
        """Return the HTTP status for a request with this secret header and body. For other web frameworks."""
        # A framework may decode a header that is not UTF-8 with lone surrogates.
        if not self._is_secret(secret.encode(errors="replace")):
            return 403
        return await self._deliver(body)

    def _is_secret(self, secret: bytes) -> bool:
        return hmac.compare_digest(secret, self._secret)

    async def _deliver(self, body: bytes) -> int:
        """Return the status for a request from Telegram with this body."""
        if len(body) > self._max_body:
            return 413
        try:
            update = json.loads(body)
        except (ValueError, RecursionError):
            return 400
        if not isinstance(update, dict) or type(update.get("update_id")) is not int:
            return 400
        content = blake2b(body, digest_size=16).digest()
        delivery = self._deliveries.get(content)
        if delivery is None or delivery.get_loop() is not asyncio.get_running_loop():
            delivery = self._deliveries[content] = asyncio.create_task(self._process(content, update))
            if len(self._deliveries) > REMEMBERED:
                oldest = next(iter(self._deliveries))
                if self._deliveries[oldest].done():
                    del self._deliveries[oldest]
        # A cancelled request does not cancel the handling for its other deliveries.
        return await asyncio.shield(delivery)

    async def _process(self, content: bytes, update: dict[str, Any]) -> int:
        try:
            await process(self.router, self.sender, Update.of(update))
        except TEMPORARY as error:
            if isinstance(error, StorageError):
                self._outage.failed(error)
            else:
                logger.warning("update %s is not handled and will be delivered again: %s", update["update_id"], error)
            self._deliveries.pop(content, None)
            return 503
        except BaseException:
            self._deliveries.pop(content, None)
            raise
        self._outage.worked()
        return 200

    async def _respond(self, scope: Message, receive: Receive) -> int:
        if scope["method"] != "POST":
            return 405
        if not self._is_secret(next((value for name, value in scope["headers"] if name == _HEADER), b"")):
            return 403
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                # The client has disconnected, and will deliver the update again.
                return 400
            body += message.get("body", b"")
            if len(body) > self._max_body or not message.get("more_body"):
                return await self._deliver(body)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.__aenter__()
        except (StepwellError, OSError) as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.__aexit__()
        await send({"type": "lifespan.shutdown.complete"})
