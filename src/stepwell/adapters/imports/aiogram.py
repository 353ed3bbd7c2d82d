"""Import of the states and data in Redis that aiogram's ``RedisStorage`` has written. aiogram is not needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from stepwell import Storage
from stepwell.adapters.aiogram_records import address_of, tags_of
from stepwell.adapters.framework.states import place_of
from stepwell.adapters.imports.key_patterns import DATA, LOCK, STATE, FoundKey, KeyPatterns, default_patterns
from stepwell.adapters.imports.records import ImportedRecord, ImportResult, RecordImport
from stepwell.engine import as_storage

if TYPE_CHECKING:
    from stepwell.storage.redis.reading import RedisKeys

__all__ = ["import_aiogram"]


async def import_aiogram(
    url: str,
    storage: Storage | str,
    *,
    keys: Iterable[str] = (),
    bot_id: int | None = None,
    prefix: str = "fsm",
    separator: str = ":",
    with_bot_id: bool = False,
    with_business_connection_id: bool = False,
    with_destiny: bool = False,
    name: str = "aiogram",
    overwrite: bool = False,
    dry_run: bool = False,
    most_problems: int = 100,
    progress: Callable[[ImportResult], None] | None = None,
) -> ImportResult:
    """Write the records of aiogram's ``RedisStorage`` to a storage, where ``StepwellStorage`` finds them.

    ``prefix``, ``separator`` and ``with_...`` are the options of the bot's ``DefaultKeyBuilder``. For another key
    builder, give ``keys``, the patterns of its keys: ``["fsm:{bot_id}:{chat_id}:{user_id}:{part}"]``. ``bot_id`` is the
    bot of keys without one. ``name`` is the name of the ``StepwellStorage``.

    Redis is only read. You may repeat the import: records that the storage has with the same state and data are
    skipped. Records that differ are left alone and reported, unless ``overwrite`` is true. Each written record is read
    again and compared. Keys that cannot be read are reported. A time to live of a key is not imported.

    ``progress`` is called after each page. A storage given as a URL is opened and closed here.
    """
    # Imported here because it needs the redis extra.
    from stepwell.storage.redis.reading import RedisKeys

    given = list(keys)
    patterns = KeyPatterns(
        given
        or default_patterns(
            prefix=prefix,
            separator=separator,
            with_bot_id=with_bot_id,
            with_business_connection_id=with_business_connection_id,
            with_destiny=with_destiny,
        ),
        bot_id,
        default=not given,
    )
    opened_here = isinstance(storage, str)
    target = as_storage(storage)
    result = ImportResult(most_problems=most_problems)
    records = RecordImport(target, result, overwrite=overwrite, dry_run=dry_run)
    try:
        async with RedisKeys(url) as source:
            async for page in source.pages(patterns.prefix):
                await records.write(await _records(source, page, patterns, name, result))
                if progress is not None:
                    progress(result)
    finally:
        if opened_here:
            await target.close()
    return result


async def _records(
    source: RedisKeys, page: Iterable[str], patterns: KeyPatterns, name: str, result: ImportResult
) -> list[ImportedRecord]:
    """Read the records of a page of keys. A record with a state belongs to the page with the key of its state."""
    found: dict[str, FoundKey] = {}
    for text in dict.fromkeys(page):
        meaning = patterns.read(text)
        if isinstance(meaning, str):
            result.fail(text, meaning)
        elif meaning.part != LOCK:
            found[text] = meaning
    values = await source.values([key for each in found.values() for key in (each.state, each.data)])
    pairs = dict(zip(found, zip(values[::2], values[1::2], strict=True), strict=True))
    await _report_other_types(source, found, pairs, result)
    records = []
    for text, (state, data) in pairs.items():
        each = found[text]
        if each.part == DATA and state is not None:
            continue
        if state is not None and not _is_unicode(state):
            result.fail(each.state, "has bytes that are not UTF-8")
            continue
        try:
            fields = {} if data is None else _fields(data)
        except ValueError as error:
            result.fail(each.data, str(error))
            continue
        if state is not None or fields:
            namespace, key = address_of(name, each.key)
            records.append(ImportedRecord(text, namespace, key, place_of(state), fields, tags_of(each.key)))
    return records


async def _report_other_types(
    source: RedisKeys,
    found: dict[str, FoundKey],
    pairs: dict[str, tuple[str | None, str | None]],
    result: ImportResult,
) -> None:
    """Report keys that have no text, such as hashes, and remove them from the pairs."""
    missing = [text for text, pair in pairs.items() if pair[0 if found[text].part == STATE else 1] is None]
    if not missing:
        return
    for text, kind in zip(missing, await source.kinds(missing), strict=True):
        # A key of the type "none" was deleted since it was listed.
        del pairs[text]
        if kind != "none":
            result.fail(text, f"is a {kind}, not a string")


def _fields(data: str) -> dict[str, Any]:
    """Return data as aiogram reads it. Raises ``ValueError`` with the reason."""
    if not _is_unicode(data):
        raise ValueError("has bytes that are not UTF-8")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if type(fields) is not dict:
        raise ValueError(f"is JSON of a {type(fields).__name__}, not of a dict")
    return fields


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
