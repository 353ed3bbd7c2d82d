"""What the adapters of agent frameworks share: histories, approvals, and tools that run once, in turns."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Final, Literal, TypeVar

from stepwell.engine import quoted
from stepwell.errors import UnknownOutcome, UsageError
from stepwell.turns import Decision, Turn

__all__ = [
    "INTERRUPTED",
    "UNKNOWN",
    "Approvals",
    "Transcript",
    "as_it_is",
    "call_tool",
    "digest_of",
    "question_about",
    "refusal_of",
    "replay_of",
    "text_of",
]

T = TypeVar("T")

#: What a model is told of a call that was stopped, and of one whose end nobody knows.
INTERRUPTED: Final = "The call was interrupted, because the user has stopped the turn. It has no result."
UNKNOWN: Final = (
    "The outcome of this call is unknown: it was interrupted while it ran, and was not run again. Look whether it has "
    "happened before you call it again, or ask the user."
)
#: The version of the entries of a history.
VERSION: Final = 1
#: The most characters of a question.
SHOWN: Final = 3000


@dataclass(frozen=True)
class Transcript:
    """The messages of a framework as entries of the history of a conversation, and as values that a turn keeps."""

    #: The key of an entry that is a message of the framework, and that of the message in it.
    key: str
    field: str

    def entries(self, values: Iterable[Any]) -> list[dict[str, Any]]:
        """Return messages as entries of the history."""
        return [{self.key: VERSION, self.field: value} for value in values]

    def load(self, entries: Iterable[Any], *, restore: Callable[[Any], T], said: Callable[[str, str], T]) -> list[T]:
        """Return the messages of a history: those of the framework, and the texts that other handlers have appended.

        ``said``: makes a message of a role and a text.
        """
        found: list[T] = []
        for entry in entries:
            if not isinstance(entry, Mapping):
                continue
            if (version := entry.get(self.key)) is not None:
                if version != VERSION:
                    raise UsageError(
                        f"the history has an entry of version {quoted(version)}, which a later release has written; "
                        "update stepwell on this machine"
                    )
                found.append(restore(entry[self.field]))
            elif entry.get("role") in ("user", "assistant") and isinstance(text := entry.get("content"), str) and text:
                found.append(said(entry["role"], text))
        return found

    async def keep(self, turn: Turn, **value: Any) -> None:
        """Keep a value for later attempts of a turn."""
        await turn.keep({self.key: VERSION, **value})

    def kept(self, turn: Turn) -> list[Any]:
        """Return what earlier attempts have kept."""
        return [value for value in turn.kept if isinstance(value, Mapping) and self.key in value]


class Approvals:
    """Asks in the chat for what an agent must not decide by itself."""

    def __init__(
        self, turn: Turn, approvers: Iterable[int | str] | None, timeout: float | timedelta | str | None
    ) -> None:
        self._turn = turn
        self._approvers = None if approvers is None else tuple(approvers)
        self._timeout = timeout

    async def ask(self, text: str, about: Any, *, reply: bool = False) -> Decision:
        """Ask a question. ``about``: by what a later attempt finds it."""
        return await self._turn.ask(
            text[:SHOWN], approvers=self._approvers, timeout=self._timeout, about=about, reply=reply
        )


def question_about(name: str, arguments: Mapping[str, Any]) -> str:
    """Return what is asked about the call of a tool."""
    lines = [f"{each}: {text_of(value)}" for each, value in arguments.items()]
    return "\n".join([f"{name}?", *lines])


def text_of(value: Any) -> str:
    """Return a value as a text for people."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def refusal_of(decision: Decision) -> str:
    """Return what the model is told of a call that was not approved."""
    return "Nobody has approved the call in time." if decision.timed_out else "The call was not approved."


def replay_of(metadata: Mapping[str, Any] | None) -> Literal["safe", "never"]:
    """Return whether a tool may run again after a crash: if its metadata says so, or its MCP server that it only reads.

    Raises ``UsageError`` for a value that does not exist.
    """
    known = metadata or {}
    hints = known.get("annotations") or known
    replay = known.get("replay", "safe" if hints.get("readOnlyHint") is True else "never")
    if replay not in ("safe", "never"):
        raise UsageError(f'the metadata of a tool has replay={quoted(replay)}; it must be "safe" or "never"')
    return "safe" if replay == "safe" else "never"


def as_it_is(value: T) -> T:
    """Return a value that is stored without a change."""
    return value


def digest_of(text: str) -> str:
    """Return a short name for a text that may be long or contain anything."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


async def call_tool(
    turn: Turn,
    run: Callable[[], Awaitable[Any]],
    *,
    name: str,
    arguments: Any,
    place: str,
    replay: Literal["safe", "never"],
    store: Callable[[Any], Any],
    restore: Callable[[Any], Any],
    unknown: Any,
) -> Any:
    """Call a tool of a framework as a tool of a turn.

    ``place``: distinguishes the calls of the turn, in all attempts. ``store``: makes a value of a result that can be
    stored, ``restore``: the result of such a value. ``unknown``: the result of a call whose outcome is unknown.
    """
    first: list[Any] = []

    async def work(_: Any) -> Any:
        first.append(await run())
        return store(first[0])

    def shown(stored: Any) -> Any:
        result = restore(stored)
        # Frameworks wrap the value of a tool.
        found = (getattr(result, name) for name in ("return_value", "content") if hasattr(result, name))
        return str(result) if isinstance(result, Exception) else next(found, result)

    try:
        stored = await turn.call_tool(
            work, [arguments], replay=replay, name=name, call_id=digest_of(place), shown=shown
        )
    except UnknownOutcome:
        return unknown
    return first[0] if first else restore(stored)
