"""A webhook: an ASGI application that Telegram delivers updates to.

It recognises deliveries that are repeated to this process; others are recognised by ``fsm/conversation/duplicates.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from hashlib import blake2b
from typing import Any, TypeAlias

from stepwell.errors import InvalidOption, OutcomeUnknown, StepwellError, StorageError
from stepwell.fsm import Router, Update
from stepwell.options import check_instance
from stepwell.storage.transport.starting import when_available
from stepwell.telegram.calls.client import TELEGRAM, BotClient
from stepwell.telegram.calls.reading import read_update
from stepwell.telegram.calls.token import find_token
from stepwell.telegram.receiving.aside import set_aside
from stepwell.telegram.receiving.beside import beside, prepared
from stepwell.telegram.receiving.outcome import TEMPORARY, Unfinished, line_of, log_of_outages, sender_for_timers
from stepwell.telegram.sending.limits import SendLimits
from stepwell.telegram.sending.sender import OnSendError, Sender

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
#: Seconds for which the next update of a chat first sends the answers to an earlier one that were not sent. Telegram
#: repeats an update after at most about a minute, so it has sent the earlier one again by then.
UNANSWERED = 120.0
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
    wait_for_storage: bool = True,
    run_workers: bool = True,
) -> Webhook:
    """Return an ASGI application for a bot's webhook::

        app = webhook(router, secret_token=os.environ["WEBHOOK_SECRET"])

    Serve it by itself, or mount it in Starlette or FastAPI. ``secret_token`` is the secret passed to setWebhook; other
    requests get 403. Answers are sent before the response, so Telegram repeats an update whose process died:

    - 200: the update was handled and answered, or failed permanently, which is logged. An update that cannot be read
      is kept in ``Log(storage, bot, "updates set aside")``;
    - 503: the storage or the Bot API is unavailable, or the conversation is busy. Telegram sends the update again.

    Updates of one chat are handled and answered one after the other, in the order of their arrival. If one of them gets
    503, those that wait for it get 503 too, and are not handled.

    ASGI's lifespan opens the machine and the client; where the server does not pass it on (a mounted application),
    use ``async with app:``. If the storage is away then, they log it and wait for it; with ``wait_for_storage=False``
    they raise its error. With ``run_workers=False`` the workers of ``router.run_workers`` are left to other processes.
    Without ``token`` it is read as by ``run_polling``. Pass ``router.allowed_updates`` to
    setWebhook if handlers wait for reactions or members.
    """
    if not isinstance(router, Router) or router.fsm is None:
        raise InvalidOption("webhook() needs a router with a machine: Router(fsm)")
    if not isinstance(secret_token, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,256}", secret_token):
        raise InvalidOption("secret_token must be 1 to 256 characters of A-Z, a-z, 0-9, _ and -")
    own = client is None
    client = client or BotClient(token or find_token(), api=api, limits=limits, patience=PATIENCE)
    return Webhook(
        router,
        Sender(client, on_send_error=on_send_error),
        client if own else None,
        secret_token,
        max_body=max_body,
        wait_for_storage=wait_for_storage,
        run_workers=run_workers,
    )


class _Delivery:
    """An update that Telegram delivers, over all its deliveries."""

    __slots__ = ("chat", "failed_at", "response", "unfinished")

    def __init__(self, update: Update, client: BotClient, chat: Any) -> None:
        self.chat: Any = chat
        #: ``None`` once the update is answered.
        self.unfinished: Unfinished | None = Unfinished(update, client)
        #: The status for the last delivery.
        self.response: asyncio.Task[int] | None = None
        #: When the answers could not be sent, on the clock of the loop.
        self.failed_at: float = 0.0


class Webhook:
    """The ASGI application that ``webhook`` returns::

        async def served(app: Webhook) -> None:
            async with app:
                await asyncio.Event().wait()

    Enter it where the server does not pass ASGI's lifespan on.
    """

    def __init__(
        self,
        router: Router,
        sender: Sender,
        client: BotClient | None,
        secret_token: str,
        *,
        max_body: int,
        wait_for_storage: bool,
        run_workers: bool,
    ) -> None:
        self.router: Router = router
        self.sender: Sender = sender
        #: The client to close at the end; ``None`` if the caller owns it.
        self._client = client
        self._secret = secret_token.encode()
        self._max_body = max_body
        self._waits, self._runs = wait_for_storage, run_workers
        self._stack: contextlib.AsyncExitStack | None = None
        #: Deliveries by the hash of their content. Telegram repeats a slow delivery, and one whose response was lost.
        self._deliveries: dict[bytes, _Delivery] = {}
        #: The last response of each chat that is under way. The next update of the chat waits for it.
        self._last: dict[Any, asyncio.Task[int]] = {}
        #: For each chat, the update that is handled and could not be answered; the oldest failure first.
        self._unanswered: dict[Any, _Delivery] = {}
        self._outage = log_of_outages()

    async def __aenter__(self) -> Webhook:
        assert self.router.fsm is not None
        async with contextlib.AsyncExitStack() as stack:
            if self._client is not None:
                await stack.enter_async_context(self._client)
            stack.enter_context(sender_for_timers(self.router, self.sender))
            await stack.enter_async_context(prepared(self.router, self.sender.client, wait=self._waits))
            entered = partial(stack.enter_async_context, self.router.fsm)
            await when_available(entered, self.router.fsm.storage, wait=self._waits)
            blocks = beside(self.router, self.sender, runs=self._runs, wait=self._waits)
            await stack.enter_async_context(blocks)
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

    async def handle(self, secret: str | None, body: bytes | str) -> int:
        """Return the HTTP status for a request with this secret header and body. For other web frameworks.

        ``secret`` is ``None`` if the request has no such header. Raises ``InvalidOption`` for a body that was parsed.
        """
        # A framework may decode a header that is not UTF-8 with lone surrogates.
        if not self._is_secret((secret or "").encode(errors="replace")):
            return 403
        if isinstance(body, str):
            body = body.encode(errors="surrogatepass")
        check_instance(body, bytes | bytearray, "Webhook.handle(secret, body) takes the body as bytes, got {type}")
        return await self._deliver(bytes(body))

    def _is_secret(self, secret: bytes) -> bool:
        return hmac.compare_digest(secret, self._secret)

    async def _deliver(self, body: bytes) -> int:
        """Return the status for a request from Telegram with this body."""
        update = read_update(body) if len(body) <= self._max_body else None
        if update is None:
            return await self._skip(body)
        content = blake2b(body, digest_size=16).digest()
        delivery, loop = self._deliveries.get(content), asyncio.get_running_loop()
        if delivery is None or (delivery.response is not None and delivery.response.get_loop() is not loop):
            received = Update.of(update)
            delivery = _Delivery(received, self.sender.client, line_of(self.router, received))
            self._remember(content, delivery)
        if delivery.response is None or _has_failed(delivery.response):
            previous = self._last.get(delivery.chat)
            if previous is not None and previous.get_loop() is not loop:
                previous = None
            delivery.response = loop.create_task(self._process(delivery, previous))
            self._last[delivery.chat] = delivery.response
        # A cancelled request does not cancel the handling for its other deliveries.
        return await asyncio.shield(delivery.response)

    async def _skip(self, body: bytes) -> int:
        """Set an update aside that cannot be read. Telegram would repeat it, and hold back the others of its chat."""
        assert self.router.fsm is not None
        why = "it cannot be read" if len(body) <= self._max_body else "it is larger than max_body"
        try:
            await set_aside(self.router.fsm, body.decode(errors="replace"), why=why)
        except StorageError as error:
            self._outage.failed(error)
            return 503
        return 200

    def _remember(self, content: bytes, delivery: _Delivery) -> None:
        self._deliveries[content] = delivery
        # Two for each new one, so that there are not too many for long after an outage.
        for _ in range(2):
            if len(self._deliveries) <= REMEMBERED:
                return
            oldest = next(iter(self._deliveries))
            each = self._deliveries.pop(oldest)
            under_way = each.response is None or not each.response.done()
            if under_way or self._unanswered.get(each.chat) is each:
                self._deliveries[oldest] = each

    async def _process(self, delivery: _Delivery, previous: asyncio.Task[int] | None) -> int:
        """Handle and answer an update after the previous one of its chat, and return the status."""
        chat = delivery.chat
        try:
            if previous is not None:
                if delivery.unfinished is not None and delivery.unfinished.press is not None:
                    delivery.unfinished.press.waits()
                await asyncio.wait((previous,))
                if _has_failed(previous):
                    # Telegram sends both again. Handled now, it could overtake the previous one.
                    return 503
            self._drop_old_unanswered()
            earlier = self._unanswered.get(chat)
            if earlier is not None and earlier is not delivery:
                # A record remembers the answers to its newest update only.
                await self._finish(earlier)
            await self._finish(delivery)
        except TEMPORARY as error:
            if isinstance(error, StorageError):
                self._outage.failed(error)
            elif delivery.unfinished is not None:
                number = delivery.unfinished.update.update_id
                logger.warning("update %s is not answered and will be delivered again: %s", number, error)
            return 503
        finally:
            if self._last.get(chat) is asyncio.current_task():
                del self._last[chat]
        self._outage.worked()
        return 200

    async def _finish(self, delivery: _Delivery) -> None:
        """Handle and answer an update, unless that is done. Raises only ``TEMPORARY`` errors."""
        unfinished = delivery.unfinished
        if unfinished is None:
            return
        try:
            await unfinished.process(self.router, self.sender)
        except TEMPORARY as error:
            if unfinished.calls is not None or isinstance(error, OutcomeUnknown):
                # Handled, or perhaps handled.
                self._unanswered.pop(delivery.chat, None)
                self._unanswered[delivery.chat] = delivery
                delivery.failed_at = asyncio.get_running_loop().time()
            raise
        delivery.unfinished = None
        if self._unanswered.get(delivery.chat) is delivery:
            del self._unanswered[delivery.chat]

    def _drop_old_unanswered(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._unanswered:
            chat, delivery = next(iter(self._unanswered.items()))
            if now - delivery.failed_at < UNANSWERED:
                return
            del self._unanswered[chat]

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
        except Exception as error:  # noqa: BLE001 - the server logs the message and ends
            message = str(error) if isinstance(error, StepwellError | OSError) else f"{type(error).__name__}: {error}"
            await send({"type": "lifespan.startup.failed", "message": message})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.__aexit__()
        await send({"type": "lifespan.shutdown.complete"})


def _has_failed(response: asyncio.Task[int]) -> bool:
    """Return whether the update of a response is not answered and no longer under way."""
    if not response.done():
        return False
    return response.cancelled() or response.exception() is not None or response.result() != 200
