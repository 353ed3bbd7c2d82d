"""A router: find the handler of an update, without a framework."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from stepwell import _portal
from stepwell._backoff import backoff
from stepwell._secrets import quoted
from stepwell.errors import Conflict, InvalidOption, StorageError, UnknownFlowError, UsageError
from stepwell.fsm.base import Send
from stepwell.fsm.beside import Beside, RunsBeside, WorkerOptions
from stepwell.fsm.bot import BotMethods
from stepwell.fsm.conversation.context import Context, Handler
from stepwell.fsm.conversation.conversation import Conversation
from stepwell.fsm.filters import Condition, Filter, as_filter
from stepwell.fsm.flows.hooks import takes
from stepwell.fsm.machine import FSM
from stepwell.fsm.refusals import sending
from stepwell.fsm.update import KINDS, ON_REQUEST, Update
from stepwell.options import check, check_choice, check_function, check_instance, check_whole
from stepwell.record import Address
from stepwell.storage import Storage

__all__ = ["Router"]

ErrorHandler: TypeAlias = Callable[[Context, Exception], Any]
#: It gets the context, and a function that goes on with the update.
Middleware: TypeAlias = Callable[[Context, Callable[[], Awaitable[None]]], Awaitable[None]]
M = TypeVar("M", bound=Middleware)
H = TypeVar("H", bound=Handler)
E = TypeVar("E", bound=ErrorHandler)
#: A function at the start or the stop of the bot. It may take the client of the bot.
S = TypeVar("S", bound=Callable[..., Any])
#: Which updates are remembered: those that changed something, or also those that were answered.
Remember: TypeAlias = Literal["changes", "answers"]

#: Seconds before a handler is called again: the first pause, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class Route(NamedTuple):
    """A handler, and how often it is called if it raises."""

    handler: Handler
    attempts: int
    #: The handler is a coroutine function, which needs no thread.
    is_async: bool
    remember: Remember


class PlacedRoute(NamedTuple):
    """A route, with what it has from the routers around it."""

    filters: tuple[Filter, ...]
    route: Route
    on_error: ErrorHandler | None
    #: The middleware of the included routers that it is in, the outermost first.
    around: tuple[Middleware, ...]


class Attached(Protocol):
    """What is attached to a router: it gets the updates that no handler matches."""

    def is_control(self, update: Update) -> bool:
        """Return whether an update stops or decides something, so that it must not wait for others."""
        ...

    async def control(self, update: Update) -> list[dict[str, Any]] | None:
        """Do what a control tells. Return the calls to make, or ``None`` if the handlers get the update too."""
        ...

    async def admit(self, update: Any) -> Any:
        """Take an update, and return what has become of it, with the calls to make in ``calls``."""
        ...

    def move_to(self, storage: Storage) -> None:
        """Use another storage from now on."""
        ...

    def worker(self, *, send: Send, client: Any) -> AbstractAsyncContextManager[Any]:
        """Return a block in which what was taken is worked off."""
        ...

    def address_of(self, update: Update) -> Address | None:
        """Return where an update is kept, if anywhere."""
        ...

    def hold(self, held: Callable[[Address], bool] | None) -> None:
        """Work off nothing at the addresses for which ``held`` returns ``True``."""
        ...


class Router:
    """Handlers with their filters. The first handler whose filters match gets the update.

    ``Router(fsm)`` handles updates. A ``Router()`` without a machine only collects handlers, for another router to
    ``include``. With ``send`` each Bot API call is also passed to that function, ``def`` or ``async def``, after the
    commit. ``client`` is ``ctx.bot`` in handlers; without it, they get that of ``run_polling`` or ``webhook``.

    An update that changed nothing costs no write, and its handler runs again if the update is delivered again. With
    ``remember="answers"`` the answers of such a handler are stored with the update's id before they are sent, so that
    a repeated delivery sends them and runs nothing. That is one write for each answered update.

    Example::

        router = Router(FSM("my_bot", storage="sqlite:///bot.db", flows=[Registration]))

        @router.on(command("register"))
        async def begin(ctx):
            ctx.start_flow(Registration)
            ctx.answer("What's your name?")
    """

    def __init__(
        self,
        fsm: FSM | None = None,
        *,
        send: Send | None = None,
        client: BotMethods | None = None,
        remember: Remember = "changes",
    ) -> None:
        check_instance(fsm, FSM, "Router(fsm) takes an FSM, got {}", optional=True)
        check_instance(client, BotMethods, "Router(client=...) takes a BotClient, got {}", optional=True)
        check_function(send, "Router(send=...) takes a function of a call, got {}", optional=True)
        self.fsm: FSM | None = fsm
        self.send: Send | None = send
        self.remember: Remember = _checked_remember(remember)
        if fsm is not None and fsm.send is None:
            # The calls of timers are sent the same way.
            fsm.send = send
        if fsm is not None and client is not None:
            fsm.client = client
        if fsm is not None and (fsm.albums is None or not fsm.albums.collects_albums):
            fsm.albums = self
        self._routes: list[tuple[tuple[Filter, ...], Route | Router]] = []
        #: At most one. A list, because the routers of ``scope`` share it.
        self._error_handlers: list[ErrorHandler] = []
        self._middleware: list[Middleware] = []
        self._scope: tuple[Filter, ...] = ()
        self._lifecycle = RunsBeside()
        self._attached: list[Attached] = []

    def on(self, *filters: Filter | Condition, attempts: int = 1, remember: Remember | None = None) -> Callable[[H], H]:
        """Decorate a handler, ``async def handler(ctx)``, for updates that match all these filters.

        A ``def`` handler runs in a thread. ``attempts``: how often a handler that raises is called, with a rollback and
        a short pause in between, while the conversation stays claimed. ``remember``: as that of the router, for this
        handler.
        """
        chosen = self._checked(filters)
        check_whole(attempts, "attempts must be a number of at least 1, got {}", least=1)
        remembered = self.remember if remember is None else _checked_remember(remember)

        def register(handler: H) -> H:
            check_function(handler, "@router.on(...) decorates a function of the context, got {}")
            _check_function(handler, "ctx")
            self._warn_if_unreachable(getattr(handler, "__name__", repr(handler)))
            route = Route(handler, attempts, inspect.iscoroutinefunction(handler), remembered)
            self._routes.append((self._scope + chosen, route))
            return handler

        return register

    def on_error(self, handler: E) -> E:
        """Decorate the function ``async def on_error(ctx, error)`` for handlers of this router that raise.

        It runs after a rollback, within the same claim. Its answers and changes are committed, and the update counts
        as handled. It is not called if the storage fails or the claim is lost. An error in it is raised.
        """
        check_function(handler, "@router.on_error decorates a function of the context and the error, got {}")
        _check_function(handler, "ctx", "error")
        if self._error_handlers:
            raise InvalidOption("this router has an error handler already")
        self._error_handlers.append(handler)
        return handler

    def middleware(self, around: M) -> M:
        """Decorate a function ``async def around(ctx, handle)`` that is called around the handlers of this router.

        It is called within the claim, before the filters, and goes on with ``await handle()``; without that, no handler
        gets the update. The one that was registered first is the outermost. That of an included router is called
        around its own handlers only, when the filters of one of them have matched. It is called again with each attempt
        of a handler, and not for timers.

        Example::

            @router.middleware
            async def only_members(ctx, handle):
                if ctx.update.user is not None and ctx.update.user.id in MEMBERS:
                    await handle()
        """
        check_function(around, "@router.middleware decorates a function of the context and handle, got {}")
        calls: Any = around if inspect.isroutine(around) else getattr(around, "__call__", around)  # noqa: B004
        check(inspect.iscoroutinefunction(calls), "middleware is an async def, which awaits handle(); got {}", around)
        _check_function(around, "ctx", "handle")
        self._middleware.append(around)
        return around

    def on_startup(self, function: S) -> S:
        """Decorate a function, ``def`` or ``async def``, that is called when the bot starts.

        It is called before the first update and the first timer; the storage is open, and the client of the bot is its
        argument if it takes one. If it raises, the bot does not start. ``run_polling``, ``webhook``, ``stepwell run``
        and ``stepwell play`` call it, once in each process.

        Example::

            @router.on_startup
            async def show_commands(bot):
                await bot.set_my_commands(commands=[{"command": "start", "description": "Begin"}])
        """
        self._lifecycle.startup.append(_checked_hook("on_startup", function))
        return function

    def on_shutdown(self, function: S) -> S:
        """Decorate a function, ``def`` or ``async def``, that is called when the bot stops.

        It is called after the last update and the last timer, in the reverse order of the registration; the storage is
        still open. Its errors are logged.

        Example::

            @router.on_shutdown
            async def say_goodbye(bot):
                await bot.send_message(chat_id=42, text="The bot stops.")
        """
        self._lifecycle.shutdown.append(_checked_hook("on_shutdown", function))
        return function

    def run_workers(self, *flows: Any, **options: Any) -> None:
        """Run the submitted runs of these node flows in the process of the bot, from its start to its stop.

        ``options`` are those of ``stepwell.nodes.worker``, such as ``concurrency=4``. Flows without a storage have that
        of the conversations. ``stepwell run --no-runs`` leaves the runs to other processes.

        Example::

            router.run_workers(flow, concurrency=4)
        """
        check(flows, "run_workers() needs the node flows whose runs it runs: router.run_workers(flow), got {}", flows)
        for flow in flows:
            check(
                hasattr(flow, "submit") and hasattr(flow, "storage"),
                "router.run_workers({}): pass node flows, NodeFlow(...)",
                flow,
            )
        self._lifecycle.beside.append(WorkerOptions(flows, options))

    def run_beside(self, make: Beside) -> None:
        """Enter a block when the bot starts, and leave it when the bot stops: ``async with make(bot):``.

        ``make`` is called with the client of the bot, and returns the block, an async context manager.

        Example::

            from contextlib import asynccontextmanager

            @asynccontextmanager
            async def connection(bot):
                print("connected")
                try:
                    yield
                finally:
                    print("disconnected")

            router.run_beside(connection)
        """
        check_function(make, "run_beside() takes a function of the bot that returns an async context manager, got {}")
        self._lifecycle.beside.append(make)

    @property
    def lifecycles(self) -> Iterator[RunsBeside]:
        """What this router and the included ones have beside their handlers, for the runners."""
        seen: list[RunsBeside] = []
        for each in (self, *self._included()):
            if all(each._lifecycle is not other for other in seen):
                seen.append(each._lifecycle)
        return iter(seen)

    def scope(self, *filters: Filter | Condition) -> Router:
        """Return a router whose handlers have these filters too. They keep their order among this router's handlers."""
        inner = Router(self.fsm, send=self.send, remember=self.remember)
        inner._scope = self._scope + self._checked(filters)
        inner._routes, inner._error_handlers = self._routes, self._error_handlers
        inner._middleware, inner._lifecycle = self._middleware, self._lifecycle
        return inner

    def include(self, other: Router) -> None:
        """Add the handlers of another router, including handlers that are added to it later."""
        check_instance(other, Router, "include() takes a Router, got {}")
        if other._routes is self._routes or any(inner._routes is self._routes for inner in other._included()):
            raise InvalidOption("a router cannot include itself")
        for found in other._flat():
            self._checked(found.filters)
        self._warn_if_unreachable("the included router")
        self._routes.append((self._scope, other))

    def attach(self, other: Attached) -> None:
        """Pass on what no handler matches, as ``Turns.attach`` does, and let the runner of this router serve it."""
        if other not in self._attached:
            self._attached.append(other)

    @property
    def attached(self) -> tuple[Attached, ...]:
        """What gets the updates that no handler matches."""
        return tuple(self._attached)

    def is_control(self, update: Update) -> bool:
        """Return whether an update stops or decides something, so that it must not wait for others of its chat."""
        return any(other.is_control(update) for other in self._attached)

    @asynccontextmanager
    async def serving(self, send: Send, client: Any = None) -> AsyncIterator[None]:
        """Serve what is attached within a block: what a runner of this router does while it runs."""
        async with AsyncExitStack() as stack:
            for other in self._attached:
                await stack.enter_async_context(other.worker(send=self.send or send, client=client))
            yield

    @property
    def allowed_updates(self) -> list[str] | None:
        """The kinds to request with ``setWebhook`` or ``getUpdates``; ``None`` if Telegram's default is enough.

        Telegram sends ``chat_member``, ``message_reaction`` and ``message_reaction_count`` only on request. They are
        requested if the filters of a handler have ``kind(...)`` with their names.
        """
        named = {name for found in self._flat() for each in found.filters for name in each._kinds}
        if named.isdisjoint(ON_REQUEST):
            return None
        return [name for name in KINDS if name in named or name not in ON_REQUEST]

    async def handle(self, update: Any) -> list[dict[str, Any]]:
        """Handle an update and return the Bot API calls to make, each a dict with ``method`` and its parameters.

        Without a matching handler, return ``[]`` and write nothing. For an update that was handled before, return the
        same calls again if it is the newest of its key, because they may not have been sent, else ``[]``.
        """
        calls, conversation = await self._collect(update)
        if self.send is not None and calls:
            with sending(conversation.origin):
                for call in calls:
                    await _portal.call_function(self.send, call)
        return calls

    async def _collect(
        self,
        update: Any,
        on_claim: Callable[[], Awaitable[None]] | None = None,
        repeats: Callable[[BaseException], bool] | None = None,
        attempt: int = 1,
        on_wait: Callable[[], None] | None = None,
    ) -> tuple[list[dict[str, Any]], Conversation]:
        """Handle an update; return its calls, without sending them, and its conversation.

        ``on_claim``: called once the key is claimed. ``repeats``, ``attempt`` and ``on_wait``: see ``Conversation``.
        """
        if self.fsm is None:
            raise InvalidOption(
                "this router has no machine; make it with Router(fsm), or include it in a router with one"
            )
        update = Update.of(update)
        conversation = Conversation(
            self.fsm, update, collects=True, enters=True, repeats=repeats, attempt=attempt, on_wait=on_wait
        )
        for other in self._attached:
            if other.is_control(update):
                calls = await other.control(update)
                if calls is not None:
                    return calls, conversation
        async with conversation as ctx:
            if on_claim is not None:
                await on_claim()
            if not ctx.duplicate:
                await self._run(conversation, ctx)
            # The same list that hooks add to before the commit.
            return ctx.calls, conversation

    def handle_sync(self, update: Any) -> list[dict[str, Any]]:
        """``handle`` for code without an event loop. A ``def`` handler runs in the caller's thread, and may block."""
        return _portal.sync(self.handle(update))

    @property
    def collects_albums(self) -> bool:
        """Whether a handler has the filter ``album()``, so that the messages of albums are collected."""
        return any(each._collects_albums for found in self._flat() for each in found.filters)

    async def handle_album(self, conversation: Conversation, ctx: Context) -> None:
        """Call the handler of an album. The timers of the machine call this."""
        await self._run(conversation, ctx)

    async def _run(self, conversation: Conversation, ctx: Context) -> None:
        """Call the handler of an update, and its error handler if that fails."""
        if ctx.update.media_group_id is not None and ctx._album is None and conversation.add_to_album():
            return
        found = PlacedRoute((), _NOBODY, self._error_handlers[0] if self._error_handlers else None, ())

        async def handle() -> None:
            nonlocal found
            if found.route is _NOBODY:
                matched = self._find(ctx)
                if matched is None:
                    for other in self._attached:
                        ctx.calls.extend((await other.admit(ctx.update)).calls)
                    return
                found = matched
                conversation.handler = found.route.handler
                conversation.remembers_answers = found.route.remember == "answers"
            if found.around:
                await _wrapped(found.around, ctx, partial(_call, found.route, ctx))()
            else:
                await _call(found.route, ctx)

        failures = 0
        while True:
            try:
                await (_wrapped(self._middleware, ctx, handle)() if self._middleware else handle())
                if found.on_error is not None or found.route.attempts > 1:
                    await conversation.run_hooks()
                return
            except (Conflict, StorageError):
                raise
            except Exception as error:
                failures += 1
                last = failures >= found.route.attempts
                if last and found.on_error is None:
                    raise
                await conversation.rollback(error, again=not last)
                if last:
                    assert found.on_error is not None
                    await _portal.call_function(found.on_error, ctx, error)
                    return
            await asyncio.sleep(backoff(failures, FIRST_PAUSE, LONGEST_PAUSE))

    def _find(self, ctx: Context) -> PlacedRoute | None:
        """Return the first handler whose filters match."""
        for found in self._flat():
            ctx.match = None
            for accepts in found.filters:
                if not accepts(ctx):
                    break
            else:
                return found
        return None

    def _flat(
        self,
        before: tuple[Filter, ...] = (),
        inherited: ErrorHandler | None = None,
        around: tuple[Middleware, ...] = (),
    ) -> Iterator[PlacedRoute]:
        """Yield the handlers in their order, with what they have from the routers around them."""
        on_error = self._error_handlers[0] if self._error_handlers else inherited
        for filters, target in self._routes:
            if isinstance(target, Router):
                yield from target._flat(before + filters, on_error, (*around, *target._middleware))
            else:
                yield PlacedRoute(before + filters, target, on_error, around)

    def _warn_if_unreachable(self, name: str) -> None:
        for filters, target in self._routes:
            if not filters and isinstance(target, Route):
                earlier = getattr(target.handler, "__name__", repr(target.handler))
                warnings.warn(
                    f"{name} never gets an update, because {earlier}, which was added before it, takes all of them; "
                    f"add {earlier} last",
                    UserWarning,
                    stacklevel=3,
                )
                return

    def _included(self) -> Iterator[Router]:
        for _, target in self._routes:
            if isinstance(target, Router):
                yield target
                yield from target._included()

    def _checked(self, given: Iterable[Filter | Condition]) -> tuple[Filter, ...]:
        """Return filters. Raises for a flow that is not registered; warns of a state that no flow declares.

        Such a state is not an error, because records of an earlier release may have it.
        """
        filters = tuple(as_filter(each) for each in given)
        if self.fsm is None:
            return filters
        for name in sorted({name for each in filters for name in each.flows}):
            if name not in self.fsm.flows:
                raise UnknownFlowError(name, self.fsm.flows)
        states = {str(each) for flow in self.fsm.flows.values() for each in flow.states}
        for name in sorted({name for each in filters for name in each._states} - states if states else ()):
            near = " or ".join(map(quoted, get_close_matches(name, states)))
            hint = f"did you mean {near}? Correct it" if near else "correct it"
            warnings.warn(
                f"fsm_state({quoted(name)}): no registered flow has the state {quoted(name)}; {hint}, or add "
                "its flow to "
                "FSM(flows=[...])",
                UserWarning,
                stacklevel=3,
            )
        return filters


