"""Patterns of the keys that aiogram's key builders make."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from stepwell.adapters.aiogram_records import DEFAULT_DESTINY, AiogramKey
from stepwell.errors import InvalidOption

__all__ = ["DATA", "LOCK", "STATE", "FoundKey", "KeyPattern", "KeyPatterns", "default_patterns"]

STATE, DATA, LOCK = "state", "data", "lock"
#: What each field of a pattern may be. A custom key builder may write ``None`` for a missing thread or connection.
_FIELDS: Final = {
    "bot_id": r"[1-9]\d*",
    "chat_id": r"-?[1-9]\d*",
    "user_id": r"-?[1-9]\d*",
    "thread_id": r"None|[1-9]\d*",
    "business_connection_id": r"[\w=-]+",
    # It may contain separators, and begins with no number: "scenes_history", "aiogd:stack:".
    "destiny": r"(?!-?\d).+",
    "part": f"{STATE}|{DATA}|{LOCK}",
}
_REQUIRED: Final = ("chat_id", "user_id", "part")
_NUMBER: Final = re.compile(r"-?\d+")
_FIELD: Final = re.compile(r"\{(\w*)\}")


class FoundKey(NamedTuple):
    """The meaning of a key in Redis."""

    key: AiogramKey
    #: ``state``, ``data`` or ``lock``.
    part: str
    #: The keys in Redis of the state and of the data.
    state: str
    data: str


class KeyPattern:
    """The form of keys: ``fsm:{bot_id}:{chat_id}:{user_id}:{part}``, also with ``{thread_id}``,
    ``{business_connection_id}`` and ``{destiny}``.
    """

    def __init__(self, text: str) -> None:
        fields = _FIELD.findall(text)
        unknown = [name for name in fields if name not in _FIELDS]
        if unknown:
            raise InvalidOption(f"a pattern has no field {{{unknown[0]}}}; it may have {_listed(_FIELDS)}: {text}")
        missing = [name for name in _REQUIRED if name not in fields]
        if missing:
            raise InvalidOption(f"a pattern needs {_listed(missing)}: {text}")
        if len(set(fields)) < len(fields):
            raise InvalidOption(f"a pattern can have each field only once: {text}")
        self.text: str = text
        self.has_bot_id: bool = "bot_id" in fields
        #: The text before its first field.
        self.prefix: str = text[: text.index("{")]
        pieces = _FIELD.split(text)
        # Every second piece is the name of a field.
        named = [f"(?P<{each}>{_FIELDS[each]})" if n % 2 else re.escape(each) for n, each in enumerate(pieces)]
        self._expression = re.compile("".join(named), re.DOTALL | re.ASCII)

    def match(self, text: str, bot_id: int | None) -> FoundKey | None:
        """Return the meaning of a key, or ``None`` if it has another form. ``bot_id``: for keys without one."""
        found = self._expression.fullmatch(text)
        if found is None:
            return None
        fields = found.groupdict()
        for name in ("thread_id", "business_connection_id"):
            if fields.get(name) == "None":
                del fields[name]
        business = fields.get("business_connection_id")
        if business is not None and _NUMBER.fullmatch(business):
            # Telegram's ids of business connections are never numbers, so this is another field.
            return None
        bot = fields.get("bot_id", bot_id)
        assert bot is not None
        key = AiogramKey(
            int(bot),
            int(fields["chat_id"]),
            int(fields["user_id"]),
            int(fields["thread_id"]) if "thread_id" in fields else None,
            business,
            fields.get("destiny", DEFAULT_DESTINY),
        )
        before, after = text[: found.start("part")], text[found.end("part") :]
        return FoundKey(key, fields["part"], before + STATE + after, before + DATA + after)


class KeyPatterns:
    """The patterns of one import. ``bot_id``: the bot of keys without one."""

    def __init__(self, patterns: Iterable[str], bot_id: int | None, *, default: bool = False) -> None:
        self._patterns = [KeyPattern(text) for text in dict.fromkeys(patterns)]
        self._bot_id = bot_id
        self._default = default
        without = [pattern.text for pattern in self._patterns if not pattern.has_bot_id]
        if without and bot_id is None:
            raise InvalidOption(
                f"keys of the form {without[0]} do not contain the id of the bot; "
                "give bot_id (--bot-id), the number at the beginning of its token"
            )

    @property
    def prefix(self) -> str:
        """The beginning of all keys."""
        # Not a path: the prefixes are compared by characters.
        return os.path.commonprefix([pattern.prefix for pattern in self._patterns])  # noqa: RUF071

    def read(self, text: str) -> FoundKey | str:
        """Return the meaning of a key, or the reason why it has none."""
        found = [
            (match, pattern) for pattern in self._patterns if (match := pattern.match(text, self._bot_id)) is not None
        ]
        if not found:
            return "has another form than the patterns"
        if len({match.key for match, _ in found}) > 1:
            return f"is ambiguous: {' or '.join(pattern.text for _, pattern in found)}"
        (match, pattern), *_ = found
        if self._default and not pattern.has_bot_id and match.key.thread_id is not None and _may_be_bot(match.key):
            return "is ambiguous: its first number is the id of a chat with topics, or of the bot"
        return match


def default_patterns(
    *,
    prefix: str = "fsm",
    separator: str = ":",
    with_bot_id: bool = False,
    with_business_connection_id: bool = False,
    with_destiny: bool = False,
) -> list[str]:
    """Return the patterns of aiogram's ``DefaultKeyBuilder`` with these options."""
    patterns = []
    for business in (False, True) if with_business_connection_id else (False,):
        for thread in (False, True):
            chosen = {
                "bot_id": with_bot_id,
                "business_connection_id": business,
                "chat_id": True,
                "thread_id": thread,
                "user_id": True,
                "destiny": with_destiny,
                "part": True,
            }
            fields = [f"{{{name}}}" for name, there in chosen.items() if there]
            patterns.append(separator.join([prefix, *fields]))
    return patterns


def _may_be_bot(key: AiogramKey) -> bool:
    """Return whether the chat of a key with a topic may be the bot, in the key of a builder with bot ids."""
    return key.chat_id > 0 and key.business_connection_id is None


def _listed(names: Iterable[str]) -> str:
    listed: Sequence[str] = [f"{{{name}}}" for name in names]
    return ", ".join(listed)
