"""The application: files, pages as JSON, and writes. ``stepwell.web.auth`` checks every request first."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from stepwell import Storage
from stepwell.engine import quoted
from stepwell.errors import Conflict, InvalidOption, StepwellError, StorageUnavailable
from stepwell.inspector.access import Access, Person, Role
from stepwell.inspector.flows import KnownFlows
from stepwell.inspector.metrics import CONTENT_TYPE, metrics
from stepwell.inspector.pages import ACTIONS, TAGS, VIEWS, current
from stepwell.inspector.subject import Subject
from stepwell.web.auth import AuthMiddleware, TrustedProxy
from stepwell.web.files import file_routes, not_found, page_files
from stepwell.web.http import Request, Response, Route, Starlette, object_of

__all__ = ["FILES", "Inspector", "inspector"]

#: All files that are served.
FILES = page_files(Path(__file__).parent / "page")
#: The path of the page for Prometheus.
METRICS = "/metrics"
#: The largest request in bytes.
MAX_REQUEST = 300 * 1024
_NO_ROLE = "you have no role here; ask an admin of the inspector to give you or one of your groups a role"
_READ_ONLY = "the inspector is read-only; start it with --allow-write, or inspector(..., allow_write=True)"


class Inspector:
    """An ASGI application that shows one storage.

    Example::

        app = inspector("sqlite:///bot.db", flows=[Registration], token="...", allow_write=True)
    """

    def __init__(
        self,
        storage: Storage,
        flows: Iterable[Any],
        is_allowed: Callable[[str], bool],
        *,
        token: str | Mapping[str, str] | None = None,
        schemes: tuple[str, ...] = ("http",),
        allow_write: bool = False,
        roles: Mapping[str, Role] | None = None,
        proxy: TrustedProxy | None = None,
        name: str = "inspector",
        on_new_token: Callable[[], None] | None = None,
    ) -> None:
        tokens = {name: token} if isinstance(token, str) else dict(token or {})
        if token is not None and not tokens:
            raise InvalidOption("token={} has no tokens; give each person one: token={'anna': ...}")
        self.storage: Storage = storage
        self.flows: KnownFlows = KnownFlows(flows)
        #: Who may do what.
        self.access: Access = Access(tokens, roles, proxy, allow_write=allow_write, name=name)
        #: Whether anybody may edit.
        self.allow_write: bool = self.access.has_writers
        #: The name that writes are logged with, unless several tokens have names.
        self.name: str = name
        self._subject = Subject(storage, self.flows)
        self.auth: AuthMiddleware = AuthMiddleware(
            _routes(self, self._subject),
            is_allowed,
            tokens=tokens,
            schemes=schemes,
            on_new_token=on_new_token,
            for_scrapers=(METRICS,),
            proxy=proxy,
        )

    @property
    def token(self) -> str:
        """The token that opens a session: ``/?token=...``; the first one of several. A random token works once."""
        return self.auth.token

    async def close(self) -> None:
        """Stop reading the storage. The storage stays open."""
        await self._subject.close()

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Respond to a request."""
        await self.auth(scope, receive, send)


def inspector(
    storage: Storage,
    flows: Iterable[Any] = (),
    *,
    token: str | Mapping[str, str] | None = None,
    hosts: Iterable[str] = ("127.0.0.1", "localhost"),
    allow_write: bool = False,
    roles: Mapping[str, Role] | None = None,
    proxy: TrustedProxy | None = None,
    name: str = "inspector",
) -> Inspector:
    """Return an ASGI application that shows the records and runs of a storage, to mount in another one::

        app.mount("/inspect", inspector(storage, [Registration], token=os.environ["INSPECT_TOKEN"]))

    Open ``/inspect/?token=...`` once; the browser gets a cookie. The storage is opened if necessary, and never closed.

    :param flows: classes of ``Flow``, node flows, an ``FSM`` or a ``Router``; for diagrams and the names of states.
    :param token: at least 16 random characters. It opens any number of sessions, in all processes that have it.
        ``token={"anna": ..., "ben": ...}`` gives each person a token; writes are logged with the name of the token.
        Without it, each process has a random ``token`` that opens one session.
    :param hosts: the host names that browsers may use, with or without a port.
    :param allow_write: whether records and runs may be edited, if there are no ``roles``.
    :param roles: the role of each person with a token, and of people and groups that the ``proxy`` names:
        ``"viewer"``, ``"operator"`` (answers, retries, sends) or ``"admin"`` (edits everything). A person with a token
        and without a role is a viewer.
    :param proxy: a server in front that names the person in headers of each request.
    :param name: the name that writes are logged with.
    """
    allowed = frozenset(hosts)

    def is_allowed(host: str) -> bool:
        return host in allowed or host.rpartition(":")[0] in allowed

    return Inspector(
        storage,
        flows,
        is_allowed,
        token=token,
        schemes=("http", "https"),
        allow_write=allow_write,
        roles=roles,
        proxy=proxy,
        name=name,
    )