async def _call(route: Route, ctx: Context) -> None:
    if route.is_async:
        await route.handler(ctx)
    else:
        await _portal.call_function(route.handler, ctx)


#: The route of an update for which no handler was found yet.
_NOBODY = Route(lambda ctx: None, attempts=1, is_async=False, remember="changes")


def _wrapped(
    middleware: Iterable[Middleware], ctx: Context, handle: Callable[[], Awaitable[None]]
) -> Callable[[], Awaitable[None]]:
    """Return a function that calls middleware, the first one outermost, around another function."""
    for around in reversed(tuple(middleware)):
        handle = partial(around, ctx, _once(handle))
    return handle


def _once(handle: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Return a function that can be called once: a second call would handle the update twice."""
    called = False

    def call() -> Awaitable[None]:
        nonlocal called
        if called:
            raise UsageError("a middleware has called handle() twice; call it once, or not at all")
        called = True
        return handle()

    return call


def _checked_remember(remember: Remember) -> Remember:
    check_choice(remember, ("changes", "answers"), 'remember must be "changes" or "answers", got {}')
    return remember


def _checked_hook(name: str, function: S) -> S:
    check_function(function, f"@router.{name} decorates a function, which may take the client of the bot, got {{}}")
    if not takes(function, 0):
        _check_function(function, "bot")
    return function


def _check_function(handler: Callable[..., Any], *arguments: str) -> None:
    """Raise ``InvalidOption`` for a handler that cannot take its arguments, or that would do nothing."""
    name = getattr(handler, "__name__", repr(handler))
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise InvalidOption(f"{name} contains yield, so a call of it would do nothing; remove the yield")
    if not takes(handler, len(arguments)):
        written = f"{name}({', '.join(arguments)})"
        raise InvalidOption(f"{name}{inspect.signature(handler)} has the wrong arguments; write {written}")
