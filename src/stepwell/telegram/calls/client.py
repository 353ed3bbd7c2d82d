"""The client of the Bot API. The only module of this package that imports httpx."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from stepwell._backoff import backoff, jittered
from stepwell._optional import require
from stepwell._secrets import quoted
from stepwell.errors import BotApiError, BotBlocked, BotUnavailable, InvalidOption, UsageError
from stepwell.fsm.bot import BotMethods, like_method, save_file
from stepwell.options import check, check_instance, check_number
from stepwell.telegram.calls.connections import CancelScopes, Connections, NoAnswer, Response
from stepwell.telegram.calls.files import Payload, pack, read_content
from stepwell.telegram.calls.reading import read_answer
from stepwell.telegram.calls.token import check_token
from stepwell.telegram.sending.limits import SendLimits, chat_of, is_group, messages_in
from stepwell.telegram.sending.queue import HeldTooLong, QueueClosed, SendQueue, SendTurn

_httpx: Any = require("httpx", "bot")

__all__ = ["BotClient"]

logger: logging.Logger = logging.getLogger(__name__)

TELEGRAM = "https://api.telegram.org"
#: Seconds before the second attempt, and the longest pause between two.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
#: Connections at once, and seconds for which an unused one stays open.
CONNECTIONS, KEEP_ALIVE = 100, 30.0
#: The status of a method that the server does not have. Not retryable.
NOT_IMPLEMENTED = 501
#: What a download is called in errors.
DOWNLOAD = "download"
#: How many answered presses are remembered.
ANSWERED = 1000
#: The statuses that refuse a call without JSON. The server would refuse it again: it does not know the method, or the
#: request is too large, for which Telegram sends a page too.
REFUSALS = (NOT_IMPLEMENTED, 413)

_METHOD = re.compile(r"[A-Za-z]+")


class BotClient(BotMethods):
    """Calls Telegram's Bot API for one bot::

        async with BotClient(token) as client:
            message = await client.send_message(chat_id=42, text="Hello")
            member = await client.call("getChatMember", chat_id=-100, user_id=42)

    Calls of one chat leave in order, one at a time, within ``limits``. A call is retried when Telegram asks to wait
    (429), fails (5xx) or cannot be reached, for at most ``patience`` seconds. A page of a proxy is no answer, whatever
    its status is: only JSON with ``"ok": false`` refuses a call. ``timeout`` is the time in seconds for one answer.
    Entering the client is optional; ``close()`` it at the end.
    """

    def __init__(
        self,
        token: str,
        *,
        api: str = TELEGRAM,
        limits: SendLimits | None = SendLimits(),  # noqa: B008  frozen
        timeout: float = 30.0,
        patience: float = 300.0,
    ) -> None:
        self._token = check_token(token)
        self._api = _check_api(api)
        self._path = f"{urlsplit(self._api).path}/bot{self._token}/"
        self._file_path = f"{urlsplit(self._api).path}/file/bot{self._token}/"
        check_instance(limits, SendLimits, "BotClient(limits=...) takes SendLimits(...) or None, got {}", optional=True)
        self._limits = limits
        self._timeout = _check_seconds("timeout", timeout)
        self._patience = _check_seconds("patience", patience)
        self._link: _Link | None = None
        self._closed = False
        #: The last presses that were answered, the oldest first.
        self._answered: dict[Any, None] = {}

    def __repr__(self) -> str:
        return f"BotClient(bot {self.id}, api={self._api!r})"

    @property
    def id(self) -> int:
        """The id of the bot, which is the first part of its token."""
        return int(self._token.partition(":")[0])

    async def __aenter__(self) -> Self:
        self._closed = False
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Calls that wait or are under way raise ``BotUnavailable``."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def call(self, method: str, /, **params: Any) -> Any:
        """Call a method of the Bot API, and return its result as plain JSON.

        Text that is no Unicode has U+FFFD in place of the invalid characters. An update that is no JSON is its text.

        Raises ``BotApiError`` if the call is refused, ``BotBlocked`` if the bot can no longer write to the chat,
        ``BotUnavailable`` if there was no usable answer within the patience of the client, and ``InvalidOption`` for
        parameters that cannot be sent.
        """
        link, call = self._prepare(method, params)
        chat = chat_of(method, params)
        if chat is None:
            result = await self._try(link, call, None)
            if method == "answerCallbackQuery":
                self._note_answered(params.get("callback_query_id"))
            return result
        turn = link.queue.enter(chat, messages_in(method, params))
        try:
            if not turn.started:
                await turn.wait()
            return await self._try(link, call, turn)
        except HeldTooLong as held:
            description = "Telegram accepts no calls here for now"
            raise BotUnavailable(method, 429, description, retry_after=held.seconds) from None
        except QueueClosed:
            raise _closed(method) from None
        finally:
            turn.leave()

    async def download(self, file_id: str, *, to: str | os.PathLike[str] | None = None) -> Any:
        """Download a file that a user has sent, and return its content, or the path that it was saved to.

        ``to``: a path, or a folder in which the file gets Telegram's name for it. It appears there when it is complete.

        Raises ``BotApiError`` if Telegram refuses it, as for files of more than 20 MB, and ``BotUnavailable`` if it did
        not arrive within the patience of the client.
        """
        file = await self.call("getFile", file_id=file_id)
        found = file.get("file_path") if isinstance(file, dict) else None
        if not isinstance(found, str):
            raise BotApiError("getFile", None, "Telegram has no path for this file")
        content = await self._content_of(found)
        return content if to is None else await asyncio.to_thread(save_file, content, Path(to), Path(found).name)

    def has_answered(self, query: str) -> bool:
        """Return whether a press with this id was answered with this client, if that was not long ago."""
        return query in self._answered

    async def try_call(self, method: str, /, **params: Any) -> Any:
        """Make one attempt of a call now, and return its result: for what is soon out of date, such as a draft.

        The call does not wait: if earlier calls of its chat wait, or the limits of the chat are used up, it raises
        ``BotUnavailable`` with the seconds to wait in ``retry_after``. So it does if Telegram asks to wait, which holds
        back the other calls of the chat too. An edit in a group counts as a message here, as it does for Telegram.

        Example::

            async def show(client: BotClient, text: str):
                try:
                    await client.try_call("sendMessageDraft", chat_id=42, draft_id=7, text=text)
                except BotUnavailable as error:
                    print("wait", error.retry_after)
        """
        link, call = self._prepare(method, params)
        chat = chat_of(method, params)
        if chat is None:
            return self._result(link, call, None, await self._attempt(link, call))
        counts_as_message = is_group(chat) and method.startswith("edit")
        turn = link.queue.enter_now(chat, messages_in(method, params) or int(counts_as_message))
        if not isinstance(turn, SendTurn):
            raise BotUnavailable(method, 429, "the limits of this chat are used up", retry_after=turn)
        try:
            return self._result(link, call, turn, await self._attempt(link, call))
        finally:
            turn.leave()

    # Internal

    def _prepare(self, method: str, params: dict[str, Any]) -> tuple[_Link, _Call]:
        """Check a call. Raises ``InvalidOption``."""
        check(
            isinstance(method, str) and _METHOD.fullmatch(method),
            "{} is not the name of a Bot API method; names are like 'sendMessage'",
            method,
        )
        payload = pack(method, params)
        link = self._open()
        return link, _Call(method, payload, self._seconds(method, params), chat_of(method, params) is not None)

    def _result(self, link: _Link, call: _Call, turn: SendTurn | None, answer: _Answer) -> Any:
        """Return the result of the only attempt of a call, or raise its error."""
        if answer.accepted:
            self._note_accepted(link, turn)
            return answer.result
        if link.closed:
            raise _closed(call.method)
        if self._pause(link, call, turn, answer, 1) is None:
            raise self._refused(call, answer)
        raise BotUnavailable(call.method, answer.code, answer.text, retry_after=answer.retry_after)

    def _note_accepted(self, link: _Link, turn: SendTurn | None) -> None:
        link.answered()
        if turn is not None and turn.messages:
            link.queue.accepted()

    def _pause(self, link: _Link, call: _Call, turn: SendTurn | None, answer: _Answer, failures: int) -> float | None:
        """Return the seconds until the next attempt of a call that was not accepted; ``None`` if it is refused."""
        if answer.code == 429:
            pause = answer.retry_after or 1.0
            link.queue.hold(None if turn is None else turn.chat.id, pause)
            logger.warning("%s: Telegram asks to wait %g s", call.method, pause)
            return pause
        if answer.foreign or answer.code is None or (answer.code >= 500 and answer.code != NOT_IMPLEMENTED):
            link.failed(call.method, answer.text)
            return jittered(backoff(failures, FIRST_PAUSE, LONGEST_PAUSE))
        return None

    def _note_answered(self, query: Any) -> None:
        if isinstance(query, str):
            self._answered[query] = None
            if len(self._answered) > ANSWERED:
                del self._answered[next(iter(self._answered))]

    async def _content_of(self, path: str) -> bytes:
        """Return the content of a file. A Bot API server with ``--local`` gives the path of its own file."""
        if path.startswith("/"):
            return await asyncio.to_thread(Path(path).read_bytes)
        link, loop = self._open(), asyncio.get_running_loop()
        began, failures = loop.time(), 0
        while True:
            answer = await self._fetch(link, f"{self._file_path}{quote(path)}")
            if answer.accepted:
                content: bytes = answer.result
                return content
            if link.closed:
                raise _closed(DOWNLOAD)
            if answer.code is not None and answer.code < 500 and answer.code != 429:
                raise BotApiError(DOWNLOAD, answer.code, answer.text)
            failures += 1
            pause = answer.retry_after or jittered(backoff(failures, FIRST_PAUSE, LONGEST_PAUSE))
            if loop.time() + pause - began > self._patience:
                raise BotUnavailable(DOWNLOAD, answer.code, answer.text, retry_after=answer.retry_after)
            link.failed(DOWNLOAD, answer.text)
            if await link.closed_within(pause):
                raise _closed(DOWNLOAD)

    async def _fetch(self, link: _Link, path: str) -> _Answer:
        try:
            status, _, body = await link.get(path, self._timeout)
        except NoAnswer as error:
            return _Answer(None, self._without_token(str(error)))
        if status == 200:
            return _Answer(status, "", result=body, accepted=True)
        try:
            parsed = read_answer(body)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict) and parsed.get("ok") is False:
            return self._error_in(parsed, status)
        return _Answer(status, f"HTTP status {status} from {link.server}")

    async def _try(self, link: _Link, call: _Call, turn: SendTurn | None) -> Any:
        """Send a call until it is accepted or refused, or patience ends."""
        loop = link.loop
        began, failures, accepted = loop.time(), 0, link.accepted
        while True:
            answer = await self._attempt(link, call)
            if answer.accepted:
                self._note_accepted(link, turn)
                return answer.result
            if link.closed:
                raise _closed(call.method)
            pause = self._pause(link, call, turn, answer, failures + 1)
            if pause is None:
                raise self._refused(call, answer)
            failures += 1
            if loop.time() + pause - began > self._patience:
                raise self._given_up(link, call, answer, others_accepted=link.accepted > accepted)
            if turn is not None:
                await turn.again(pause)
            elif await link.closed_within(pause):
                raise _closed(call.method)

    async def _attempt(self, link: _Link, call: _Call) -> _Answer:
        try:
            status, header, body = await link.post(self._path + call.method, call)
        except NoAnswer as error:
            return _Answer(None, self._without_token(str(error)))
        try:
            parsed = read_answer(body)
        except ValueError:
            parsed = None
        ok = parsed.get("ok") if isinstance(parsed, dict) else None
        if ok is True:
            return _Answer(status, "", result=parsed.get("result"), accepted=True)
        if ok is not False:
            wait = float(header) if header.isascii() and header.isdigit() else None
            why = f"HTTP status {status} from {link.server}, no answer of the Bot API"
            return _Answer(None if status == 200 else status, why, wait, foreign=status not in REFUSALS)
        return self._error_in(parsed, status)

    def _error_in(self, parsed: dict[str, Any], status: int) -> _Answer:
        """Read an answer with ``"ok": false``. Fields of another type than Telegram's are ignored."""
        code, text, more = parsed.get("error_code"), parsed.get("description"), parsed.get("parameters")
        more = more if isinstance(more, dict) else {}
        wait, migrate_to = more.get("retry_after"), more.get("migrate_to_chat_id")
        return _Answer(
            code if type(code) is int else status,
            self._without_token(text) if isinstance(text, str) else "no description",
            wait if isinstance(wait, int | float) and wait > 0 else None,
            migrate_to if type(migrate_to) is int else None,
        )

    def _refused(self, call: _Call, answer: _Answer) -> BotApiError:
        kind = BotBlocked if answer.code == 403 and call.to_chat else BotApiError
        near = like_method(call.method) if answer.code == 404 else None
        text = answer.text if near is None else f"{answer.text}; did you mean {quoted(near)}?"
        return kind(call.method, answer.code, text, migrate_to_chat_id=answer.migrate_to)

    def _given_up(self, link: _Link, call: _Call, answer: _Answer, *, others_accepted: bool) -> BotApiError:
        if answer.code is not None and answer.code >= 500 and others_accepted and not answer.foreign:
            # The server fails for this call only, and would again.
            return self._refused(call, answer)
        # The texts of other answers name the server, or are Telegram's.
        server = f" from {link.server}" if answer.code is None and not answer.foreign else ""
        return BotUnavailable(call.method, answer.code, answer.text + server, retry_after=answer.retry_after)

    def _seconds(self, method: str, params: dict[str, Any]) -> float:
        """Return how long one answer may take: a long poll takes its own timeout in addition."""
        own = params.get("timeout") if method.lower() == "getupdates" else None
        return self._timeout + (float(own) if isinstance(own, (int, float)) else 0.0)

    def _without_token(self, text: str) -> str:
        return text.replace(self._token, "<token>")

    def _open(self) -> _Link:
        link = self._link
        if link is None:
            if self._closed:
                raise UsageError(f"{quoted(self)} is closed; enter it again with 'async with', or create another one")
            link = self._link = _Link(self._api, self._limits, self._patience)
        elif link.loop is not asyncio.get_running_loop():
            raise UsageError(f"{quoted(self)} was opened in another event loop; create one client for each loop")
        return link


