"""One attempt of a turn in this process: its handler, and all that it has done so far."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from stepwell.codec.effects import Replay
from stepwell.engine import Change, Get, Stored, decode_key, replaced
from stepwell.errors import Conflict, LeaseLost, StepwellError, UsageError
from stepwell.fsm import keys
from stepwell.texts import Formatting
from stepwell.turns.base import AttemptBase, RunnerBase
from stepwell.turns.history import History
from stepwell.turns.message import Message
from stepwell.turns.policy import cut
from stepwell.turns.record import (
    Running,
    StopReason,
    TurnTable,
    change_of,
    is_web,
    kept_prefix,
    message_part,
    table_of,
    text_part,
)
from stepwell.turns.running.budget import BudgetStatus, Usage
from stepwell.turns.running.display import Display
from stepwell.turns.running.held import HeldRecord, sent
from stepwell.turns.running.question import PAUSE, Decision, Questions
from stepwell.turns.running.stream import Stream
from stepwell.turns.running.tools import Tools, current, without_exit
from stepwell.turns.running.transcript import Step, TurnTranscript
from stepwell.turns.running.turn import Turn

__all__ = ["Attempt"]

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
#: Seconds for the last call that shows a text that is left to the next attempt.
CLOSE_TIMEOUT: Final = 3.0
#: Seconds in which a cancelled handler must end. A tool that must not run twice gets most of them.
CANCEL_TIMEOUT: Final = 12.0
#: Seconds between two looks at the record of a suspended attempt.
WATCH_SUSPENDED: Final = 60.0
#: Seconds between two writes of the text so far, for people who look from outside, and how many characters it has.
SHOW_EVERY: Final = 3.0
SHOWN: Final = 4096


class Attempt(AttemptBase):
    """Runs the handler of a turn once. It is suspended while the handler waits for people only."""

    def __init__(self, runner: RunnerBase, record: HeldRecord) -> None:
        turn = record.table.turn
        assert turn is not None
        self.runner: RunnerBase = runner
        self.record: HeldRecord = record
        self.turn_id: str = turn.id
        self.number: int = turn.attempt
        #: The token of the claim under which it has begun or gone on.
        self.token: str = turn.runner
        self.conversation: Any = decode_key(record.address.key)[1]
        self.client: Any = runner.client
        self.formatting: Formatting | None = runner.turns.formatting
        self.history: History = History(record.storage, runner.turns.bot, self.conversation, collects=True)
        self.turn: Turn = Turn(self, self._messages(turn), self.history)
        self.tools: Tools = Tools(self, record.parts)
        self.questions: Questions = Questions(self)
        #: What the handler has answered, in order: calls and streams.
        self.outputs: list[dict[str, Any] | Stream] = []
        #: Another worker has the turn, or the record is gone.
        self.lost: bool = False
        #: Why it was stopped.
        self.stop_reason: StopReason | None = None
        #: What the chat shows. A page reads the transcript.
        call = None if is_web(self.turn_chat) else runner.try_call
        self.display: Display = Display(self, call, self.formatting, turn.cuts)
        #: What the turn shows, if pages show this conversation.
        self.transcript: TurnTranscript | None = (
            TurnTranscript(self, self.turn.messages) if record.table.transcribed else None
        )
        self._busy = 0
        #: Set if nothing is left of the budget, and the turn has cost more than was reserved for it.
        self._used_up: BudgetStatus | None = None
        self._suspended = asyncio.Event()
        #: Set when a suspended attempt goes on.
        self._resumed = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._replying: asyncio.Task[None] | None = None
        #: When the text so far was stored last, or the attempt began.
        self._stored_at = asyncio.get_running_loop().time()
        self._stored_text = ""
        #: Set when the record may have changed.
        self._news = asyncio.Event()
        #: The task of the handler.
        self.task: asyncio.Task[None] = asyncio.create_task(self._run(), name=f"stepwell-turn {turn.id}")

    # What its handler does

    @property
    def where(self) -> dict[str, Any]:
        return self.turn.where

    async def call_tool(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        replay: Replay,
        name: str | None = None,
        call_id: str | None = None,
        shown: Callable[[Any], Any] | None = None,
    ) -> Any:
        return await self.tools.call(function, args, kwargs, replay=replay, name=name, call_id=call_id, shown=shown)

    async def keep(self, value: Any) -> None:
        with self.busy():
            name = f"{kept_prefix(self.turn_id)}{len(self.kept()):06}"
            await self.store({name: self.record.seal.seal("p", name, value)})

    def kept(self) -> list[Any]:
        parts, prefix = self.record.parts, kept_prefix(self.turn_id)
        names = sorted(name for name in parts if name.startswith(prefix))
        return [self.record.seal.value("p", name, parts[name]) for name in names]

    async def spent(self, cost: float | Usage, *, id: str | None) -> None:  # noqa: A002
        budget, turn = self.runner.turns.budget, self.record.table.turn
        payer = None if turn is None else self.runner.budget_of(self.record, turn)
        if budget is None or payer is None:
            return
        amount, was_used_up = budget.cost_of(cost), self._used_up is not None

        def added(table: TurnTable) -> TurnTable | None:
            turn = self.own(table)
            costs = turn.costs or {}
            name = f"#{len(costs)}" if id is None else id
            return None if name in costs else replaced(table, turn=replaced(turn, costs={**costs, name: amount}))

        if amount:
            with self.busy():
                try:
                    await self.write(added)
                except Conflict:
                    # It was paid, although another worker has the turn now.
                    await payer.add(amount)
                    raise
                assert self.record.table.turn is not None
                self._used_up = await payer.reserve(self.record.table.turn.cost) or self._used_up
        # The request that has used it up may have brought the answer.
        if self._used_up is not None and was_used_up and not self.turn.stopped.is_set():
            if self.turn.messages[-1].where:
                self.outputs.append({"method": "sendMessage", **self.where, "text": budget.refusal(self._used_up)})
            self.stop("stop")

    async def ask(self, text: str, **options: Any) -> Decision:
        return await self.questions.ask(text, **options)

    def output(self, call: dict[str, Any]) -> None:
        self._check_open()
        self.add_output(call)

    def add_output(self, call: dict[str, Any]) -> None:
        """Add a call to the answer, also after the end of the handler."""
        self.outputs.append(call)
        if self.transcript is not None:
            self.transcript.call(call)

    @property
    def turn_chat(self) -> Any:
        chat = self.turn.chat
        return None if chat is None else chat.id

    async def new_stream(self, params: dict[str, Any]) -> Stream:
        self._check_open()
        stream = Stream({**self.turn.where, **params}, self._written)
        await self.flush()
        await self.display.close()
        self.outputs.append(stream)
        self.display.show(stream)
        return stream

    async def flush(self) -> None:
        stream = self.display.stream
        if stream is not None and stream.unsent.strip():
            with self.busy():
                await self.before_message(self._store_calls)
                await self.deliver()

    async def before_message(self, store: Callable[[list[dict[str, Any]]], Awaitable[None]]) -> None:
        await self.display.cut(store)

    def skip_sent(self) -> None:
        self.display.skip_cut()

    async def _store_calls(self, calls: list[dict[str, Any]]) -> None:
        """Store the calls of a text that is completed before the end of the turn."""
        is_cut, calls = bool(calls), sent(calls)

        def added(table: TurnTable) -> TurnTable | None:
            turn = self.own(table)
            return replaced(table, turn=cut(turn), next_call=table.next_call + len(calls)) if is_cut else None

        await self.write(added, lambda before, after: self.record.calls_after(before, calls))

    async def steered(self) -> list[Message]:
        if self.runner.turns.rules.on_busy != "steer":
            return []
        found: tuple[Any, ...] = ()

        def moved(table: TurnTable) -> TurnTable | None:
            nonlocal found
            turn, found = self.own(table), table.waiting
            if not found:
                return None
            turn = replaced(turn, messages=turn.messages + found)
            return replaced(table, turn=turn, waiting=(), window=None)

        with self.busy():
            if not await self.write(moved):
                return []
            await self.record.read_parts([message_part(each.seq) for each in found])
        messages = [self._message(each.seq) for each in found]
        self.turn.messages += messages
        if self.transcript is not None:
            self.transcript.messages(messages)
        return messages

    @contextmanager
    def busy(self) -> Iterator[None]:
        self._check_open()
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self.may_be_suspended()

    def may_be_suspended(self) -> None:
        if self.questions.waits and not self._busy:
            self._suspended.set()

    # Writing

    def own(self, table: TurnTable) -> Running:
        turn = table.turn
        if turn is None or turn.id != self.turn_id or turn.runner != self.token:
            raise LeaseLost(self.record.address.text)
        return turn

    async def write(self, change: Callable[[TurnTable], TurnTable | None], parts: Any = None, **options: Any) -> bool:
        while True:
            record = self.record
            if self.lost:
                raise LeaseLost(record.address.text)
            held = record.slot.holding
            try:
                if held:
                    return await self._write(record, change, parts, **options)
                await self._claim_again()
            except Conflict:
                # One that was only suspended meanwhile claims its record again.
                if record.slot.holding or not held:
                    self.abandon()
                    raise

    async def _write(
        self, record: HeldRecord, change: Callable[[TurnTable], TurnTable | None], parts: Any, **options: Any
    ) -> bool:
        """Write, and with it what the turn has shown since the last write."""
        transcript = self.transcript
        shown = {} if transcript is None else transcript.take(record)
        if transcript is None or not shown:
            return await record.write(change, parts, **options)

        def all_parts(before: TurnTable, after: TurnTable) -> Mapping[str, str | None]:
            return {**shown, **((parts(before, after) if callable(parts) else parts) or {})}

        written = False
        try:
            written = await record.write(change, all_parts, **options)
        finally:
            if not written:
                transcript.give_back(shown)
        self.runner.turns.show(record.address)
        return written

    async def _claim_again(self) -> None:
        """Let the dispatcher claim the record of a suspended attempt, one of whose tasks goes on."""
        storage, address = self.record.storage, self.record.address
        now = self.record.slot.time()
        self._resumed.clear()

        def woken(stored: Stored | None) -> Change | None:
            table = table_of(self.record.seal, stored)
            turn = replaced(self.own(table), answered=True, check=now)
            return change_of(storage, address, self.runner.turns.name, replaced(table, turn=turn), now=now, parts={})

        await self.record.persist(lambda: storage.edit(address, woken))
        self.runner.turns.wake()
        await self._resumed.wait()

    async def store(self, parts: Mapping[str, str | None]) -> None:

        def unchanged(table: TurnTable) -> TurnTable:
            self.own(table)
            return table

        await self.write(unchanged, parts)

    async def deliver(self) -> None:
        await self.runner.deliver(self.record)

    async def protected(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            if not task.cancelled():
                # It is stored; the error, if any, belongs to the cancelled call.
                task.exception()
            raise

    # Its course

    async def drive(self) -> bool:
        """Wait until the handler has ended, and return ``True``; ``False`` if it waits for people only."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_record(), name="stepwell-turn-watch")
        while True:
            suspended = asyncio.create_task(self._suspended.wait())
            try:
                await asyncio.wait({self.task, suspended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                suspended.cancel()
            self._suspended.clear()
            if self.task.done():
                await self._end_watch()
                return True
            # Another task of the handler may have begun something meanwhile.
            if self.questions.waits and not self._busy:
                return False

    async def resume(self, record: HeldRecord) -> None:
        """Go on under another claim of the same record."""
        turn = record.table.turn
        assert turn is not None
        self.record, self.token = record, turn.runner
        self._resumed.set()
        # The watch of a suspended attempt looks rarely.
        self._news.set()
        self.take_news(turn)
        # Nobody may have waited for the answer.
        asyncio.get_running_loop().call_later(PAUSE, self.may_be_suspended)

    def take_news(self, turn: Running) -> None:
        """Stop the handler if its turn is to stop, and let its asks go on that have an answer."""
        if turn.stop is not None:
            self.stop(turn.stop)
        self.questions.wake()

    def stop(self, reason: StopReason) -> None:
        """Cancel the handler, which ends at its next ``await``."""
        if not (self.turn.stopped.is_set() or self.task.done()):
            self.stop_reason = reason
            self.turn.stopped.set()
            self.task.cancel()

    def abandon(self) -> None:
        """Cancel the handler: another worker has the turn. Nothing that it does is stored or sent."""
        self.lost = True
        self.task.cancel()
        if self.transcript is not None:
            self.transcript.stop()

    async def cancel(self) -> None:
        """Cancel the handler and wait for its end, because this worker stops."""
        await self._end_watch()
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=CANCEL_TIMEOUT)
        if not self.task.done():
            logger.error(
                "the handler of turn %s has caught its cancellation and goes on; nothing of it is stored any more, "
                "and the next worker continues its turn", self.turn_id,
            )  # fmt: skip
            self.abandon()
        await self.end_transcript()
        await self.end_display()

    @property
    def steps(self) -> list[Step]:
        """What the turn has shown."""
        return [] if self.transcript is None else self.transcript.steps

    async def end_transcript(self) -> None:
        """Write the transcript no more but with the end of the turn."""
        if self.transcript is not None:
            await self.transcript.close()

    def unfinished_message(self) -> list[dict[str, Any]]:
        """Return the call that deletes the message of a text that is not completed, if there is one."""
        turn, where = self.record.table.turn, keys.params_of(self.turn.messages[-1].where)
        if turn is None or turn.shown is None or "business_connection_id" in where:
            return []
        return [{"method": "deleteMessage", "chat_id": where["chat_id"], "message_id": turn.shown}]

    async def end_display(self) -> None:
        """Show nothing more. The text is not completed."""
        try:
            # A call may be under way, and Telegram may not answer.
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self.display.close()
        except (StepwellError, TimeoutError) as error:
            # The claim is lost, or the storage is away. The next attempt shows the text.
            logger.debug("the text of turn %s is not shown: %s", self.turn_id, error)

    @property
    def text(self) -> str:
        """All texts of the answer."""
        texts = [
            each.text if isinstance(each, Stream) else each.get("text", "")
            for each in self.outputs
            if isinstance(each, Stream) or each.get("method") == "sendMessage"
        ]
        return "\n".join(text for text in texts if text)

    # Internal

    async def _run(self) -> None:
        await without_exit("the handler", self._handle(self.runner.turns.handler_function))

    async def _handle(self, handler: Callable[[Turn], Any]) -> None:
        current.set(self.turn)
        if not inspect.isasyncgenfunction(handler):
            await handler(self.turn)
            return
        stream: Stream | None = None
        if self.turn.messages[-1].where:
            # A generator tells that it streams, so the person sees at once that the turn has begun.
            stream = await self.new_stream({})
        async for piece in handler(self.turn):
            if stream is None or self.display.stream is not stream:
                stream = await self.new_stream({})
            stream.write(piece)

    def _written(self, stream: Stream, text: str) -> None:
        if self.transcript is not None:
            self.transcript.text(stream, text)
        self.display.written(stream, text)

    async def _watch_record(self) -> None:
        """Watch for a stop, for the loss of the claim, and keep the timer of the turn in the future."""
        runner, news = self.runner, self._news
        unlisten = self.record.storage.listen(runner.turns.topic_of(self.record.address), news.set)
        try:
            while True:
                try:
                    # One that waits for people reads only to find out whether another process has gone on with it.
                    async with asyncio.timeout(runner.watch_every if self.record.slot.holding else WATCH_SUSPENDED):
                        await news.wait()
                except TimeoutError:
                    pass
                news.clear()
                try:
                    await self._look()
                except Conflict:
                    return
                except StepwellError as error:
                    logger.debug("the record of turn %s cannot be read: %s", self.turn_id, error)
        finally:
            unlisten()

    async def _look(self) -> None:
        if self.record.slot.lost:
            return self.abandon()
        stored: Stored | None = await self.record.storage.perform(Get(self.record.address))
        table = table_of(self.record.seal, stored)
        turn, slot = table.turn, self.record.slot
        if turn is None or turn.id != self.turn_id or turn.runner != self.token:
            # After an end write of its own, nobody reads this any more.
            return self.abandon()
        if not slot.holding or stored is None:
            # It waits for people. Who serves their answer claims the record first.
            return None
        if slot.version is None or stored.version >= slot.version:
            self.record.table = table
            self.take_news(turn)
        if turn.check is not None and turn.stop is None:
            await self._heartbeat(turn.check)
        is_due = table.added and table.send_at is not None and table.send_at <= slot.time()
        if is_due and slot.holding and (self._replying is None or self._replying.done()):
            # Beside the watch, because Telegram may be slow, and a stop must not wait for it.
            self._replying = asyncio.create_task(self._send_added(), name="stepwell-turn-replies")
        await self._store_text()
        return None

    async def _send_added(self) -> None:
        """Send the calls that others have added."""
        try:
            await self.deliver()
        except StepwellError as error:
            # If the claim is lost, the watch ends the attempt.
            logger.debug("the replies of turn %s are sent later: %s", self.turn_id, error)

    async def _store_text(self) -> None:
        """Store the text so far, if the turn has been writing for a while."""
        now = asyncio.get_running_loop().time()
        if now - self._stored_at < SHOW_EVERY or not self.record.slot.holding or self.task_ended:
            return
        text, self._stored_at = self.text[-SHOWN:], now
        if text and text != self._stored_text:
            self._stored_text, name = text, text_part(self.turn_id)
            await self.store({name: self.record.seal.seal("p", name, text)})

    async def _heartbeat(self, check: float) -> None:
        """Move the time at which another worker looks after the turn, before it is reached."""
        lease, record = self.runner.turns.lease, self.record
        slot = record.slot
        if check - slot.time() > lease / 2:
            return

        def later(table: TurnTable) -> TurnTable:
            turn = self.own(table)
            return replaced(table, turn=replaced(turn, check=slot.time() + lease))

        try:
            await record.write(later)
        except Conflict:
            # One that was suspended meanwhile waits for people, and must not claim its record again.
            if slot.holding:
                self.abandon()
                raise

    async def _end_watch(self) -> None:
        tasks = {each for each in (self._watch, self._replying) if each is not None}
        self._watch = self._replying = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _check_open(self) -> None:
        if self.task_ended:
            raise UsageError("this turn has ended; answer, ask and call tools within its handler")

    @property
    def task_ended(self) -> bool:
        """Whether the handler has ended. It may have started tasks that go on."""
        task = getattr(self, "task", None)
        return task is not None and task.done()

    def _messages(self, turn: Running) -> list[Message]:
        return [self._message(each.seq) for each in turn.messages]

    def _message(self, seq: int) -> Message:
        part = message_part(seq)
        stored = self.record.seal.value("p", part, self.record.parts[part])
        return Message.of(stored["update"], stored["at"])
