"""The runner of turns: claims a conversation whose timer is due, runs its turn, ends it, and sends the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from stepwell.engine import (
    TURNS,
    Address,
    Change,
    Slot,
    Stored,
    backoff,
    call_function,
    has_died,
    masked_text,
    replaced,
)
from stepwell.errors import BotApiError, BotUnavailable, Conflict, LeaseLost, StepwellError, StorageError
from stepwell.fsm.engine import report_refusal
from stepwell.texts import MakeCall, fit
from stepwell.turns.base import RunnerBase, Send, TurnsBase
from stepwell.turns.message import Message
from stepwell.turns.policy import advanced
from stepwell.turns.record import (
    HANDLED,
    MOST_HANDLED,
    Running,
    StopReason,
    TurnTable,
    change_of,
    failed_part,
    kept_prefix,
    live_prefix,
    message_part,
    question_part,
    send_part,
    table_of,
    text_part,
    tool_prefix,
)
from stepwell.turns.running.attempt import Attempt
from stepwell.turns.running.budget import TurnBudget
from stepwell.turns.running.held import HeldRecord, sent
from stepwell.turns.running.question import earliest_deadline, with_timeouts
from stepwell.turns.running.stream import Stream
from stepwell.turns.running.tools import without_exit
from stepwell.turns.running.transcript import Step, call_steps, ended_parts, live_steps

__all__ = ["Runner"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds before calls are sent again that could not be sent: the first pause, the longest, and how often.
RESEND: Final = (1.0, 300.0)
MOST_FAILURES: Final = 20
#: Seconds for the last write of a turn that is interrupted because its worker stops.
STOP_TIMEOUT: Final = 5.0
#: Seconds between two looks for the turns of processes that have died on this machine.
LOOK_EVERY: Final = 1.0
#: The most failed turns that a conversation keeps.
MOST_FAILED: Final = 10
#: The most bytes of the error of a failed turn.
LONGEST_ERROR: Final = 2000


class Runner(RunnerBase):
    """Runs the turns of one ``Turns`` in this process."""

    def __init__(
        self, turns: TurnsBase, send: Send, *, client: Any = None, try_call: MakeCall | None = None, watch_every: float
    ) -> None:
        self.turns: TurnsBase = turns
        self.send: Send = send
        #: The client of the bot, for ``turn.bot``.
        self.client: Any = client
        #: Makes one attempt of a call, to show streams; ``None`` shows them at the end of a turn.
        self.try_call: MakeCall | None = try_call
        #: Seconds between two looks at the record of a running turn, if no notice arrives.
        self.watch_every: float = watch_every
        #: The attempts that wait for people.
        self.suspended: dict[Address, Attempt] = {}
        #: The attempts whose handler runs.
        self.running: dict[Address, Attempt] = {}

    async def serve(self, slot: Slot) -> bool | None:
        """Serve a conversation whose timer is due, as long as it has anything to do. The slot is held."""
        record = HeldRecord(self.turns.name, slot)
        await record.load()
        attempt = self._suspended_of(record)
        try:
            if not await self.deliver(record):
                if attempt is not None:
                    self.suspended[record.address] = attempt
                return None
            if attempt is not None and not await self._resume(attempt, record):
                return None
            while True:
                attempt = attempt or await self._begin(record)
                if attempt is None:
                    return None
                while not await self._driven(attempt):
                    if await self._suspend(attempt):
                        return None
                await self._end(attempt)
                if attempt.lost or not slot.holding:
                    return None
                attempt = None
        except asyncio.CancelledError:
            await asyncio.shield(self._leave(record, attempt))
            raise
        except Conflict as error:
            # Another worker has the conversation.
            logger.warning("the turn at %s goes on in another worker: %s", slot.address.text, error)
            if attempt is not None:
                attempt.abandon()
                await attempt.cancel()
            return None
        except Exception:
            # The next attempt begins after the lease.
            if attempt is not None and self.suspended.get(record.address) is not attempt:
                attempt.abandon()
                await attempt.cancel()
            raise

    async def _driven(self, attempt: Attempt) -> bool:
        """Wait until the handler has ended, and return ``True``; ``False`` if it waits for people only."""
        address = attempt.record.address
        self.running[address] = attempt
        try:
            return await attempt.drive()
        finally:
            self.running.pop(address, None)

    async def take_over(self) -> None:
        """Wake a worker for each turn whose process has died on this machine, until cancelled.

        Otherwise it would wait until the time in its table, which is a lease after the last sign of life.
        """
        storage, turns = self.turns.storage, self.turns
        while True:
            try:
                async for entry in storage.scan(TURNS, flow=turns.name, state="running"):
                    if entry.address not in self.running and await self._wake_if_dead(entry.address):
                        turns.wake()
            except StepwellError as error:
                logger.debug("the turns of dead processes cannot be looked for: %s", error)
            await asyncio.sleep(LOOK_EVERY * storage.rng.uniform(0.8, 1.2))

    async def _wake_if_dead(self, address: Address) -> bool:
        storage, turns = self.turns.storage, self.turns
        seal, now = storage.seal(address), await turns.clock.now()

        def woken(stored: Stored | None) -> Change | None:
            table = table_of(seal, stored)
            turn = table.turn
            if turn is None or turn.asking or turn.check is None or turn.check <= now or not has_died(turn.runner):
                return None
            return change_of(
                storage, address, turns.name, replaced(table, turn=replaced(turn, check=now)), now=now, parts={}
            )

        return await storage.edit(address, woken) is not None

    def stop(self, address: Address, turn_id: str, reason: StopReason) -> None:
        """Stop a turn that runs in this process, at once. The table says so too."""
        attempt = self.running.get(address)
        if attempt is not None and turn_id == attempt.turn_id:
            attempt.stop(reason)

    async def close(self) -> None:
        """Cancel the handlers that wait for people. Their questions stay open."""
        attempts = list(self.suspended.values())
        self.suspended.clear()
        await asyncio.gather(*(attempt.cancel() for attempt in attempts))

    # Sending

    async def deliver(self, record: HeldRecord) -> bool:
        """Send the stored calls in order, and remove each; ``False`` if one cannot be sent now."""
        async with record.sending:
            while names := await self._unsent(record):
                for place, name in enumerate(names, 1):
                    if not await self._deliver_one(record, name, is_last=place == len(names)):
                        return False
        return True

    async def _unsent(self, record: HeldRecord) -> list[str]:
        """Return the names of the parts with calls to send, with those that were added beside the claim."""
        added = [name for number in record.table.added if (name := send_part(number)) not in record.parts]
        if added:
            await record.read_parts(added)
        return sorted(name for name in record.parts if name.startswith("s:"))

    async def _deliver_one(self, record: HeldRecord, name: str, *, is_last: bool) -> bool:
        call = record.seal.value("p", name, record.parts[name])
        await record.persist(record.slot.check)
        try:
            await without_exit("the sender", call_function(self.send, call))
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            # It is logged, and the call is tried again or dropped.
            failures = record.table.send_failures + 1
            if not await self._is_final(record, call, error, failures):
                await self._send_later(record, failures)
                return False

        # Until the last one is sent, a worker looks after the others.
        def sent(table: TurnTable) -> TurnTable:
            left = tuple(number for number in table.added if send_part(number) != name)
            done = is_last and not left
            return replaced(table, added=left, send_at=None if done else table.send_at, send_failures=0)

        def keep(table: TurnTable) -> bool:
            return not is_last or bool(table.added) or _has_work(table)

        removal = asyncio.ensure_future(record.write(sent, {name: None}, keep=keep))
        try:
            await asyncio.shield(removal)
        except asyncio.CancelledError:
            # It was sent, so that a removal that is cancelled would send it twice.
            await asyncio.wait({removal}, timeout=STOP_TIMEOUT)
            raise
        return record.slot.holding

    async def _is_final(self, record: HeldRecord, call: Mapping[str, Any], error: BaseException, failures: int) -> bool:
        """Return whether a call that failed is dropped."""
        method = call.get("method")
        if isinstance(error, BotApiError) and not isinstance(error, BotUnavailable):
            await report_refusal(logger, call, error, bot=(record.storage, record.bot))
            return True
        if failures >= MOST_FAILURES:
            logger.error("%s could not be sent %d times and is dropped", method, failures, exc_info=error)
            return True
        if isinstance(error, BotUnavailable):
            logger.warning("%s is sent again later: %s", method, error)
        else:
            logger.error("%s could not be sent and is tried again later", method, exc_info=error)
        return False

    async def _send_later(self, record: HeldRecord, failures: int) -> None:
        slot = record.slot
        at = slot.time() + backoff(failures, *RESEND)

        def later(table: TurnTable) -> TurnTable:
            turn = table.turn
            if turn is not None and record.address not in self.running:
                # It may have been taken with the end of the last one, and has not begun.
                check = None if turn.check is None else max(turn.check, at)
                turn = replaced(turn, paused=turn.paused or turn.runner == slot.guard.token, check=check)
            return replaced(table, turn=turn, send_at=at, send_failures=failures)

        await record.write(later, keep=lambda table: record.address in self.running)

    # Beginning and going on

    def _suspended_of(self, record: HeldRecord) -> Attempt | None:
        """Return the suspended attempt of the running turn, if it is in this process."""
        attempt = self.suspended.pop(record.address, None)
        turn = record.table.turn
        if attempt is None:
            return None
        if turn is None or attempt.turn_id != turn.id or attempt.token != turn.runner or attempt.task_ended:
            attempt.abandon()
            return None
        return attempt

    async def _begin(self, record: HeldRecord) -> Attempt | None:
        """Begin the turn that is to run now, or the next attempt of one; ``None`` if there is none."""
        turn = record.table.turn
        if turn is None:
            if not await self._take_next(record):
                return None
        elif turn.asking and not _goes_on(turn, record.slot.now):
            await self._wait_on(record)
            return None
        elif turn.runner != record.slot.guard.token:
            counts = not (turn.asking or turn.paused)
            await record.write(lambda table: self._claimed(table, record.slot, counts=counts))
        turn = record.table.turn
        assert turn is not None
        names = [message_part(each.seq) for each in turn.messages]
        await record.read_parts([name for name in names if name not in record.parts])
        if turn.stop is not None or turn.attempt > self.turns.attempts:
            await self._end_unrun(record, turn)
            return await self._begin(record) if record.slot.holding else None
        if not await self._may_begin(record, turn):
            return await self._begin(record) if record.slot.holding else None
        self.turns.started(record.address, turn, record.slot.now)
        return Attempt(self, record)

    async def _may_begin(self, record: HeldRecord, turn: Running) -> bool:
        """Reserve something of the budget for a turn. If nothing is left, end the turn, and say so in the chat."""
        try:
            budget = self.budget_of(record, turn)
            refused = None if budget is None else await budget.reserve(turn.cost)
            if refused is None or self.turns.budget is None:
                return True
            where, text = self.turns.where_of(record, turn), self.turns.budget.refusal(refused)
            calls = [{"method": "sendMessage", **where, "text": text}] if where else []
            await self._write_end(record, turn, calls, [], "refused", shown=call_steps(calls))
        except (Conflict, StorageError):
            raise
        except Exception as error:  # noqa: BLE001 a function of the bot has raised, and the turn fails
            await self._end_failed(record, turn, error)
        else:
            await self.deliver(record)
        return False

    def budget_of(self, record: HeldRecord, turn: Running) -> TurnBudget | None:
        """Return the budget of the payer of a turn; ``None`` if it has no limit."""
        if self.turns.budget is None:
            return None
        part = message_part(turn.messages[0].seq)
        stored = record.seal.value("p", part, record.parts[part])
        payer = self.turns.budget.payer_of(Message.of(stored["update"], stored["at"]))
        return None if payer is None else TurnBudget(self.turns.budget, self.turns.name, record, turn, payer)

    def _claimed(self, table: TurnTable, slot: Slot, *, counts: bool) -> TurnTable | None:
        turn = table.turn
        if turn is None:
            return None
        token = slot.guard.token or ""
        turn = replaced(
            with_timeouts(turn, slot.time()), runner=token, asking=False, paused=False, answered=False,
            attempt=turn.attempt + counts, check=slot.time() + self.turns.lease,
        )  # fmt: skip
        return replaced(table, turn=turn)

    async def _resume(self, attempt: Attempt, record: HeldRecord) -> bool:
        """Let a suspended attempt go on under the claim of this record."""
        turn = record.table.turn
        assert turn is not None
        if not _goes_on(turn, record.slot.now):
            self.suspended[record.address] = attempt
            await self._wait_on(record)
            return False
        await record.write(lambda table: self._claimed(table, record.slot, counts=False))
        await attempt.resume(record)
        return True

    async def _wait_on(self, record: HeldRecord) -> None:
        """Set the timer of a turn that waits for people, and release the claim."""

        def waits(table: TurnTable) -> TurnTable | None:
            turn = table.turn
            if turn is None or not turn.asking or _goes_on(turn, record.slot.time()):
                return None
            return replaced(table, turn=replaced(turn, check=earliest_deadline(turn.questions)))

        await record.write(waits, keep=lambda table: False)

    async def _take_next(self, record: HeldRecord) -> bool:
        """Begin the next turn if its messages are collected. Otherwise set the timers, and release the claim."""
        slot = record.slot

        def take(table: TurnTable) -> TurnTable | None:
            after = self._advanced(table, slot)
            return None if after == table and slot.timers == table.timers else after

        await record.write(take, keep=_has_turn)
        return record.table.turn is not None

    def _advanced(self, table: TurnTable, slot: Slot) -> TurnTable:
        """Return the table without its turn, with the next one if it can start."""
        now = slot.time()
        return advanced(
            table, now, self.turns.rules, turn_id=self.turns.storage.ids(), runner=slot.guard.token or "",
            check=now + self.turns.lease,
        )  # fmt: skip

    # Ending

    async def _suspend(self, attempt: Attempt) -> bool:
        """Release the claim while the handler waits for people; ``False`` if it has an answer already."""
        record = attempt.record

        def waits(table: TurnTable) -> TurnTable | None:
            turn = attempt.own(table)
            if _goes_on(turn, record.slot.time()):
                return None
            return replaced(table, turn=replaced(turn, asking=True, check=earliest_deadline(turn.questions)))

        # First, so that the task that serves the answer finds it.
        self.suspended[record.address] = attempt
        # A call of somebody else may be under way, whose removal needs the claim.
        async with record.sending:
            suspended = await record.write(waits, keep=lambda table: False)
        if suspended:
            return True
        del self.suspended[record.address]

        def answered(table: TurnTable) -> TurnTable:
            turn = with_timeouts(attempt.own(table), record.slot.time())
            return replaced(table, turn=replaced(turn, answered=False))

        await record.write(answered)
        attempt.take_news(attempt.own(record.table))
        # It was perhaps an earlier question, whose answer the handler has found by itself.
        attempt.may_be_suspended()
        return False

    async def _end(self, attempt: Attempt) -> None:
        """Store the answer and take what waits, in one write; then send."""
        record, task = attempt.record, attempt.task
        await attempt.end_transcript()
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        turn = record.table.turn
        if attempt.lost or turn is None:
            await attempt.end_display()
            return
        stopped = attempt.stop_reason is not None
        if error is not None and not stopped:
            await attempt.end_display()
            await self._end_failed(record, turn, error, attempt.steps)
            return
        if stopped and error is not None and not isinstance(error, asyncio.CancelledError):
            logger.error("the handler of turn %s raised while it was stopped", turn.id, exc_info=error)
        try:
            calls, entries = await self._outcome(attempt, attempt.stop_reason)
            how = "stopped" if stopped else "answered"
            shown = None if attempt.stop_reason == "rollback" else attempt.steps
            await self._write_end(record, turn, calls, entries, how, shown=shown)
        except (Conflict, StorageError):
            raise
        except Exception as refused:  # noqa: BLE001 it is logged, and the turn fails
            # Its answer or its entries cannot be stored.
            await attempt.end_display()
            await self._end_failed(record, turn, refused, attempt.steps)
        else:
            await self.deliver(record)

    async def _outcome(self, attempt: Attempt, reason: StopReason | None) -> tuple[list[dict[str, Any]], list[Any]]:
        """Return the calls to send, and the entries of the history. ``reason``: why it was stopped."""
        turns = self.turns
        if reason == "rollback":
            await attempt.display.close()
            return attempt.unfinished_message(), []
        if reason is not None:
            self._mark_stopped(attempt, said=reason == "stop")
        calls: list[dict[str, Any]] = []
        for each in attempt.outputs:
            calls += await attempt.display.finish(each) if isinstance(each, Stream) else [each]
        shown = attempt.display.stream
        if shown is None or not shown.unsent.strip():
            # An earlier attempt has begun a text that this one has not.
            calls += attempt.unfinished_message()
        entries = list(attempt.history.appended or ())
        if not entries and turns.keeps_history:
            entries = [{"role": "user", "content": attempt.turn.text}]
            if reason is not None:
                entries += attempt.tools.entries()
            if attempt.text:
                entries.append({"role": "assistant", "content": attempt.text})
        return calls, entries

    def _mark_stopped(self, attempt: Attempt, *, said: bool) -> None:
        """Mark the text that was written until a stop. ``said``: say so if there is none."""
        unsent = [each for each in attempt.outputs if not isinstance(each, Stream) or each.unsent.strip()]
        streams = [each for each in unsent if isinstance(each, Stream)]
        if streams:
            mark = self.turns.stop_mark
            streams[-1].write(mark.lstrip() if streams[-1].text[-1].isspace() else mark)
        elif said and not unsent and attempt.turn.messages[-1].where:
            attempt.add_output({"method": "sendMessage", **attempt.turn.where, "text": self.turns.stop_note})

    async def _end_unrun(self, record: HeldRecord, turn: Running) -> None:
        """End a turn whose handler does not run: it was stopped, or its process has died too often."""
        if turn.stop is None:
            await self._end_failed(record, replaced(turn, attempt=turn.attempt - 1), None)
            return
        calls = []
        where = self.turns.where_of(record, turn)
        if turn.stop == "stop" and where:
            calls.append({"method": "sendMessage", **where, "text": self.turns.stop_note})
        shown = None if turn.stop == "rollback" else [*live_steps(record, turn), *call_steps(calls)]
        await self._write_end(record, turn, calls, [], "stopped", shown=shown)
        await self.deliver(record)

    async def _end_failed(
        self, record: HeldRecord, turn: Running, error: BaseException | None, shown: list[Step] | None = None
    ) -> None:
        """Keep a turn that has failed, with its messages, and say so in the chat."""
        if error is None:
            why = f"its process has ended {turn.attempt} times"
            logger.error("turn %s at %s has failed: %s", turn.id, record.address.text, why)
        else:
            why = _error_text(error)
            logger.error("the handler of turn %s at %s has failed", turn.id, record.address.text, exc_info=error)
        where = self.turns.where_of(record, turn)
        note = await self.turns.failure_calls(where, why)
        part = failed_part(turn.id)
        messages = [record.seal.value("p", name, record.parts[name]) for name in map(_part_of, turn.messages)]
        kept = {
            "id": turn.id, "messages": messages, "error": why, "attempts": turn.attempt, "started": turn.started,
            "ended": record.slot.time(), "parts": _own_parts(record, turn),
        }  # fmt: skip
        failed = {part: record.seal.seal("p", part, kept)}
        shown = [*(live_steps(record, turn) if shown is None else shown), *call_steps(note)]
        try:
            await self._write_end(record, turn, note, [], "failed", failed=failed, error=why, shown=shown)
        except (Conflict, StorageError):
            raise
        except Exception:
            logger.exception("the calls that tell of the failed turn %s cannot be stored", turn.id)
            await self._write_end(record, turn, [], [], "failed", failed=failed, error=why)
        await self.deliver(record)

    async def _write_end(
        self,
        record: HeldRecord,
        turn: Running,
        calls: list[dict[str, Any]],
        entries: list[Any],
        how: str,
        *,
        failed: Mapping[str, str | None] | None = None,
        error: str | None = None,
        shown: list[Step] | None = None,
    ) -> None:
        """End a turn, store its calls and entries, and take the next one or become idle, in one guarded write.

        ``shown``: what pages keep showing of it; ``None`` if nothing.
        """
        slot, seal, turns = record.slot, record.seal, self.turns
        if shown == []:
            # The first message of a page came while the turn ran.
            shown = [*live_steps(record, turn), *call_steps(calls)]
        # Each piece of a long text is stored and sent on its own.
        calls = fit(sent(calls), turns.formatting)
        kept_failures: tuple[str, ...] = ()
        dropped_failures: tuple[str, ...] = ()

        def after(table: TurnTable) -> TurnTable:
            nonlocal kept_failures, dropped_failures
            if table.turn is None or table.turn.id != turn.id or table.turn.runner != turn.runner:
                raise LeaseLost(record.address.text)
            ended = self._advanced(table, slot)
            ids, dropped_failures = _kept((*table.failed, turn.id) if failed else table.failed)
            kept_failures = ids
            return replaced(
                ended, next_call=table.next_call + len(calls), failed=ids,
                send_at=slot.time() if calls else ended.send_at,
                transcripts=table.transcripts + (table.transcribed and shown is not None),
            )  # fmt: skip

        def parts(before: TurnTable, table: TurnTable) -> dict[str, str | None]:
            assert before.turn is not None
            names = [_part_of(each) for each in before.turn.messages]
            # Those of a failed turn are there if it is tried again.
            names += [] if failed else _own_parts(record, turn)
            names += [question_part(turn.id, each.number) for each in before.turn.questions]
            names += [name for name in [text_part(turn.id)] if name in record.parts]
            names += [name for name in record.parts if name.startswith(live_prefix(turn.id))]
            for each in dropped_failures:
                names += [failed_part(each), *_parts_of_failed(record, each)]
            changed: dict[str, str | None] = dict.fromkeys(names)
            changed |= record.calls_after(before, calls)
            if before.turn.ids:
                known = seal.value("p", HANDLED, record.parts[HANDLED]) if HANDLED in record.parts else []
                changed[HANDLED] = seal.seal("p", HANDLED, [*known, *before.turn.ids][-MOST_HANDLED:])
            if before.transcribed and shown is not None:
                changed |= ended_parts(record, before, before.turn, shown, how)
            return {**changed, **(failed or {})}

        bodies = [seal.json(entry, record.storage.limits.item).encode() for entry in entries]
        budget = self._budget_at_end(record, turn)
        if budget is not None:
            running = record.table.turn
            await budget.settle(0 if running is None else running.cost)
        await record.write(
            after,
            parts,
            entries=bodies,
            keep=lambda table: bool(calls) or _has_work(table),
            tags=lambda tags: turns.tags_with(tags, failed=bool(kept_failures)),
        )
        if record.table.transcribed:
            turns.show(record.address)
        turns.ended(record.address, turn, slot.now, how, error)
        if budget is not None:
            await budget.close()

    def _budget_at_end(self, record: HeldRecord, turn: Running) -> TurnBudget | None:
        try:
            return self.budget_of(record, turn)
        except Exception:
            logger.exception("the payer of turn %s is not known, so its cost is not counted", turn.id)
            return None

    async def _leave(self, record: HeldRecord, attempt: Attempt | None) -> None:
        """Leave a turn to the next worker, because this one stops. Its attempt goes on there and is not counted."""
        has_ended = False
        if attempt is not None:
            is_lost, has_ended = attempt.lost, attempt.task_ended or attempt.stop_reason is not None
            await attempt.cancel()
            if is_lost:
                return
            has_ended = has_ended and attempt.task_ended

        def paused(table: TurnTable) -> TurnTable | None:
            turn = table.turn
            if turn is None or turn.asking or turn.runner != record.slot.guard.token:
                return None
            return replaced(table, turn=replaced(turn, paused=True, check=record.slot.time()))

        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                turn = record.table.turn
                if attempt is not None and has_ended and turn is not None and turn.id == attempt.turn_id:
                    await self._end(attempt)
                if record.slot.holding and await record.write(paused, keep=lambda table: False):
                    self.turns.wake()
        except (StepwellError, TimeoutError) as error:
            logger.warning("the turn at %s goes on after its lease: %s", record.address.text, error)


def _kept(failed: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the failed turns that are kept, and those that are dropped."""
    return failed[-MOST_FAILED:], failed[:-MOST_FAILED]


