"""The chat as an ASGI application: messages in, the UI message stream of the AI SDK or plain events out, and a page."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from stepwell.engine import quoted, require
from stepwell.errors import InvalidOption, StorageUnavailable, TooLarge, UsageError
from stepwell.options import check_function, check_instance, check_whole
from stepwell.turns import Turns
from stepwell.web.auth import HEADERS
from stepwell.web.chat_conversation import Chunks, Visitor, WebConversation

require("starlette", "web")

from stepwell.web.error_page import error_response  # noqa: E402
from stepwell.web.files import file_routes, not_found, page_files  # noqa: E402
from stepwell.web.http import (  # noqa: E402
    JSONResponse,
    PlainTextResponse,
    Request,
    Response,
    Route,
    Starlette,
    StreamingResponse,
    object_of,
)
from stepwell.web.ui_messages import APPROVED  # noqa: E402

__all__ = ["FILES", "WebChat", "chat"]

#: All files of the page.
FILES: Final = page_files(Path(__file__).parent / "chat_page")
#: The id of a chat of one person.
_CHAT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: The longest id of a message, and of a person.
_LONGEST_ID: Final = 128
_UI_STREAM: Final = {"X-Vercel-AI-UI-Message-Stream": "v1", "X-Accel-Buffering": "no"}

#: Responds to a request: with a stream, with JSON, or with nothing.
Work: TypeAlias = Callable[[WebConversation, Request, dict[str, Any]], Awaitable[Any]]


class _RefusedRequest(Exception):
    """A request is refused; the text is for the person."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status: int = status


