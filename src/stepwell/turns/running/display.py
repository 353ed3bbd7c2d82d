"""Shows in the chat what a turn writes, while it is written, and gives the calls that complete it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stepwell.engine import replaced
from stepwell.texts import Formatting, MakeCall, Writer
from stepwell.turns.base import AttemptBase
from stepwell.turns.record import TurnTable, draft_id_of
from stepwell.turns.running.stream import Stream

__all__ = ["Display"]


class Display:
    """Shows one stream of an attempt at a time.

    Text that must be complete before another message is a cut: its calls are stored and sent before that message. If
    the handler runs again, the cuts of earlier attempts are in the chat already, and are not shown again.
    """

    def __init__(self, attempt: AttemptBase, call: MakeCall | None, formatting: Formatting | None, cuts: int) -> None:
        self._attempt = attempt
        self._call = call
        self._formatting = {} if formatting is None else formatting._asdict()
        #: How many cuts earlier attempts have sent, and this one has reached.
        self._known_cuts = cuts
        self._cuts = 0
        self._cutting = asyncio.Lock()
        self._stream: Stream | None = None
        self._writer: Writer | None = None

    @property
    def stream(self) -> Stream | None:
        """The stream that is shown."""
        return self._stream

    def show(self, stream: Stream) -> None:
        """Show a stream from now on. In a private chat the person sees "Thinking..." at once."""
        self._stream = stream
        self._start(stream)

    def written(self, stream: Stream, text: str) -> None:
        """Show new text of a stream. Never waits."""
        if stream is not self._stream or self._attempt.task_ended:
            return
        if self._writer is None:
            self._start(stream)
        else:
            self._writer.write(text)

    async def cut(self, store: Callable[[list[dict[str, Any]]], Awaitable[None]]) -> None:
        """Complete the text so far, before another message is sent.

        ``store`` gets the calls that complete it, and stores them with ``policy.cut``. It gets none if there is no
        text, or if an earlier attempt has sent it.
        """
        async with self._cutting:
            stream = self._stream
            self.skip_cut()
            if stream is None or not stream.unsent.strip():
                await self.close()
                await store([])
                return
            length = len(stream.text)
            await store(await self.finish(stream))
            stream.mark_sent(length)
            self._cuts += 1
            self._known_cuts = self._cuts
        if len(stream.text) > length:
            self._start(stream)

    def skip_cut(self) -> None:
        """Leave out the text so far if an earlier attempt has sent it."""
        stream = self._stream
        if stream is not None and self._cuts < self._known_cuts and stream.unsent.strip():
            stream.mark_sent(len(stream.text))
            self._cuts += 1

    async def finish(self, stream: Stream) -> list[dict[str, Any]]:
        """Stop to show a stream, and return the calls that complete it."""
        text, writer = stream.unsent, None
        message = None
        if stream is self._stream:
            turn = self._attempt.record.table.turn
            message = None if turn is None else turn.shown
            writer, self._writer = self._writer, None
        if writer is None:
            if message is None and self._call is None:
                return [{"method": "sendMessage", **stream.params, "text": text}] if text else []
            writer = self._new_writer(stream, None, message)
        # The call under way may send the message, whose id must be stored.
        return await self._attempt.protected(writer.finish(text))

    async def close(self) -> None:
        """Stop to show anything. A draft disappears, and a message stays as it is shown."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()

    def _start(self, stream: Stream) -> None:
        turn = self._attempt.record.table.turn
        if self._call is None or self._cuts < self._known_cuts or self._cutting.locked() or turn is None:
            return
        self._writer = self._new_writer(stream, self._call, turn.shown)
        self._writer.write(stream.unsent)

    def _new_writer(self, stream: Stream, call: MakeCall | None, message: int | None) -> Writer:
        params = {name: value for name, value in self._formatting.items() if value is not None} | stream.params
        return Writer(
            call, params.pop("chat_id"), draft_id=draft_id_of(self._attempt.turn_id), can_stop=True,
            message_id=message, on_message_id=self._store_message, params=params,
        )  # fmt: skip

    async def _store_message(self, message_id: int | None) -> None:
        """Store the id of the message that shows the stream, so that the next attempt continues with it."""

        def shown(table: TurnTable) -> TurnTable:
            return replaced(table, turn=replaced(self._attempt.own(table), shown=message_id))

        await self._attempt.write(shown)