def _own_parts(record: HeldRecord, turn: Running) -> list[str]:
    """Return the names of the parts with the effects of a turn, and with what its handler has kept."""
    return [name for name in record.parts if name.startswith((tool_prefix(turn.id), kept_prefix(turn.id)))]


def _parts_of_failed(record: HeldRecord, turn_id: str) -> list[str]:
    part = failed_part(turn_id)
    names: list[str] = record.seal.value("p", part, record.parts[part])["parts"] if part in record.parts else []
    return names


def _part_of(message: Any) -> str:
    return message_part(message.seq)


def _has_turn(table: TurnTable) -> bool:
    return table.turn is not None


def _has_work(table: TurnTable) -> bool:
    """Return whether the claim is needed after calls were sent."""
    return table.turn is not None and not table.turn.asking


def _error_text(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except Exception:  # noqa: BLE001 an error whose text cannot be read
        text = name
    # The name of a file may contain what no text has.
    return masked_text(text.encode("utf-8", "replace").decode())[:LONGEST_ERROR]


def _goes_on(turn: Running, now: float) -> bool:
    """Return whether a turn that waits for people can go on: somebody has answered, or no longer can."""
    if turn.stop is not None or turn.answered:
        return True
    deadline = earliest_deadline(turn.questions)
    return deadline is not None and deadline <= now
