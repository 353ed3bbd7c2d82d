"""Lists of records: bots and their states, records by a filter, records by the value of a field, and timers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stepwell import Storage
from stepwell.engine import (
    ANY,
    INBOX,
    LOGS,
    TURNS,
    Any_,
    Due,
    Get,
    Query,
    ReservedNamespace,
    Stored,
    decode_key,
    decode_namespace,
    encode_key,
    encode_namespace,
    log_tag,
    quoted,
)
from stepwell.errors import StepwellError, StoredDataError
from stepwell.operate.record import RecordView, marked_fields, view
from stepwell.operate.search import PAGE, matches, pages, written_before

__all__ = [
    "Count",
    "Listed",
    "RecordFilter",
    "Timer",
    "UnknownBot",
    "bots",
    "bots_with_logs",
    "check_bot",
    "counted",
    "listed",
    "places_of_chat",
    "timers",
]


class UnknownBot(StepwellError, LookupError):
    """The storage has no records of this bot."""

    def __init__(self, bot: str, bots: list[str]) -> None:
        self.bot: str = bot
        there = f"it has those of {', '.join(map(quoted, bots))}" if bots else "it has no bots"
        super().__init__(f"the storage has no records of the bot {quoted(bot)}; {there}")


class Count(NamedTuple):
    """The records of a bot in one state."""

    bot: str
    flow: str | None
    state: str | None
    records: int
    #: The time of the oldest last write among them; ``None`` if it is not known.
    oldest: float | None
    #: Whether there are more than ``records``.
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Which records to list. Tag, state and flow are found by an index; everything else reads each record."""

    flow: str | Any_ | None = ANY
    state: str | Any_ | None = ANY
    tags: tuple[str, ...] = ()
    #: Only records that were last written at least this many seconds ago.
    older_than: float | None = None
    #: Data fields and their values as JSON of the codec. A name may be a path: ``address.city``.
    fields: Mapping[str, Any] | None = None
    #: Whether fields are compared as they are shown, with secrets masked. A path to a secret is then refused.
    masked: bool = False
    #: Only records that cannot be read.
    damaged: bool = False


class Listed(NamedTuple):
    """One record of a list."""

    record: RecordView
    #: How many records were read so far, with those that do not match.
    looked: int


class Timer(NamedTuple):
    """A record with a deadline."""

    bot: str
    key: str
    deadline: float
    flow: str | None
    state: str | None


async def bots(storage: Storage) -> list[str]:
    """Return the names of the bots with records."""
    names = [decode_namespace(each) for each in await storage.namespaces()]
    return [name for name in names if not isinstance(name, ReservedNamespace)]


async def bots_with_logs(storage: Storage) -> list[str]:
    """Return the names of the bots with records, logs or turns. It reads the record of each, without its parts."""
    names = await bots(storage)
    return names + sorted((await _bots_in(storage, LOGS) | await _bots_in(storage, TURNS)).difference(names))


async def _bots_in(storage: Storage, namespace: str) -> set[str]:
    """Return the names of the bots in the keys of a namespace. It reads its records."""
    return {decode_key(address.key)[0] async for page in pages(storage, Query(namespace)) for address, _ in page}


async def places_of_chat(
    storage: Storage, chat: int | str, names: Sequence[str], *, limit: int = 5
) -> list[tuple[str, str, str]]:
    """Return the conversations in a chat of some bots: ``"record"`` or ``"turn"``, the bot, and the key as text."""
    found: list[tuple[str, str, str]] = []
    for bot in names:
        page = await storage.page(Query(encode_namespace(bot, storage.limits), tag=f"chat:{chat}"), None, limit)
        found += [("record", bot, address.key) for address, _ in page.records]
        page = await storage.page(Query(TURNS, tag=log_tag(bot, f"chat:{chat}")), None, limit)
        found += [("turn", bot, encode_key(decode_key(address.key)[1])) for address, _ in page.records]
    return found


async def check_bot(storage: Storage, bot: str) -> None:
    """Raise ``UnknownBot`` if the storage has no records of a bot."""
    known = await bots(storage)
    # A bot that keeps no conversations has its inbox.
    if bot in known or await storage.perform(Get(storage.address(INBOX, bot))) is not None:
        return
    if bot not in (with_turns := await _bots_in(storage, TURNS)):
        raise UnknownBot(bot, sorted({*known, *with_turns}))


async def counted(storage: Storage, bot: str, *, limit: int) -> tuple[list[Count], bool]:
    """Count the records of a bot by reading up to ``limit`` of them, and return whether all were read."""
    found: Counter[tuple[str | None, str | None]] = Counter()
    oldest: dict[tuple[str | None, str | None], float] = {}
    looked = 0
    async for entry in storage.scan(bot, page=PAGE, may_lag=True):
        if looked == limit:
            break
        looked += 1
        try:
            at = entry.place.flow, entry.place.state
        except StoredDataError:
            at = None, "(unreadable)"
        found[at] += 1
        oldest[at] = min(oldest.get(at, entry.written_at), entry.written_at)
    else:
        return _counts(bot, found, oldest), True
    return _counts(bot, found, oldest), False


def _counts(bot: str, found: Counter[Any], oldest: Mapping[Any, float]) -> list[Count]:
    ordered = sorted(found, key=lambda at: (at[0] or "", at[1] or ""))
    return [Count(bot, at[0], at[1], found[at], oldest[at]) for at in ordered]


async def listed(
    storage: Storage,
    bot: str,
    wanted: RecordFilter,
    *,
    after: str | None = None,
    on_look: Callable[[int], None] | None = None,
    on_page: Callable[[str], None] | None = None,
) -> AsyncIterator[Listed]:
    """Yield the records of a bot that match a filter. Stop the iteration to stop the search.

    ``after``: the key of a record that was listed before, as text; the list continues behind it. ``on_look`` is called
    with the number of records read, after each page; before that, ``on_page`` is called with the key of the last one.
    """
    tag = wanted.tags[0] if wanted.tags else None
    query = Query(encode_namespace(bot, storage.limits), wanted.flow, wanted.state, tag, may_lag=True)
    before = written_before(storage, wanted.older_than)
    looked = 0
    async for page in pages(storage, query, after):
        for address, stored in page:
            looked += 1
            hidden = marked_fields(storage, address, stored) if wanted.masked and wanted.fields else None
            if matches(storage, address, stored, tags=wanted.tags, before=before, fields=wanted.fields, hidden=hidden):
                shown = view(storage, address, stored)
                if not wanted.damaged or shown.damage:
                    yield Listed(shown, looked)
        if on_page is not None and page:
            on_page(page[-1][0].key)
        if on_look is not None:
            on_look(looked)


async def timers(storage: Storage, bot: str, *, before: float, limit: int) -> list[Timer]:
    """Return the records of a bot whose deadline is before a time, earliest first. Found by an index."""
    found: list[Timer] = []
    last: Due | None = None
    namespace = encode_namespace(bot, storage.limits)
    await storage.ensure_open()
    while len(found) < limit:
        page = await storage.due(namespace, before=before, limit=min(PAGE, limit - len(found)), after=last)
        for due in page:
            stored: Stored | None = await storage.perform(Get(due.address))
            if stored is not None:
                shown = view(storage, due.address, stored)
                found.append(Timer(bot, shown.key, due.deadline, shown.flow, shown.state))
        if not page:
            break
        last = page[-1]
    return found
