"""Menus of buttons under a message: items on pages, and the days of a month.

The data of a button has all that its press needs, so that a menu works after a restart, and however old it is.
"""

from __future__ import annotations

import calendar
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import date
from typing import Any, TypeAlias, TypeVar

from stepwell import _portal
from stepwell._secrets import quoted
from stepwell.errors import InvalidOption
from stepwell.fsm.conversation.context import Context
from stepwell.fsm.filters import callback
from stepwell.fsm.forms.keyboards import button, keyboard
from stepwell.fsm.router import Router
from stepwell.options import check, check_function, check_whole

__all__ = ["Calendar", "Items", "Menu"]

#: The items of a menu: pairs of an id and a label, or a function of the context that returns them.
Items: TypeAlias = (
    Sequence[tuple[str, str]]
    | Callable[[Context[Any]], Iterable[tuple[str, str]] | Awaitable[Iterable[tuple[str, str]]]]
)
OnChoice = TypeVar("OnChoice", bound=Callable[..., Any])
#: The months that a date can have.
_FIRST, _LAST = 12, 9999 * 12 + 11


class _PressableMenu(ABC):
    """What menus have in common: their name is before a colon in the data of each button."""

    #: What a press of a button says whose choice is no longer there.
    outdated: str = "This is no longer available."

    def __init__(self, name: str, back: str | None) -> None:
        check(
            isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,16}", name),
            "the name of a menu has 1 to 16 letters, digits, _ or -, such as 'goods', not {}",
            name,
        )
        self.name: str = name
        #: Its handlers: ``router.include(menu.router)``.
        self.router: Router = Router()
        self._back = back
        self._on_choice: Callable[..., Any] | None = None
        self._on_back: Callable[..., Any] | None = None
        self.router.on(callback(re.compile(rf"\A{name}([:@<=])(.*)\Z", re.DOTALL)))(self._pressed)

    def on_choice(self, function: OnChoice) -> OnChoice:
        """Decorate ``async def chosen(ctx, choice)``, which is called when something is chosen.

        ``ctx.edit`` replaces the menu.
        """
        check_function(function, "on_choice decorates a function of the context and the choice, got {}")
        self._on_choice = function
        return function

    def on_back(self, function: OnChoice) -> OnChoice:
        """Decorate ``async def back(ctx)``, which is called when the button ``back`` is pressed."""
        check_function(function, "on_back decorates a function of the context, got {}")
        self._on_back = function
        return function

    async def _pressed(self, ctx: Context[Any]) -> None:
        assert ctx.match is not None
        kind, value = ctx.match[1], ctx.match[2]
        if kind == "<" and self._on_back is not None:
            await _portal.call_function(self._on_back, ctx)
        elif kind == "@":
            await self._turn(ctx, value)
        elif kind == ":":
            choice = await self._choice(ctx, value)
            if choice is None:
                ctx.answer_callback(self.outdated)
                await self._turn(ctx, "")
            elif self._on_choice is not None:
                await _portal.call_function(self._on_choice, ctx, choice)

    @abstractmethod
    async def _choice(self, ctx: Context[Any], value: str) -> Any:
        """Return what a button chooses, or ``None`` if it is no longer there."""

    @abstractmethod
    async def _turn(self, ctx: Context[Any], to: str) -> None:
        """Show another page."""

    def _end(self) -> list[list[dict[str, Any]]]:
        return [] if self._back is None else [[button(self._back, data=f"{self.name}<")]]

    def _label(self, text: str) -> dict[str, Any]:
        """Return a button that does nothing: Telegram has no texts between buttons."""
        return button(text, data=f"{self.name}=")

    def _show_page(self, ctx: Context[Any], markup: dict[str, Any]) -> None:
        update = ctx.update
        if update.inline_message_id is not None:
            message: dict[str, Any] = {"inline_message_id": update.inline_message_id}
        elif update.chat is not None and update.message_id is not None:
            message = {"chat_id": update.chat.id, "message_id": update.message_id}
        else:
            return
        if update.business_connection_id is not None:
            message["business_connection_id"] = update.business_connection_id
        ctx.call("editMessageReplyMarkup", **message, reply_markup=markup)