class WebChat:
    """A chat on the web, as an ASGI application; ``chat()`` makes it.

    Example::

        from stepwell.turns import Turns
        from stepwell.web import chat

        app = chat(Turns("my_bot", storage="sqlite:///bot.db"), user=lambda request: request.session.get("user"))
    """

    def __init__(
        self, turns: Turns, user: Callable[[Any], Any], *, origins: Iterable[str], tools: bool, worker: bool,
        most_streams: int, max_request: int,
    ) -> None:  # fmt: skip
        self.turns: Turns = turns
        self._user = user
        self._origins = frozenset(origins)
        self._tools, self._most_streams, self._max_request = tools, most_streams, max_request
        self._streams: Counter[int | str] = Counter()
        routes: list[tuple[str, str, Work]] = [
            ("POST", "", _converse), ("GET", "/{chat}/stream", _resume), ("GET", "/{chat}/events", _events),
            ("GET", "/{chat}/messages", lambda conversation, *_: conversation.messages()),
            ("POST", "/{chat}/messages", _send), ("POST", "/{chat}/decide", _decide),
            ("POST", "/{chat}/stop", lambda conversation, *_: conversation.stop()),
        ]  # fmt: skip
        self._app = Starlette(
            routes=[
                *(
                    Route(f"/api{path}", partial(self._respond, work), methods=[method])
                    for method, path, work in routes
                ),
                *file_routes(FILES),
            ],
            exception_handlers={404: not_found},
            lifespan=self.lifespan if worker else None,
        )

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:  # fmt: skip
        """Respond to a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        answer = await self._checked(Request(scope, receive))
        await (self._app if answer is None else answer)(scope, receive, with_headers)

    def worker(self, **options: Any) -> AbstractAsyncContextManager[Turns]:
        """Run turns within a block: ``async with web.worker(client=client):``.

        ``options``: those of ``Turns.worker``. Give the client of the bot if people write to it in Telegram too.
        """
        if options.get("send") is None and options.get("client") is None:
            options["send"] = _no_sender
        return self.turns.worker(**options)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Run turns while a server runs: the ``lifespan`` of the application that this one is mounted in."""
        async with self.worker():
            yield

    async def _checked(self, request: Request) -> Response | None:
        """Return the response that refuses a request; ``None`` if it is allowed."""
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        if any(each not in self._origins and [urlsplit(each).netloc] != hosts for each in origins):
            return error_response(request, 403, "Not allowed", "Requests from other origins are not allowed.")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method not in ("GET", "HEAD") and kind != "application/json":
            # Pages of other sites may send other types without asking the browser first.
            return error_response(request, 415, "Not supported", "The content type must be application/json.")
        found = self._user(request)
        found = await found if inspect.isawaitable(found) else found
        if isinstance(found, Response):
            return found
        if found is None:
            return error_response(request, 401, "Not signed in", "You are not signed in.")
        person = found if isinstance(found, Visitor) else Visitor(found)
        if type(person.id) not in (int, str) or not person.id:
            raise UsageError("chat(user=...) returns the id of a person, a Visitor, None or a response")
        if len(str(person.id).encode("utf-8", "replace")) > _LONGEST_ID:
            return error_response(request, 400, "Not allowed", "The name of this person is too long.")
        request.scope["stepwell.person"] = person
        return None

    async def _respond(self, work: Work, request: Request) -> Response:
        person, chat_id = request.scope["stepwell.person"], request.path_params.get("chat")
        try:
            given = {} if request.method == "GET" else await object_of(request, self._max_request)
            chat_id = given.get("id") if chat_id is None else chat_id
            if not isinstance(chat_id, str) or not _CHAT.fullmatch(chat_id):
                raise _RefusedRequest(400, "The id of a chat has 1 to 64 letters, digits, _ and -.")
            await self.turns.storage.ensure_open()
            conversation = WebConversation(self.turns, person, chat_id, tools=self._tools)
            if conversation.key is None:
                raise _RefusedRequest(404, "There is no such chat.")
            found = await work(conversation, request, given)
        except _RefusedRequest as error:
            return PlainTextResponse(str(error), error.status)
        except TooLarge:
            return PlainTextResponse("This message is too long.", 413)
        except StorageUnavailable:
            return PlainTextResponse("The chat is not available now. Please try again.", 503)
        except (UsageError, ValueError) as error:
            return PlainTextResponse(f"The request is not valid: {error}", 400)
        if not isinstance(found, AsyncGenerator):
            return Response(status_code=204) if found is None else JSONResponse(found)
        if self._streams[person.id] >= self._most_streams:
            return PlainTextResponse("Too many streams of this person are open. Close some tabs.", 429)
        headers = _UI_STREAM if not request.url.path.endswith("/events") else {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._counted(person.id, found), media_type="text/event-stream", headers=headers)

    async def _counted(self, person: int | str, lines: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        self._streams[person] += 1
        try:
            async with aclosing(lines):
                async for line in lines:
                    yield line
        finally:
            self._streams[person] -= 1
            self._streams += Counter()


def chat(
    turns: Turns,
    *,
    user: Callable[[Any], Any],
    origins: Iterable[str] = (),
    tools: bool = True,
    worker: bool = True,
    most_streams: int = 20,
    max_request: int = 2 * 1024 * 1024,
) -> WebChat:
    """Return an ASGI application with which people chat with an agent in the browser.

    ``/`` is a page without a framework; ``useChat`` of the AI SDK takes ``/api`` as its ``api``. Both show the
    conversation that ``turns`` have for this person. With ``identity=`` of the turns it may be the one in Telegram.

    :param user: a function of the request, perhaps ``async``, that returns who has sent it: an id, a ``Visitor``,
        ``None`` for nobody, or a response, such as a redirect to your login. Nobody else sees their conversation.
    :param origins: the origins of other sites whose pages may use this one, such as ``"https://app.example.com"``.
    :param tools: whether people see the calls of tools with their arguments and results.
    :param worker: run the turns in this process while the server runs, unless another process runs them. Where the
        application is mounted, give the outer one its ``lifespan``.
    :param most_streams: how many streams one person may have open in this process.
    :param max_request: the largest request in bytes. ``useChat`` sends all messages of the chat each time.

    Example::

        from stepwell.turns import Turns
        from stepwell.web import chat

        turns = Turns("my_bot", storage="sqlite:///bot.db")
        app = chat(turns, user=lambda request: request.session.get("user"))
    """
    check_instance(turns, Turns, "chat() takes Turns, got {type}")
    check_function(user, "chat(user=...) is a function of the request, not {}")
    check_whole(most_streams, "chat(most_streams=...) must be a whole number of at least 1, not {}", least=1)
    check_whole(max_request, "chat(max_request=...) must be a number of bytes of at least 1, not {}", least=1)
    allowed = [origins] if isinstance(origins, str) else list(origins)
    for each in allowed:
        if not re.fullmatch(r"https?://[^/?#@]+", each):
            raise InvalidOption(
                f"chat(origins=[...]) takes a scheme and a host, such as 'https://app.example.com', not {quoted(each)}"
            )
    return WebChat(
        turns, user, origins=allowed, tools=tools, worker=worker, most_streams=most_streams, max_request=max_request
    )


async def _no_sender(call: Mapping[str, Any]) -> None:
    raise UsageError(
        "this process has no client of a bot to send with; run the turns where the bot runs, with chat(worker=False) "
        "here, or give one: app.worker(client=client)"
    )


async def _converse(conversation: WebConversation, request: Request, given: dict[str, Any]) -> Any:
    """Take what ``useChat`` sends: all messages of the chat. The last one is new, or has answers to questions."""
    messages = given.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    parts = last.get("parts") if isinstance(last, dict) else None
    if not isinstance(last, dict) or not isinstance(parts, list) or not all(isinstance(each, dict) for each in parts):
        raise _RefusedRequest(400, "The request has no messages.")
    number = _text(last.get("id"), "id", _LONGEST_ID)
    if last.get("role") == "user":
        texts = [each.get("text") for each in parts if each.get("type") == "text"]
        await _take(conversation, number, "\n".join(each for each in texts if isinstance(each, str)))
        return _chunk_lines(conversation.answer_to(number))
    known = [_known_part(each) for each in parts if each.get("type") != "step-start"]
    approvals = [each["approval"] for each in known if each.get("state") == APPROVED]
    for each in approvals:
        if not isinstance(each.get("approved"), bool):
            raise _RefusedRequest(400, "An answer says whether it approves.")
        await _answer(conversation, _text(each.get("id"), "id"), each.get("reason"), approved=each["approved"])
    if not approvals:
        raise _RefusedRequest(400, "The last message is not one of a person, and answers no question.")
    return _chunk_lines(conversation.completed(number, known, approvals[-1]["id"]))


async def _resume(conversation: WebConversation, request: Request, given: dict[str, Any]) -> Any:
    chunks = await conversation.resumed()
    return None if chunks is None else _chunk_lines(chunks)


async def _events(conversation: WebConversation, request: Request, given: dict[str, Any]) -> Any:
    after = request.headers.get("last-event-id") or request.query_params.get("after", "")
    return _event_lines(conversation, int(after) if re.fullmatch(r"[0-9]{1,12}", after) else 0)


async def _send(conversation: WebConversation, request: Request, given: dict[str, Any]) -> Any:
    return await _take(conversation, _text(given.get("id"), "id", _LONGEST_ID), given.get("text"))


async def _decide(conversation: WebConversation, request: Request, given: dict[str, Any]) -> Any:
    await _answer(conversation, _text(given.get("id"), "id"), _text(given.get("choice"), "choice"))
    return {"outcome": "accepted"}


async def _take(conversation: WebConversation, number: str, text: Any) -> dict[str, str]:
    admission = await conversation.send(number, _text(text, "text"))
    said = "\n".join(each for call in admission.calls if isinstance(each := call.get("text"), str))
    if admission.outcome not in ("taken", "known", "answer"):
        raise _RefusedRequest(409, said or "This message was not taken.")
    return {"outcome": admission.outcome, **({"said": said} if said else {})}


async def _answer(conversation: WebConversation, approval: str, choice: Any, *, approved: bool | None = None) -> None:
    refused = await conversation.decide(approval, choice, approved=approved)
    if refused is not None:
        raise _RefusedRequest(409, refused)


def _text(given: Any, name: str, longest: int | None = None) -> str:
    if not isinstance(given, str) or not given.strip() or (longest is not None and len(given) > longest):
        raise _RefusedRequest(
            400, f"The request needs a text as its {name}{f' of at most {longest} characters' * bool(longest)}."
        )
    return given


def _known_part(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return what matters of a part that a page has."""
    approval = part.get("approval")
    if not isinstance(part.get("type"), str) or not isinstance(part.get("text", ""), str):
        raise _RefusedRequest(400, "A part of the message is not valid.")
    if part.get("state") == APPROVED and not isinstance(approval, dict):
        raise _RefusedRequest(400, "An answer does not name its question.")
    return {"text": "", **{name: part.get(name) for name in ("type", "toolCallId", "state", "approval")}, **part}


async def _chunk_lines(chunks: Chunks) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        async for chunk in chunks:
            yield b": here\n\n" if chunk is None else f"data: {json.dumps(chunk)}\n\n".encode()
    yield b"data: [DONE]\n\n"


async def _event_lines(conversation: WebConversation, after: int) -> AsyncGenerator[bytes, None]:
    async with aclosing(conversation.events(after)) as events:
        async for event in events:
            number, changed = event or (0, [])
            yield f"id: {number}\ndata: {json.dumps(changed)}\n\n".encode() if event else b": here\n\n"
