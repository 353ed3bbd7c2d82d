"""Menus and calendars of buttons."""

from __future__ import annotations

from datetime import date

import pytest

from stepwell.errors import InvalidOption
from stepwell.fsm import FSM, Calendar, Context, Menu, Router, command
from stepwell.testing import Chat


def bot() -> Router:
    return Router(FSM("my_bot", storage="memory://", flows=[]))


def goods(router: Router, items: list[tuple[str, str]], **options: int | str) -> Menu:
    menu = Menu("goods", lambda ctx: items, **options)  # type: ignore[arg-type]
    router.include(menu.router)

    @router.on(command("order"))
    async def order(ctx: Context) -> None:
        await menu.show(ctx, "What?")

    @menu.on_choice
    async def chosen(ctx: Context, item: str) -> None:
        ctx.edit(f"One {item}.")

    return menu


async def test_a_menu_shows_its_items_on_pages_and_tells_what_was_chosen() -> None:
    router = bot()
    goods(router, [(str(number), f"Item {number}") for number in range(5)], per_page=2)
    chat = Chat(router)
    assert await chat.send("/order") == ["What?"]
    assert chat.buttons == ["Item 0", "Item 1", "‹", "1 / 3", "›"]
    await chat.press("›")
    assert chat.buttons == ["Item 2", "Item 3", "‹", "2 / 3", "›"]
    await chat.press("2 / 3")
    await chat.press("›")
    assert chat.buttons == ["Item 4", "‹", "3 / 3", "›"]
    await chat.press("›")
    await chat.press("‹")
    await chat.press("Item 4")
    assert chat.buttons == []
    assert chat.messages[-1]["text"] == "One 4."


async def test_a_button_whose_item_is_gone_says_so_and_the_menu_is_shown_anew() -> None:
    router, items = bot(), [("tea", "Tea"), ("coffee", "Coffee")]
    goods(router, items)
    chat = Chat(router)
    await chat.send("/order")
    del items[0]
    await chat.press("Tea")
    assert chat.buttons == ["Coffee"]
    assert {"method": "answerCallbackQuery", "text": "This is no longer available."}.items() <= chat.calls[-2].items()


async def test_the_back_button_calls_its_function() -> None:
    router = bot()
    menu = goods(router, [("tea", "Tea")], back="Back", columns=2)

    @menu.on_back
    def back(ctx: Context) -> None:
        ctx.edit("Start again with /order.")

    chat = Chat(router)
    await chat.send("/order")
    assert chat.buttons == ["Tea", "Back"]
    await chat.press("Back")
    assert chat.messages[-1]["text"] == "Start again with /order."


async def test_a_menu_replaces_the_message_of_a_press() -> None:
    router, inner = bot(), Menu("inner", [("x", "X")])
    router.include(inner.router)
    outer = goods(router, [("tea", "Tea")])

    @outer.on_choice
    async def chosen(ctx: Context, item: str) -> None:
        await inner.show(ctx, "Which size?")

    chat = Chat(router)
    await chat.send("/order")
    await chat.press("Tea")
    assert (chat.messages[-1]["text"], chat.buttons) == ("Which size?", ["X"])


def booking(router: Router) -> Calendar:
    days = Calendar("day", first=lambda: date(2026, 1, 15), last=lambda: date(2026, 3, 2), back="Cancel")
    router.include(days.router)

    @router.on(command("book"))
    async def book(ctx: Context) -> None:
        days.show(ctx, "Which day?", month=date(2026, 2, 1))

    @days.on_choice
    async def chosen(ctx: Context, day: date) -> None:
        ctx.edit(f"Booked for {day:%d.%m.%Y}.")

    return days


async def test_a_calendar_shows_months_between_its_days_and_tells_which_day_was_chosen() -> None:
    router = bot()
    booking(router)
    chat = Chat(router)
    await chat.send("/book")
    assert chat.buttons[:8] == ["February 2026", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    assert [each for each in chat.buttons if each.isdigit()] == [str(day) for day in range(1, 29)]
    await chat.press("‹")
    assert chat.buttons[0] == "January 2026"
    assert [each for each in chat.buttons if each.isdigit()] == [str(day) for day in range(15, 32)]
    assert "‹" not in chat.buttons
    await chat.press("31")
    assert chat.messages[-1]["text"] == "Booked for 31.01.2026."


@pytest.mark.parametrize(
    "data", ["day:2026-01-14", "day:2026-03-03", "day:x", "day@0", "day@999999", "day@x", "day=", "goods@x"]
)
async def test_data_that_no_button_has_chooses_nothing(data: str) -> None:
    router = bot()
    booking(router)
    goods(router, [("tea", "Tea")])
    calls = await router.handle(
        {
            "update_id": 1,
            "callback_query": {
                "id": "1",
                "from": {"id": 42, "is_bot": False, "first_name": "Ann"},
                "data": data,
                "message": {"message_id": 7, "date": 1, "chat": {"id": 42, "type": "private"}},
            },
        }
    )
    assert {call["method"] for call in calls} <= {"answerCallbackQuery", "editMessageReplyMarkup"}


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InvalidOption, match="the name of a menu has 1 to 16 letters"):
        Menu("my goods", [])
    with pytest.raises(InvalidOption, match="per_page"):
        Menu("goods", [], per_page=0)
    with pytest.raises(InvalidOption, match="weekdays= has 7 names"):
        Calendar("day", weekdays=["Mo"])
    with pytest.raises(InvalidOption, match="has no days"):
        Calendar("day", first=lambda: date(2026, 2, 1), last=lambda: date(2026, 1, 1)).markup()
