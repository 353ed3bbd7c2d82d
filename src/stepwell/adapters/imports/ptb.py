"""Import of the data and conversations that python-telegram-bot's ``PicklePersistence`` has written."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stepwell import Storage
from stepwell.adapters.imports.records import ImportedRecord, ImportResult, RecordImport
from stepwell.engine import NOWHERE, as_storage, decode_value, quoted
from stepwell.errors import InvalidOption, StepwellError, UsageError

__all__ = ["import_ptb"]

PROGRAM = "stepwell.adapters.imports.unpickle"
#: How many records are written concurrently.
AT_ONCE = 500
#: The longest line that the program may print.
LONGEST = 64 * 1024 * 1024


async def import_ptb(
    path: Path | str,
    storage: Storage | str,
    *,
    bot_id: int | None = None,
    namespace: str | None = None,
    trust_pickle: bool = False,
    imports: Iterable[str] = (),
    overwrite: bool = False,
    dry_run: bool = False,
    most_problems: int = 100,
    progress: Callable[[ImportResult], None] | None = None,
) -> ImportResult:
    """Write the records of a ``PicklePersistence`` to a storage, where ``StepwellPersistence`` finds them.

    A pickle can run any code. The file is unpickled in a process of its own, and only if ``trust_pickle`` is true.
    ``path``: the file, or with ``single_file=False`` the ``filepath`` of the persistence. ``namespace``: that of the
    ``StepwellPersistence``, by default ``ptb:<bot id>``. ``imports``: files or modules with the bot's classes, such as
    ``["bot.py"]``, that are imported in that process before; classes of ``__main__`` are looked up there. Your process
    must know their ``record_type`` classes too.

    You may repeat the import: records that the storage has with the same data are skipped. Records that differ are left
    alone and reported, unless ``overwrite`` is true. Each written record is read again and compared.
    ``progress`` is called after each page. A storage given as a URL is opened and closed here.
    """
    if not trust_pickle:
        raise InvalidOption(
            f"{quoted(str(path))} is a pickle, which can run any code; if your bot has written it, "
            "pass trust_pickle=True (--trust-pickle)"
        )
    if namespace is None:
        if bot_id is None:
            raise InvalidOption("give bot_id (--bot-id), the number at the beginning of the bot's token")
        namespace = f"ptb:{bot_id}"
    _check_file(path)
    # Imported here because it needs python-telegram-bot.
    from stepwell.adapters.ptb.data.entries import tags_of

    opened_here = isinstance(storage, str)
    target = as_storage(storage)
    result = ImportResult(most_problems=most_problems)
    records = RecordImport(target, result, overwrite=overwrite, dry_run=dry_run)
    page: list[ImportedRecord] = []

    async def write() -> None:
        await records.write(page)
        page.clear()
        if progress is not None:
            progress(result)

    command = (sys.executable, "-m", PROGRAM, str(path), *imports)
    program = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, limit=LONGEST)
    assert program.stdout is not None
    try:
        async for line in program.stdout:
            found = _decoded(line, path, result)
            if found is not None:
                source, end, key, fields = found
                page.append(ImportedRecord(source, namespace + end, key, NOWHERE, fields, () if end else tags_of(key)))
            if len(page) >= AT_ONCE:
                await write()
        await write()
        if await program.wait():
            raise UsageError(
                f"the program that unpickles {quoted(str(path))} has ended with exit code {program.returncode}"
            )
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
        if opened_here:
            await target.close()
    return result


def _check_file(path: Path | str) -> None:
    if not Path(path).exists() and not Path(f"{path}_user_data").exists():
        raise UsageError(f"there is no file {quoted(str(path))}")


def _decoded(line: bytes, path: Path | str, result: ImportResult) -> tuple[str, str, Any, dict[Any, Any]] | None:
    """Return the record of a line; report one that cannot be stored or read."""
    try:
        found = decode_value(line.decode())
    except StepwellError as error:
        result.fail(line[:60].decode(errors="replace"), str(error))
        return None
    if type(found) is dict:
        raise UsageError(f"{quoted(str(path))} cannot be unpickled: {found['error']}")
    if len(found) == 2:
        result.fail(*found)
        return None
    source, end, key, fields = found
    return source, end, key, fields
