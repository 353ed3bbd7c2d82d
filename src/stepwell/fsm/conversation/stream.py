"""A text that a handler writes while its user sees it grow."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

from stepwell.fsm.base import Machine
from stepwell.fsm.bot import BotMethods
from stepwell.storage import Storage
from stepwell.storage.shown import ShownMessage
from stepwell.texts import Writer

__all__ = ["stream", "writer_of"]


@asynccontextmanager
async def stream(
    fsm: Machine, calls: list[dict[str, Any]], params: dict[str, Any], what: tuple[str | int, ...] | None
) -> AsyncGenerator[Writer]:
    """Show what is written in this block, and add the calls that complete it to the calls of the handler.

    ``params`` are those of the message. ``what``: as for ``writer_of``.
    """
    formatting = {} if fsm.formatting is None else fsm.formatting._asdict()
    params = {name: value for name, value in formatting.items() if value is not None} | params
    async with await writer_of(fsm.client, fsm.storage, what, params) as writer:
        yield writer
    calls += await writer.finish()


async def writer_of(
    client: BotMethods | None,
    storage: Storage | None,
    what: tuple[str | int, ...] | None,
    params: dict[str, Any],
    *,
    can_stop: bool = False,
) -> Writer:
    """Return a writer that continues with the draft or the message of an earlier one with the same text.

    ``what`` names the text; ``None`` if it will not be written again.
    """
    params = dict(params)
    writer = Writer(
        None if client is None else client.try_call,
        params.pop("chat_id"),
        # Not 0.
        draft_id=None if what is None else crc32(repr(what).encode()) % (2**31 - 1) + 1,
        can_stop=can_stop,
        params=params,
    )
    if what is not None and storage is not None and client is not None and not writer.shows_drafts:
        shown = ShownMessage(storage, what)
        writer.message_id = await shown.load()
        writer.on_message_id = shown.store
    return writer
