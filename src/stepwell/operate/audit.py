"""The audit of changes by operators: who changed what, in a log of Python and in an ordered log in the storage.

Each change of the inspector and of the command line is recorded here. The line for Python's log has names and no
values. The log in the storage also has the values before and after, masked and shortened. They are kept beside the
entry, with the tags of the record, so that ``fsm.forget`` deletes them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from stepwell import Log, Storage
from stepwell.engine import (
    AUDIT,
    DAY,
    RUNS,
    Address,
    decode_key,
    decode_namespace,
    is_secret,
    log_tag,
    masked_text,
    to_json,
)
from stepwell.errors import StepwellError
from stepwell.operate.masking import MASK

__all__ = ["LOGGER", "ChangedThing", "Recorded", "forget_values", "log_write", "printable", "record_change", "recorded"]

#: The name of the logger.
LOGGER: Final = "stepwell.operate"
#: The key of the log of all changes, how many of them are kept, and for how many seconds their values.
ALL: Final = "all"
KEEP, KEPT = 5_000, 90 * DAY
#: How many values of a change are kept, and how many characters of each.
MOST_VALUES, LONGEST = 20, 500
#: Characters that begin a new line, change the terminal or the direction of text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

logger: logging.Logger = logging.getLogger(LOGGER)


class ChangedThing(NamedTuple):
    """What a change was made to."""

    #: ``"record"``, ``"run"`` or ``"turn"``: where the inspector shows it.
    kind: str
    #: The name of the bot; empty for a run.
    bot: str
    #: The key as text, or the id of the run.
    key: str
    #: The users and chats that it belongs to.
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, address: Address, tags: Iterable[str] = ()) -> ChangedThing:
        """Return the record or the run at an address."""
        bot = decode_namespace(address.namespace)
        if bot == RUNS:
            return cls("run", "", str(decode_key(address.key)))
        return cls("record", bot, address.key, tuple(tags))


class Recorded(NamedTuple):
    """A change in the audit."""

    number: int
    at: float
    who: str
    what: str
    #: ``None`` if it was made to several things.
    subject: ChangedThing | None
    #: Values as texts; ``None`` if they have none, or if they were forgotten.
    before: dict[str, str] | None
    after: dict[str, str] | None


def log_write(who: str, what: str) -> None:
    """Log one write: ``anna cleared shop (42,42)``."""
    logger.info("%s %s", printable(who), printable(what))


async def record_change(
    storage: Storage,
    who: str,
    what: str,
    subject: ChangedThing | None = None,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Log a change that was made, and append it to the audit. If that fails, a warning is logged.

    ``before`` and ``after``: what has changed, as JSON with secrets masked.
    """
    log_write(who, what)
    entry: dict[str, Any] = {"at": (storage.clock or time.time)(), "who": printable(who), "what": printable(what)}
    try:
        if subject is not None:
            entry["of"] = subject[:3]
            if before or after:
                (entry["values"],) = await _values(storage, subject).append([_shown(before), _shown(after)])
        log = _log(storage)
        (number,) = await log.append(entry)
        if number % 50 == 0:
            await log.trim(keep=KEEP)
    except StepwellError as error:
        logger.warning("a change was made and is not in the audit: %s", error)


async def recorded(storage: Storage, *, before: int | None = None, limit: int) -> list[Recorded]:
    """Return the changes with numbers below ``before``, the newest first."""
    found = await _log(storage).read(before=before, limit=limit, reverse=True)
    return list(await asyncio.gather(*(_opened(storage, number, entry) for number, entry in found)))


async def forget_values(storage: Storage, subject: ChangedThing) -> None:
    """Delete the values of all changes of a record. Who has made them stays."""
    await storage.forget(_values(storage, subject).address)


def printable(text: str) -> str:
    """Return a text with its control characters escaped, for one line of a log or a terminal."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _log(storage: Storage) -> Log:
    return Log(storage, AUDIT, ALL)


def _values(storage: Storage, subject: ChangedThing) -> Log:
    tags = tuple(tag if " " in tag else log_tag(subject.bot, tag) for tag in subject.tags)
    return Log(storage, AUDIT, subject[:3], ttl=KEPT, tags=tags)


async def _opened(storage: Storage, number: int, entry: Mapping[str, Any]) -> Recorded:
    subject = None if "of" not in entry else ChangedThing(*entry["of"])
    before = after = None
    if subject is not None and (place := entry.get("values")) is not None:
        found = await _values(storage, subject).read(after=place - 1, before=place + 1)
        before, after = found[0].value if found else (None, None)
    return Recorded(number, entry["at"], entry["who"], entry["what"], subject, before, after)


def _shown(values: Mapping[str, Any] | None) -> dict[str, str] | None:
    if values is None:
        return None
    return {name[:LONGEST]: _text(name, value) for name, value in list(values.items())[:MOST_VALUES]}


def _text(name: str, value: Any) -> str:
    if is_secret(name):
        return MASK
    text = masked_text(value if isinstance(value, str) else to_json(value).decode())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