class Menu(_PressableMenu):
    """Items as buttons, on pages.

    ``items`` are pairs of an id and a label; a function is called for each page, so that it can read them from a
    database. The name and the id together have at most 63 bytes. ``back``: the label of a button below them.

    Example::

        goods = Menu("goods", [("tea", "Tea"), ("coffee", "Coffee")], back="Cancel")
        router.include(goods.router)

        @router.on(command("order"))
        async def order(ctx):
            await goods.show(ctx, "What would you like?")

        @goods.on_choice
        async def chosen(ctx, item):
            ctx.edit(f"One {item}, coming up.")
    """

    def __init__(
        self, name: str, items: Items, *, per_page: int = 8, columns: int = 1, back: str | None = None
    ) -> None:
        super().__init__(name, back)
        check_whole(per_page, "per_page must be a number of 1 to 80, got {}", least=1, most=80)
        check_whole(columns, "columns must be a number of 1 to 8, got {}", least=1, most=8)
        self._items, self._per_page, self._columns = items, per_page, columns

    async def show(self, ctx: Context[Any], text: str, *, page: int = 1, **params: Any) -> None:
        """Send a text with the menu below it. In a press of a button, it replaces that message."""
        markup = await self.markup(ctx, page=page)
        (ctx.answer if ctx.update.callback_id is None else ctx.edit)(text, reply_markup=markup, **params)

    async def markup(self, ctx: Context[Any], *, page: int = 1) -> dict[str, Any]:
        """Return the buttons of a page, for ``reply_markup=``. A page that there is not is the last one."""
        items = await self._listed(ctx)
        pages = max(-(-len(items) // self._per_page), 1)
        page = min(max(page, 1), pages)
        shown = [
            button(label, data=f"{self.name}:{each}")
            for each, label in items[(page - 1) * self._per_page : page * self._per_page]
        ]
        rows = [shown[at : at + self._columns] for at in range(0, len(shown), self._columns)]
        if pages > 1:
            before, after = (page - 2) % pages + 1, page % pages + 1
            back, forth = (button(label, data=f"{self.name}@{to}") for label, to in (("‹", before), ("›", after)))
            rows.append([back, self._label(f"{page} / {pages}"), forth])
        rows += self._end()
        return keyboard(rows) if rows else {"inline_keyboard": []}

    async def _listed(self, ctx: Context[Any]) -> list[tuple[str, str]]:
        found = await _portal.call_function(self._items, ctx) if callable(self._items) else self._items
        return [(str(each), label) for each, label in found]

    async def _choice(self, ctx: Context[Any], value: str) -> str | None:
        return value if any(each == value for each, _ in await self._listed(ctx)) else None

    async def _turn(self, ctx: Context[Any], to: str) -> None:
        self._show_page(ctx, await self.markup(ctx, page=int(to) if re.fullmatch(r"[0-9]{1,6}", to) else 1))


class Calendar(_PressableMenu):
    """The days of a month as buttons. The choice is a ``datetime.date``.

    ``first`` and ``last`` are functions without arguments that return the days between which one can be chosen.
    ``weekdays`` and ``months`` are the names, from Monday and January on.

    Example::

        from datetime import date

        days = Calendar("day", first=date.today)
        router.include(days.router)

        @router.on(command("book"))
        async def book(ctx):
            days.show(ctx, "Which day?")

        @days.on_choice
        async def chosen(ctx, day):
            ctx.edit(f"Booked for {day:%d.%m.%Y}.")
    """

    def __init__(
        self,
        name: str,
        *,
        first: Callable[[], date] | None = None,
        last: Callable[[], date] | None = None,
        back: str | None = None,
        weekdays: Sequence[str] = tuple(calendar.day_abbr),
        months: Sequence[str] = tuple(calendar.month_name)[1:],
    ) -> None:
        super().__init__(name, back)
        check_function(
            first, "Calendar(first=...) takes a function that returns a date, such as date.today, got {}", optional=True
        )
        check_function(last, "Calendar(last=...) takes a function that returns a date, got {}", optional=True)
        check(len(weekdays) == 7 and len(months) == 12, "weekdays= has 7 names and months= has 12, got {}", weekdays)
        self._first, self._last = first or (lambda: date.min), last or (lambda: date.max)
        self._weekdays, self._months = weekdays, months

    def show(self, ctx: Context[Any], text: str, *, month: date | None = None, **params: Any) -> None:
        """Send a text with a month below it, by default the present one. In a press it replaces that message."""
        markup = self.markup(month)
        (ctx.answer if ctx.update.callback_id is None else ctx.edit)(text, reply_markup=markup, **params)

    def markup(self, month: date | None = None) -> dict[str, Any]:
        """Return the buttons of the month that has this day, for ``reply_markup=``."""
        first, last = self._first(), self._last()
        if first > last:
            raise InvalidOption(f"the calendar {quoted(self.name)} has no days: first is {first} and last is {last}")
        shown = min(max(month or date.today(), first), last)
        year, number = shown.year, shown.month
        rows = [[self._label(f"{self._months[number - 1]} {year}")], [self._label(each) for each in self._weekdays]]
        for week in calendar.Calendar().monthdayscalendar(year, number):
            days = [None if not day else date(year, number, day) for day in week]
            rows.append([self._day(day) if day and first <= day <= last else self._label("·") for day in days])
        months = year * 12 + number - 1
        least, most = (each.year * 12 + each.month - 1 for each in (first, last))
        turns = (("‹", months - 1), ("›", months + 1))
        rows.append(
            [
                button(label, data=f"{self.name}@{to}") if least <= to <= most else self._label("·")
                for label, to in turns
            ]
        )
        return keyboard([*rows, *self._end()])

    def _day(self, day: date) -> dict[str, Any]:
        return button(str(day.day), data=f"{self.name}:{day.isoformat()}")

    async def _choice(self, ctx: Context[Any], value: str) -> date | None:
        try:
            day = date.fromisoformat(value)
        except ValueError:
            return None
        return day if self._first() <= day <= self._last() else None

    async def _turn(self, ctx: Context[Any], to: str) -> None:
        months = int(to) if re.fullmatch(r"[0-9]{1,6}", to) else -1
        month = date(months // 12, months % 12 + 1, 1) if _FIRST <= months <= _LAST else None
        self._show_page(ctx, self.markup(month))
