"""A chat as a test: writes a pytest function with ``stepwell.testing.Chat`` from the events of a chat."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path
from typing import Any

from stepwell.botfile import defines_router
from stepwell.errors import UsageError
from stepwell.playground.events.group import EventGroup, label_of
from stepwell.playground.records import Shown

__all__ = ["ChatTest", "write_test"]

#: Fields of a message that ``Chat`` adds itself.
_OWN_FIELDS = frozenset(
    {"message_id", "date", "chat", "from", "text", "entities", "message_thread_id", "is_topic_message"}
)
_OWN_USER_FIELDS = frozenset({"id", "is_bot", "language_code"})
_SERVICE = ("forum_topic_", "new_chat_members", "left_chat_member", "migrate_")
#: Names that the test uses itself.
_RESERVED = frozenset({"asyncio", "chat", "make_router", "pytest", "record", "router", "talk"})
_INDENT = " " * 8


@dataclass(frozen=True, slots=True)
class ChatTest:
    """A test, and the name of its file."""

    file: str
    text: str


def write_test(
    path: Path,
    groups: list[EventGroup],
    *,
    users: Mapping[int, Mapping[str, Any]],
    chat: Mapping[str, Any],
    machines: Mapping[str, Mapping[str, Any]],
    final: Shown | None = None,
) -> ChatTest:
    """Return a test of the bot in a file, from the groups of one chat, oldest first.

    ``users`` are Bot API users by id, ``chat`` is the Bot API chat, and ``machines`` are the reported machines.
    ``final`` is the record after the chat, if it is known.
    """
    if not defines_router(path):
        raise UsageError(
            f"{path.name} defines neither make_router(storage) nor router = Router(fsm), which a Chat test needs"
        )
    groups = _from_a_start([group for group in groups if group.kind != "job"])
    if not any(group.update for group in groups):
        raise UsageError("there is no message in this chat to make a test of; send one first")
    if any(group.kind == "edit" for group in groups):
        raise UsageError("the record was edited here, which a Chat test cannot do; replay the chat, then copy it")
    steps = _Steps(users, chat, machines)
    body = [line for group in groups for line in steps.lines(group)]
    body += steps.final(final)
    name = _slug(next((group.title for group in groups if group.update and group.events), "")) or "chat"
    return ChatTest(
        f"test_{name}.py", "\n".join([*_head(path, name, body), *_function(name, steps.people(), body), ""])
    )


def _from_a_start(groups: list[EventGroup]) -> list[EventGroup]:
    """Return the groups from the first one before which no conversation was open."""
    for at in range(len(groups)):
        first: dict[Any, EventGroup] = {}
        for group in groups[at:]:
            if group.writes:
                first.setdefault((group.bot, group.key), group)
        if all(group.before == {} for group in first.values()):
            return groups[at:]
    if groups:
        raise UsageError("the conversation began before the events that the page shows; start it again, then copy it")
    return groups


def _head(path: Path, name: str, body: list[str]) -> Iterator[str]:
    yield f'"""A chat from the playground. Save this file as test_{name}.py beside {path.name}, and run pytest."""'
    yield ""
    by_name = path.stem.isidentifier()
    yield "import asyncio"
    if not by_name:
        yield "from functools import partial"
        yield "from pathlib import Path"
    yield ""
    if any("pytest.raises" in line for line in body):
        yield "import pytest"
    if not by_name:
        yield "from stepwell.botfile import load_router"
    yield "from stepwell.testing import Chat"
    yield ""
    if not by_name:
        yield f"make_router = partial(load_router, Path(__file__).parent / {_text(path.name)})"
    elif _makes_router(path):
        yield f"from {path.stem} import make_router"
    else:
        yield f"from {path.stem} import router"
        yield ""
        yield ""
        yield "def make_router(storage):"
        yield "    router.fsm.move_to(storage)"
        yield "    return router"
    yield ""
    yield ""


def _function(name: str, people: list[str], body: list[str]) -> Iterator[str]:
    yield f"def test_{name}() -> None:"
    yield "    async def talk() -> None:"
    yield f"{_INDENT}chat = Chat(make_router)"
    yield from (f"{_INDENT}{line}" for line in people)
    yield from (f"{_INDENT}{line}" for line in body)
    yield ""
    yield "    asyncio.run(talk())"


def _makes_router(path: Path) -> bool:
    body = ast.parse(path.read_bytes(), str(path)).body
    return any(isinstance(each, ast.FunctionDef) and each.name == "make_router" for each in body)


@dataclass(slots=True)
class _Steps:
    """Writes the lines of a test, and remembers what ``Chat`` will have seen."""

    _users: Mapping[int, Mapping[str, Any]]
    _chat: Mapping[str, Any]
    _machines: Mapping[str, Mapping[str, Any]]
    #: The variable of each user in each topic.
    _names: dict[tuple[int, int | None], str] = field(default_factory=dict)
    #: The texts of the bot's messages by topic and id, the newest last.
    _shown: dict[tuple[int | None, int], str] = field(default_factory=dict)
    _last_update: int | None = None

    def people(self) -> list[str]:
        """Return the lines that make the users."""
        lines = []
        for (user, thread), name in self._names.items():
            known = self._users[user].items()
            about = [f"{field}={_value(value)}" for field, value in known if field not in _OWN_USER_FIELDS]
            made = f"chat.user({', '.join([str(user), *about])})"
            if self._chat["type"] != "private":
                made += f".group({self._chat['id']}, title={_text(self._chat['title'])})"
            lines.append(f"{name} = {made}{'' if thread is None else f'.topic({thread})'}")
        return lines

    def lines(self, group: EventGroup) -> list[str]:
        """Return the lines for one group."""
        if group.kind == "timer":
            seconds = self._timeout(group)
            step = None if seconds is None else f"{self._person(group)}.advance({seconds:g})"
        elif group.update is None:
            return []
        else:
            step = self._step(group)
            self._last_update = group.update["update_id"]
        if step is None:
            return []
        if group.error is not None:
            match = re.escape(group.error.partition(": ")[2]).replace("\\ ", " ")[:100]
            return [f"with pytest.raises(Exception, match={_text(match)}):", f"    await {step}"]
        answers = ", ".join(map(_text, self._answers(group)))
        return [f"assert await {step} == [{answers}]"]

    def final(self, shown: Shown | None) -> list[str]:
        """Return the lines that check the record after the chat."""
        if len(self._names) != 1 or shown is None:
            return []
        (name,) = self._names.values()
        record = shown.record
        if record is None:
            return [f"assert await {name}.record() is None"]
        return [
            f"record = await {name}.record()",
            "assert record is not None",
            f"assert (record.flow, record.state) == ({_value(record['flow'])}, {_value(record['state'])})",
        ]

    def _step(self, group: EventGroup) -> str | None:
        update = group.update or {}
        if group.again:
            if update["update_id"] != self._last_update:
                return None
            return f"{self._person(group)}.redeliver()"
        message, query = update.get("message"), update.get("callback_query")
        if isinstance(message, dict):
            if any(name.startswith(_SERVICE) for name in message):
                return None
            given = [] if "text" not in message else [_text(message["text"])]
            given += [f"{name}={_value(value)}" for name, value in message.items() if name not in _OWN_FIELDS]
            return f"{self._person(group)}.send({', '.join(given)})"
        if isinstance(query, dict):
            return self._press(group, query)
        return f"chat.deliver({update!r})" if group.calls or group.writes else None

    def _press(self, group: EventGroup, query: dict[str, Any]) -> str | None:
        message, label = query.get("message") or {}, label_of(query)
        if label is None:
            return None
        here = [number for thread, number in self._shown if thread == group.thread]
        shown = self._shown.get((group.thread, message["message_id"]), "")
        on = "" if here and here[-1] == message["message_id"] else f", on={_text(shown)}"
        return f"{self._person(group)}.press({_text(label)}{on})"

    def _answers(self, group: EventGroup) -> list[str]:
        """Return the texts that the bot sent or edited here, as ``Chat`` returns them."""
        texts = []
        for call in group.own_calls:
            method, result = str(call["method"]), call["answer"].get("result")
            here = str(call.get("chat_id")) == str(self._chat["id"]) and isinstance(result, dict)
            if not here or not method.startswith(("send", "edit")) or "message_id" not in result:
                continue
            at = (result.get("message_thread_id"), result["message_id"])
            text = call.get("text", call.get("caption", self._shown.get(at, "")))
            self._shown[at] = str(text)
            if at[0] == group.thread:
                texts.append(str(text))
        return texts

    def _person(self, group: EventGroup) -> str:
        if group.user not in self._users:
            # A timer of a whole chat.
            return next(iter(self._names.values()), "chat")
        assert group.user is not None
        at = (group.user, group.thread)
        if at not in self._names:
            name = _slug(str(self._users[group.user].get("first_name", ""))) or f"user_{group.user}"
            if name in _RESERVED or name in self._names.values():
                name += f"_{group.thread or group.user}"
            self._names[at] = name
        return self._names[at]

    def _timeout(self, group: EventGroup) -> float | None:
        for flow in self._machines.get(group.bot or "", {}).get("flows", []):
            if flow["name"] == group.flow and group.state in flow["timeouts"]:
                return float(flow["timeouts"][group.state]["seconds"])
        return None


def _slug(text: str) -> str:
    words = re.findall(r"[a-z0-9]+", text.lower().encode("ascii", "ignore").decode())
    name = "_".join(words)[:40].strip("_")
    return name if name.isidentifier() and not iskeyword(name) else ""


def _text(text: str) -> str:
    # JSON's escapes are Python's.
    return json.dumps(text, ensure_ascii=False)


def _value(value: Any) -> str:
    return _text(value) if isinstance(value, str) else repr(value)
