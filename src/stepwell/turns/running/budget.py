"""Budgets: what turns may cost in a period. The cost of a turn is reserved before it, and settled with its end."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

from stepwell import Storage
from stepwell.engine import (
    BUDGETS,
    Change,
    Get,
    OpenedHead,
    Place,
    Seal,
    Stored,
    Struct,
    decode_key,
    decoder,
    log_tag,
    quoted,
    replaced,
    to_json,
)
from stepwell.errors import InvalidOption
from stepwell.options import check_choice, check_number
from stepwell.turns.message import Message
from stepwell.turns.record import Running
from stepwell.turns.running.held import HeldRecord

__all__ = ["Budget", "BudgetStatus", "Price", "TurnBudget", "Usage", "budgets_in", "person"]

logger: logging.Logger = logging.getLogger(__name__)

#: Amounts are stored as billionths of a dollar, for these seconds after the last write.
NANO: Final = 10**9
KEPT: Final = 400 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of a request to a model. Those of the cache are part of the input.

    Example::

        @turns.handler
        async def answer(turn):
            reply = await ask_model(turn.text)
            await turn.spent(Usage(model="gpt-5-mini", input=reply.input_tokens, output=reply.output_tokens))
            turn.answer(reply.text)
    """

    model: str
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


class Price(NamedTuple):
    """The dollars that a million tokens cost. Those of the cache cost as much as other input unless you say so.

    Example::

        prices = {"gpt-5-mini": Price(0.25, 2.00, cache_read=0.025)}
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def of(self, usage: Usage) -> float:
        """Return what a request costs, in dollars."""
        cached = ((usage.cache_read, self.cache_read), (usage.cache_write, self.cache_write))
        cost = usage.input * self.input + usage.output * self.output
        cost += sum(tokens * (price - self.input) for tokens, price in cached if price is not None)
        return cost / 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """What is spent of a budget in its period, in dollars.

    Example::

        async for each in turns.budgets():
            print(f"{each.payer}: {each.spent:.2f} of {each.limit:.2f} until {each.ends:%H:%M}")
    """

    #: Who pays, as ``by`` gives it.
    payer: Any
    spent: float
    #: For turns that run.
    reserved: float
    limit: float
    ends: datetime


def person(message: Message) -> int | None:
    """Return who has sent a message, or else its chat.

    Example::

        budget = Budget(usd=2, by=lambda message: None if person(message) in ADMINS else person(message))
    """
    peer = message.user or message.chat
    return None if peer is None else peer.id


class Budget:
    """What turns may cost in a period: ``Turns(budget=Budget(usd=2, per="day"))``.

    ``by``: a function of the first message of a turn that returns who pays, a number or a text; ``None`` has no limit.
    ``prices``: a table by the names of models, or a function of a ``Usage`` that returns dollars. ``reserve``: how many
    dollars are reserved before a turn, by default a tenth. ``tz``: the time zone in which days and months begin.
    ``refusal``: what a person is told when nothing is left: a text, or a function of a ``BudgetStatus``.

    Example::

        budget = Budget(usd=2, per="day", by=person, prices={"gpt-5-mini": Price(0.25, 2.00)})
    """

    def __init__(
        self,
        *,
        usd: float,
        per: Literal["hour", "day", "month"] = "day",
        by: Callable[[Message], int | str | None] = person,
        prices: Mapping[str, Price] | Callable[[Usage], float] | None = None,
        reserve: float | None = None,
        tz: str = "UTC",
        refusal: str | Callable[[BudgetStatus], str] = "Your budget is used up. Please try again after {ends}.",
    ) -> None:
        check_choice(per, ("hour", "day", "month"), "Budget(per=...) takes 'hour', 'day' or 'month', not {}")
        for name, dollars in (("usd", usd), ("reserve", usd if reserve is None else reserve)):
            check_number(dollars, f"Budget({name}=...) takes dollars above 0, got {{}}", above=0, finite=True)
        try:
            self.zone: ZoneInfo = ZoneInfo(tz)
        except (KeyError, ValueError, OSError, TypeError):
            raise InvalidOption(f"tz={quoted(tz)}: give the name of a time zone, such as 'Europe/Berlin'") from None
        self.limit: int = round(usd * NANO)
        self.reserve: int = self.limit // 10 if reserve is None else round(reserve * NANO)
        self.per: str = per
        self.payer_of: Callable[[Message], Any] = by
        self._prices = prices
        self._refusal = refusal

    def cost_of(self, cost: float | Usage) -> int:
        """Return a cost in billionths of a dollar. Raises ``InvalidOption``."""
        if isinstance(cost, Usage):
            cost = self._priced(cost)
        check_number(cost, "turn.spent() takes dollars of at least 0 or a Usage, got {}", least=0, finite=True)
        return round(cost * NANO)

    def _priced(self, usage: Usage) -> float:
        prices = self._prices
        if not prices:
            raise InvalidOption("the usage of a model needs prices: Budget(usd=..., prices={'model': Price(...)})")
        if not isinstance(prices, Mapping):
            return prices(usage)
        # Services add the date of a model to its name.
        dated = "(-[0-9][0-9-]{5,})?"
        known = [price for name, price in prices.items() if re.fullmatch(re.escape(name) + dated, usage.model)]
        if not known:
            logger.warning("there is no price of the model %s, so it costs as the dearest one", quoted(usage.model))
        return max(price.of(usage) for price in known or prices.values())

    def period(self, now: float) -> tuple[float, float]:
        """Return when the period of a time begins and ends."""
        start = datetime.fromtimestamp(now, self.zone).replace(minute=0, second=0, microsecond=0)
        if self.per == "hour":
            return start.timestamp(), start.timestamp() + 3600
        start = start.replace(hour=0, fold=0)
        if self.per == "day":
            return start.timestamp(), (start + timedelta(days=1)).timestamp()
        start = start.replace(day=1)
        return start.timestamp(), (start + timedelta(days=32)).replace(day=1).timestamp()

    def refusal(self, status: BudgetStatus) -> str:
        """Return what a person is told when nothing is left."""
        if callable(self._refusal):
            return self._refusal(status)
        return self._refusal.format(ends=f"{status.ends:%d %B, %H:%M} ({self.zone.key})")


class TurnCost(Struct, frozen=True, array_like=True):
    """What a turn has reserved, or has cost if it is settled."""

    amount: int
    settled: bool
    at: float


class BudgetTable(Struct, frozen=True):
    """The extension of the record of a budget: what ended turns of a period have cost, and the others."""

    start: float
    ends: float
    limit: int
    spent: int
    turns: Mapping[str, TurnCost]

    @property
    def reserved(self) -> int:
        """What turns have reserved that are not added to ``spent``."""
        return sum(each.amount for each in self.turns.values())

    def rolled(self, budget: Budget, now: float) -> BudgetTable:
        """Return the table of the present period. Turns that run count in the period in which they end."""
        start, ends = budget.period(now)
        if start <= self.start:
            return replaced(self, limit=budget.limit)
        # What began before the last period was left by a turn whose record was deleted.
        running = {mark: each for mark, each in self.turns.items() if not each.settled and each.at >= self.start}
        return BudgetTable(start, ends, budget.limit, 0, running)


EMPTY: Final = BudgetTable(0.0, 0.0, 0, 0, {})
_decode_table = decoder(BudgetTable)


class TurnBudget:
    """The share of one turn in the budget of its payer. A write that is made again, as after a crash, counts once."""

    def __init__(self, budget: Budget, name: str, record: HeldRecord, turn: Running, payer: int | str) -> None:
        self._budget, self._record = budget, record
        self._name, self._payer = name, payer
        self._address = record.storage.address(BUDGETS, (record.bot, (name, payer)))
        #: A failed turn that is tried again costs once more.
        self._mark = f"{turn.id}:{turn.started}"

    async def reserve(self, cost: int) -> BudgetStatus | None:
        """Reserve something for the turn, which has cost so much already. Return the status if nothing is left."""
        refused = False

        def reserved(table: BudgetTable, now: float) -> BudgetTable:
            nonlocal refused
            mine = table.turns.get(self._mark)
            if mine is None:
                left = table.limit - table.spent - table.reserved
                refused, amount = left <= 0, max(cost, min(self._budget.reserve, left))
            else:
                amount = max(cost, mine.amount)
                refused = amount > mine.amount and table.spent + amount >= table.limit
            if amount <= 0 or (mine is not None and (mine.amount, mine.settled) == (amount, False)):
                return table
            return replaced(table, turns={**table.turns, self._mark: TurnCost(amount, False, now)})

        table = await self._edit(reserved)
        return status_of(self._payer, table, self._budget.zone) if refused else None

    async def settle(self, cost: int) -> None:
        """Count what the turn has cost instead of what is reserved, before its end is written."""

        def settled(table: BudgetTable, now: float) -> BudgetTable:
            if self._mark not in table.turns and not cost:
                return table
            return replaced(table, turns={**table.turns, self._mark: TurnCost(cost, True, now)})

        await self._edit(settled)

    async def close(self) -> None:
        """Add the cost to that of ended turns, behind its end."""

        def closed(table: BudgetTable, now: float) -> BudgetTable:
            if self._mark not in table.turns:
                return table
            turns = {mark: each for mark, each in table.turns.items() if mark != self._mark}
            return replaced(table, spent=table.spent + table.turns[self._mark].amount, turns=turns)

        await self._edit(closed)

    async def add(self, cost: int) -> None:
        """Add a cost that belongs to no turn any more."""
        await self._edit(lambda table, now: replaced(table, spent=table.spent + cost))

    async def _edit(self, change: Callable[[BudgetTable, float], BudgetTable]) -> BudgetTable:
        record, storage = self._record, self._record.storage
        seal, table = storage.seal(self._address), EMPTY
        people = ("user", "chat") if isinstance(self._payer, int) else ()
        tags = tuple(log_tag(record.bot, f"{each}:{self._payer}") for each in people)

        def decide(stored: Stored | None) -> Change | None:
            nonlocal table
            before, now = table_of(seal, stored), record.slot.time()
            table = change(before.rolled(self._budget, now), now)
            if table == before:
                return None
            head = seal.head(OpenedHead(Place(self._name, None), {}, to_json(table).decode()))
            return storage.change(self._address, head=head, tags=tags, expiry=KEPT)

        await record.persist(lambda: storage.edit(self._address, decide))
        return table


def table_of(seal: Seal, stored: Stored | None) -> BudgetTable:
    """Return the table of a record."""
    if stored is None:
        return EMPTY
    table: BudgetTable = _decode_table(seal.open_head(stored.head).extension)
    return table


def status_of(payer: Any, table: BudgetTable, zone: tzinfo) -> BudgetStatus:
    """Return what is spent."""
    ending = sum(each.amount for each in table.turns.values() if each.settled)
    return BudgetStatus(
        payer=payer, spent=(table.spent + ending) / NANO, reserved=(table.reserved - ending) / NANO,
        limit=table.limit / NANO, ends=datetime.fromtimestamp(table.ends, zone),
    )  # fmt: skip


async def budgets_in(storage: Storage, now: float, bot: str | None = None) -> AsyncIterator[BudgetStatus]:
    """Yield the budgets of a bot or of all in whose present period something was spent."""
    async for entry in storage.scan(BUDGETS):
        name, (_, payer) = decode_key(entry.address.key)
        if bot in (None, name):
            stored: Stored | None = await storage.perform(Get(entry.address))
            table = table_of(storage.seal(entry.address), stored)
            if table.ends > now:
                yield status_of(payer, table, UTC)