def _routes(app: Inspector, subject: Subject) -> Starlette:
    async def show(request: Request) -> Response:
        name = request.path_params["name"]
        person = app.access.person(request.scope)
        if person is None:
            return _json({"ok": False, "error": _NO_ROLE}, 403)
        if name not in VIEWS:
            return _json({"ok": False, "error": f"there is no page {quoted(name)}"}, 404)
        params, known = dict(request.query_params), request.headers.get("if-none-match")
        try:
            await app.storage.ensure_open()
            tag = f"{await TAGS[name](subject, params)} {person.role}" if name in TAGS else None
            if tag is None or tag != known:
                response = _json({"ok": True, **_about(person), name: await VIEWS[name](subject, params)})
                tag = tag or sha256(bytes(response.body)).hexdigest()
                if tag != known:
                    response.headers["ETag"] = tag
                    return response
        except StepwellError as error:
            return _refusal(error)
        # The page of the browser has it already.
        return Response(status_code=304)

    async def scrape(request: Request) -> Response:
        if app.access.person(request.scope) is None:
            return _json({"ok": False, "error": _NO_ROLE}, 403)
        try:
            await app.storage.ensure_open()
            text = await metrics(subject)
        except StepwellError as error:
            return _refusal(error)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    async def act(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ACTIONS:
            return _json({"ok": False, "error": f"there is no action {quoted(name)}"}, 404)
        person = app.access.person(request.scope)
        if person is None or not person.may(name):
            return _json({"ok": False, "error": _refused(app, person, name)}, 403)
        given: dict[str, Any] = {}
        try:
            given = await object_of(request, MAX_REQUEST)
            await app.storage.ensure_open()
            done = await ACTIONS[name](app.storage, app.flows, person.name, given)
        except Conflict as error:
            now: dict[str, Any] = {}
            # The record may be gone or damaged.
            with suppress(StepwellError):
                now = await current(app.storage, given)
            return _json({"ok": False, "conflict": True, "error": str(error), **now}, 409)
        except StepwellError as error:
            return _refusal(error)
        except ValueError as error:
            return _json({"ok": False, "error": f"the request is not valid JSON ({error})"}, 400)
        return _json({"ok": True, **done})

    return Starlette(
        routes=[
            *file_routes(FILES),
            Route(METRICS, scrape, methods=["GET"]),
            Route("/api/{name}", show, methods=["GET"]),
            Route("/api/{name}", act, methods=["POST"]),
        ],
        exception_handlers={404: not_found},
    )


def _about(person: Person) -> dict[str, Any]:
    """Return who looks, and which edits the page offers."""
    can = [name for name in ACTIONS if person.may(name)]
    return {"person": person.name, "role": person.role, "can": can, "allow_write": bool(can)}


def _refused(app: Inspector, person: Person | None, action: str) -> str:
    if person is None:
        return _NO_ROLE
    if not app.allow_write:
        return _READ_ONLY
    return f"the role {person.role} may not do this ({action.replace('_', ' ')}); ask an operator or an admin"


def _refusal(error: StepwellError) -> Response:
    status = 404 if isinstance(error, LookupError) else 503 if isinstance(error, StorageUnavailable) else 400
    return _json({"ok": False, "error": str(error)}, status)


def _json(content: dict[str, Any], status: int = 200) -> Response:
    # Not JSONResponse: stored names may have lone surrogates, which UTF-8 cannot encode.
    return Response(json.dumps(content), status, media_type="application/json")
