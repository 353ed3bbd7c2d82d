"""Filters: which handler an update goes to.

A filter is called with a context and returns whether it matches. Filters combine with ``&``, ``|`` and ``~``. Either
operand may be a plain function of the context.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, TypeAlias

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption
from stepwell.fsm.conversation.context import Context
from stepwell.fsm.conversation.parameters import SIMILAR
from stepwell.fsm.flows.description import name_of
from stepwell.fsm.update import KINDS, Update
from stepwell.options import check_not_async

__all__ = [
    "Condition",
    "Filter",
    "album",
    "as_filter",
    "callback",
    "command",
    "content",
    "fsm_flow",
    "fsm_in_flow",
    "fsm_state",
    "kind",
    "text",
]


#: A plain function in place of a filter.
Condition: TypeAlias = Callable[[Context[Any]], object]


class Filter(ABC):
    """The base of all filters.

    Example::

        @router.on(fsm_in_flow() & ~command() & text())
        async def other(ctx):
            ctx.answer(f"I do not know {ctx.text}.")
    """

    __slots__ = ()

    @abstractmethod
    def __call__(self, ctx: Context[Any], /) -> bool:
        """Return whether the filter matches. It must not change the conversation."""

    @property
    def flows(self) -> frozenset[str]:
        """The flows that it names. A router refuses those that are not registered."""
        return frozenset()

    @property
    def _states(self) -> frozenset[str]:
        """The states that it names without a flow. A router warns of those that no flow has."""
        return frozenset()

    @property
    def _kinds(self) -> frozenset[str]:
        """The kinds of update that it names. A runner requests them from Telegram."""
        return frozenset()

    @property
    def _collects_albums(self) -> bool:
        """Whether it waits for albums, whose messages are then collected."""
        return False

    def __and__(self, other: Filter | Condition) -> Filter:
        return _Combined(all, self, as_filter(other))

    def __rand__(self, other: Condition) -> Filter:
        return _Combined(all, as_filter(other), self)

    def __or__(self, other: Filter | Condition) -> Filter:
        return _Combined(any, self, as_filter(other))

    def __ror__(self, other: Condition) -> Filter:
        return _Combined(any, as_filter(other), self)

    def __invert__(self) -> Filter:
        return _Combined(_none, self)

    def __bool__(self) -> bool:
        # "a and b" would be b, without a warning.
        raise TypeError("filters are combined with & | ~, not with and, or, not")


def as_filter(given: Filter | Condition) -> Filter:
    """Return a filter, made from a function of the context if it is not one."""
    if isinstance(given, Filter):
        return given
    check_not_async(given, "{} is an async def, which would match every update; a filter must be a plain function")
    if callable(given) and not isinstance(given, type):
        return _FunctionFilter(given)
    raise InvalidOption(f"{quoted(given)} is not a filter; pass a filter of stepwell.fsm, or a function of the context")


class _FunctionFilter(Filter):
    __slots__ = ("function",)

    def __init__(self, function: Condition) -> None:
        self.function = function

    def __call__(self, ctx: Context[Any], /) -> bool:
        result = self.function(ctx)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidOption(
                f"the filter {quoted(self.function)} returned an awaitable, which would match every update; "
                "make it a def"
            )
        return bool(result)


class _Combined(Filter):
    """Several filters, combined by ``all``, ``any`` or ``_none``."""

    __slots__ = ("combine", "parts")

    def __init__(self, combine: Callable[[Iterable[bool]], bool], *parts: Filter) -> None:
        self.combine = combine
        self.parts = parts

    def __call__(self, ctx: Context[Any], /) -> bool:
        return self.combine(part(ctx) for part in self.parts)

    @property
    def flows(self) -> frozenset[str]:
        return frozenset().union(*(part.flows for part in self.parts))

    @property
    def _states(self) -> frozenset[str]:
        return frozenset().union(*(part._states for part in self.parts))

    @property
    def _kinds(self) -> frozenset[str]:
        return frozenset() if self.combine is _none else frozenset().union(*(part._kinds for part in self.parts))

    @property
    def _collects_albums(self) -> bool:
        return self.combine is not _none and any(part._collects_albums for part in self.parts)


def _none(results: Iterable[bool]) -> bool:
    return not any(results)


class fsm_flow(Filter):  # noqa: N801
    """Match if this flow, given as class, object or name, is active; ``None`` matches if no flow is.

    Example::

        @router.on(fsm_flow(Registration) & text("stop"))
        async def stop(ctx):
            ctx.clear_flow()
    """

    __slots__ = ("name",)

    def __init__(self, flow: object) -> None:
        self.name: str | None = None if flow is None else name_of(flow)

    def __call__(self, ctx: Context[Any], /) -> bool:
        return ctx.flow == self.name

    @property
    def flows(self) -> frozenset[str]:
        return frozenset() if self.name is None else frozenset({self.name})


class fsm_state(Filter):  # noqa: N801
    """Match this state: ``"email"`` in any flow, ``Form.email`` in its flow, ``None`` for no state.

    ``fsm_state(("key", value))`` matches a field of the data. A missing field never matches.

    Example::

        @router.on(fsm_state(Registration.get_email), text())
        async def get_email(ctx):
            ctx.update_data(email=ctx.text)
    """

    __slots__ = ("field", "flow", "state", "value")

    def __init__(self, state: str | tuple[Any, Any] | None) -> None:
        self.flow: str | None = None
        self.state: str | None = None
        self.field: tuple[Any, ...] = ()
        self.value: Any = None
        if isinstance(state, tuple) and len(state) == 2:
            self.field, self.value = state[:1], state[1]
        elif isinstance(state, str):
            self.flow, self.state = getattr(state, "flow_name", None), str(state)
        elif state is not None:
            raise InvalidOption(f"fsm_state({quoted(state)}): pass a state, its name, None, or a (key, value) pair")

    def __call__(self, ctx: Context[Any], /) -> bool:
        if self.field:
            data = ctx.data
            return self.field[0] in data and bool(data[self.field[0]] == self.value)
        return ctx.state == self.state and (self.flow is None or ctx.flow == self.flow)

    @property
    def flows(self) -> frozenset[str]:
        return frozenset() if self.flow is None else frozenset({self.flow})

    @property
    def _states(self) -> frozenset[str]:
        return frozenset() if self.state is None or self.flow is not None else frozenset({self.state})


class fsm_in_flow(Filter):  # noqa: N801
    """Match if any flow is active.

    Example::

        @router.on(command("start") & ~fsm_in_flow())
        async def start(ctx):
            ctx.start_flow(Registration)
    """

    __slots__ = ()

    def __call__(self, ctx: Context[Any], /) -> bool:
        return ctx.flow is not None


class command(Filter):  # noqa: N801
    """Match one of these commands, such as ``/start`` or ``/start@my_bot hello``; without names, any command.

    Commands and bots' names are compared without regard to case. With ``bot="my_bot"`` commands to other bots do not
    match. Edited messages match only with ``edited=True``. The text after the command is ``ctx.args``.

    Example::

        @router.on(command("start", "help"))
        async def help(ctx):
            ctx.answer("Say /register to begin.")
    """

    __slots__ = ("bot", "edited", "names")

    def __init__(self, *names: str, bot: str | None = None, edited: bool = False) -> None:
        for name in names:
            if not isinstance(name, str) or not re.fullmatch(r"/?[A-Za-z0-9_]+", name):
                raise InvalidOption(
                    f"command({quoted(name)}): a command consists of letters, digits and _, such as 'start'"
                )
        self.names: frozenset[str] = frozenset(name.removeprefix("/").lower() for name in names)
        self.bot: str | None = bot.removeprefix("@").lower() if bot else None
        self.edited: bool = edited

    def __call__(self, ctx: Context[Any], /) -> bool:
        found = ctx.update.command
        if found is None or (self.names and found.name not in self.names):
            return False
        if self.bot is not None and found.bot not in (None, self.bot):
            return False
        return self.edited or not _is_edit(ctx.update)


class text(Filter):  # noqa: N801
    r"""Match a text that equals this string, or in which this compiled regex is found (``ctx.match``).

    Without a pattern, match any text except a command, so that ``/cancel`` is never read as a name. Edited messages
    match only with ``edited=True``.

    Example::

        @router.on(text(re.compile(r"(\d+) items?")))
        async def order(ctx):
            ctx.update_data(items=int(ctx.match[1]))
    """

    __slots__ = ("edited", "pattern")

    def __init__(self, pattern: str | re.Pattern[str] | None = None, *, edited: bool = False) -> None:
        self.pattern: str | re.Pattern[str] | None = _pattern("text", pattern)
        self.edited: bool = edited

    def __call__(self, ctx: Context[Any], /) -> bool:
        update = ctx.update
        if update.text is None or (_is_edit(update) and not self.edited):
            return False
        if self.pattern is None:
            return update.command is None
        return _matches(self.pattern, update.text, ctx)


class callback(Filter):  # noqa: N801
    """Match a pressed button whose data equals this string, or in which this compiled regex is found (``ctx.match``).

    Without a pattern, match any button.

    Example::

        @router.on(callback("yes"))
        async def confirmed(ctx):
            ctx.answer("Done.")
    """

    __slots__ = ("pattern",)

    def __init__(self, pattern: str | re.Pattern[str] | None = None) -> None:
        self.pattern: str | re.Pattern[str] | None = _pattern("callback", pattern)

    def __call__(self, ctx: Context[Any], /) -> bool:
        update = ctx.update
        if self.pattern is None:
            return update.kind == "callback_query"
        return update.callback_data is not None and _matches(self.pattern, update.callback_data, ctx)


class content(Filter):  # noqa: N801
    """Match a message that has one of these fields of the Bot API: ``content("photo", "video")``.

    A notice of Telegram is a message too: ``content("successful_payment")``, ``content("new_chat_members")``. Without
    names, match whatever a person sends, and no notice. Edited messages match only with ``edited=True``.

    Example::

        @router.on(content("document"))
        async def received(ctx):
            ctx.answer(f"I have {ctx.update.event['document']['file_name']}.")
    """

    __slots__ = ("edited", "names")

    def __init__(self, *names: str, edited: bool = False) -> None:
        if not all(isinstance(name, str) and name for name in names):
            raise InvalidOption("content(...) takes the names of fields of a message, such as 'document'")
        self.names: tuple[str, ...] = names
        self.edited: bool = edited

    def __call__(self, ctx: Context[Any], /) -> bool:
        update = ctx.update
        if not (update.kind or "").endswith(("message", "channel_post")) or (_is_edit(update) and not self.edited):
            return False
        return update.has(*self.names)


class album(Filter):  # noqa: N801
    """Match an album: several pictures, videos or files that were sent together.

    With this filter in a router, the messages of an album, which are one update each, are collected and handled as one
    update, 1.3 seconds after the last one, or before the next update of their sender. ``ctx.album`` has the messages,
    and ``ctx.update`` the first of them. They are kept in the record of the conversation, so that a crash loses none.

    Example::

        @router.on(album())
        async def pictures(ctx):
            ctx.answer(f"{len(ctx.album)} pictures: {ctx.album[0].get('caption', '')}")
    """

    __slots__ = ()

    def __call__(self, ctx: Context[Any], /) -> bool:
        return bool(ctx.album)

    @property
    def _collects_albums(self) -> bool:
        return True


class kind(Filter):  # noqa: N801
    """Match updates of these kinds, by their names in the Bot API: ``kind("my_chat_member")``.

    Telegram sends ``chat_member``, ``message_reaction`` and ``message_reaction_count`` only on request. ``run_polling``
    and ``stepwell run`` request them if a handler has this filter.

    Example::

        @router.on(kind("my_chat_member"))
        async def added(ctx):
            ctx.update_data(member=ctx.update.event["new_chat_member"]["status"])
    """

    __slots__ = ("names",)

    def __init__(self, *names: str) -> None:
        if not names or not all(isinstance(name, str) for name in names):
            raise InvalidOption("kind(...) takes one or more kinds of update, such as 'message'")
        for name in names:
            # A kind that resembles no known one may be new.
            near = get_close_matches(name, KINDS, n=1, cutoff=SIMILAR)
            if name not in KINDS and near:
                raise InvalidOption(
                    f"kind({quoted(name)}): Telegram has no updates of this kind; did you mean {quoted(near[0])}?"
                )
        self.names: frozenset[str] = frozenset(names)

    def __call__(self, ctx: Context[Any], /) -> bool:
        return ctx.update.kind in self.names

    @property
    def _kinds(self) -> frozenset[str]:
        return self.names


def _is_edit(update: Update) -> bool:
    return update.kind is not None and update.kind.startswith("edited_")


def _pattern(name: str, pattern: Any) -> str | re.Pattern[str] | None:
    if pattern is None or isinstance(pattern, str):
        return pattern
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    raise InvalidOption(f"{name}({quoted(pattern)}): pass a string, or a regex made with re.compile()")


def _matches(pattern: str | re.Pattern[str], value: str, ctx: Context[Any]) -> bool:
    if isinstance(pattern, str):
        return value == pattern
    found = pattern.search(value)
    if found is None:
        return False
    ctx.match = found
    return True