class _Call(NamedTuple):
    """One call, as every attempt sends it."""

    method: str
    payload: Payload
    #: Seconds for one answer.
    timeout: float
    to_chat: bool


class _Answer(NamedTuple):
    """One answer; its ``code`` is ``None`` if the server gave none."""

    code: int | None
    text: str
    retry_after: float | None = None
    migrate_to: int | None = None
    result: Any = None
    accepted: bool = False
    #: A proxy or another server has answered in place of the Bot API.
    foreign: bool = False


class _Link:
    """The connections and the queue of an open client."""

    def __init__(self, api: str, limits: SendLimits | None, patience: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue = SendQueue(limits, patience=patience)
        #: How many calls were accepted.
        self.accepted = 0
        self.closed = False
        self._failing = False
        parts = urlsplit(api)
        self.server = f"{parts.scheme}://{parts.netloc}"
        self._closing = asyncio.Event()
        self._proxy = _proxy_for(api)
        #: For uploads and proxies.
        self._http: Any = None
        #: Calls through httpx: closing its transport does not end calls that read a file or connect.
        self._calls = CancelScopes()
        self._fast: Connections | None = None
        if self._proxy is None:
            context = _httpx.create_ssl_context() if api.startswith("https:") else None
            self._fast = Connections(api, context=context, size=CONNECTIONS, keep_alive=KEEP_ALIVE)

    def answered(self) -> None:
        """Note that a call was accepted."""
        self.accepted += 1
        if self._failing:
            self._failing = False
            logger.info("the Bot API accepts calls again")

    def failed(self, method: str, why: str) -> None:
        """Note that the server failed. An outage is logged once, not for each call."""
        if not self._failing:
            self._failing = True
            logger.warning("%s: no usable answer from %s (%s), retrying", method, self.server, why)

    def post(self, path: str, call: _Call) -> Coroutine[Any, Any, Response]:
        """Post a call to a path. Raises ``NoAnswer``."""
        if self.closed:
            raise NoAnswer("closed")
        if not call.payload.files and self._fast is not None:
            return self._fast.post(path.encode(), call.payload.json, call.timeout)
        return self._post_with_httpx(path, call)

    async def _post_with_httpx(self, path: str, call: _Call) -> Response:
        async with self._calls.scope():
            return await self._send_with_httpx(path, call)

    async def _send_with_httpx(self, path: str, call: _Call) -> Response:
        payload = call.payload
        if payload.files:
            contents = {name: (file.name, await read_content(file)) for name, file in payload.files.items()}
            body: dict[str, Any] = {"data": payload.fields, "files": contents}
        else:
            body = {"content": payload.json, "headers": {"Content-Type": "application/json"}}
        # Waiting for a free connection is not a failure of the server.
        timeout = _httpx.Timeout(call.timeout, pool=None).as_dict()
        request = _httpx.Request("POST", self.server + path, **body, extensions={"timeout": timeout})
        return await self._exchange(request)

    async def get(self, path: str, timeout: float) -> Response:
        """Get a path. Raises ``NoAnswer``."""
        if self.closed:
            raise NoAnswer("closed")
        times = _httpx.Timeout(timeout, pool=None).as_dict()
        request = _httpx.Request("GET", self.server + path, extensions={"timeout": times})
        async with self._calls.scope():
            return await self._exchange(request)

    async def _exchange(self, request: Any) -> Response:
        try:
            answer = await self._transport().handle_async_request(request)
            return Response(answer.status_code, answer.headers.get("Retry-After", ""), await answer.aread())
        except _httpx.HTTPError as error:
            raise NoAnswer(f"{type(error).__name__}: {error}".removesuffix(": ")) from None

    def _transport(self) -> Any:
        """Return the transport of httpx. A client of httpx would log URLs, and with them the token."""
        if self._http is None:
            kept = _httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=KEEP_ALIVE)
            self._http = _httpx.AsyncHTTPTransport(limits=kept, proxy=self._proxy)
        return self._http

    async def closed_within(self, seconds: float) -> bool:
        """Wait; return ``True`` as soon as the client is closed."""
        try:
            async with asyncio.timeout(seconds):
                return await self._closing.wait()
        except TimeoutError:
            return False

    async def close(self) -> None:
        self.closed = True
        self._closing.set()
        self.queue.close()
        self._calls.cancel()
        if self._fast is not None:
            await self._fast.close()
        if self._http is not None:
            await self._http.aclose()


def _proxy_for(api: str) -> str | None:
    """Return the proxy for a server from the environment, as httpx finds it."""
    parts = urlsplit(api)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        valid = bool(_httpx.Proxy(proxy).url.host)
    except (ValueError, _httpx.InvalidURL):
        valid = False
    if not valid:
        # It is not shown, because it may have a password.
        raise UsageError(
            f"the environment has a proxy for {parts.hostname} that is not valid; set HTTPS_PROXY or ALL_PROXY to a "
            "URL such as http://proxy.example.com:3128"
        )
    return proxy


def _closed(method: str) -> BotUnavailable:
    return BotUnavailable(method, None, "the client was closed")


def _check_api(api: str) -> str:
    try:
        parts = urlsplit(api)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except (ValueError, AttributeError, TypeError):
        valid = False
    # A password or a token would be shown in logs.
    if not valid or not api.isascii() or "@" in parts.netloc or parts.query or parts.fragment or ":" in parts.path:
        raise InvalidOption(f"BotClient(api=...): must be a URL like {TELEGRAM}, without the token")
    return api.rstrip("/")


def _check_seconds(name: str, value: float) -> float:
    check_number(value, f"BotClient({name}={{}}): must be a number of seconds above 0", above=0, finite=True)
    return float(value)
