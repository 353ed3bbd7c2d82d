"""Functions around the handlers of a router."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell.errors import InvalidOption, UsageError
from stepwell.fsm import FSM, Context, Router, command, text
from stepwell.testing import Chat

Handle = Callable[[], Awaitable[None]]


def made() -> tuple[Router, list[str]]:
    router, seen = Router(FSM("my_bot", storage="memory://", flows=[])), list[str]()

    @router.on(text())
    async def answer(ctx: Context) -> None:
        seen.append("handler")
        ctx.answer(f"You said {ctx.text}.")

    return router, seen


def named(seen: list[str], name: str) -> Callable[[Context, Handle], Awaitable[None]]:
    async def around(ctx: Context, handle: Handle) -> None:
        seen.append(f"{name} before")
        await handle()
        seen.append(f"{name} after")

    return around


async def test_the_first_middleware_is_the_outermost_and_is_called_before_the_filters() -> None:
    router, seen = made()
    for name in ("outer", "inner"):
        router.middleware(named(seen, name))

    def filtered(ctx: Context) -> bool:
        seen.append("filter")
        return False

    router.on(filtered)(lambda ctx: None)
    assert await Chat(router).send("hi") == ["You said hi."]
    assert seen == ["outer before", "inner before", "handler", "inner after", "outer after"]
    seen.clear()
    assert await Chat(router).send("/other") == []
    assert seen == ["outer before", "inner before", "filter", "inner after", "outer after"]


async def test_middleware_that_does_not_go_on_keeps_the_update_from_all_handlers() -> None:
    router, seen = made()

    @router.middleware
    async def refuse(ctx: Context, handle: Handle) -> None:
        if ctx.text == "open":
            await handle()
        else:
            ctx.answer("Closed.")

    chat = Chat(router)
    assert await chat.send("hi") == ["Closed."]
    assert await chat.send("open") == ["You said open."]
    assert seen == ["handler"]


async def test_middleware_of_an_included_router_is_around_its_own_handlers_only() -> None:
    router, seen = made()
    other = Router()
    other.middleware(named(seen, "other"))
    innermost = Router()
    innermost.middleware(named(seen, "innermost"))

    @innermost.on(command("inner"))
    def inner(ctx: Context) -> None:
        seen.append("inner")

    @other.on(command("other"))
    async def handler(ctx: Context) -> None:
        seen.append("other handler")

    other.include(innermost)
    router.include(other)
    router.scope(command("scoped")).middleware(named(seen, "main"))
    chat = Chat(router)
    await chat.send("hi")
    assert seen == ["main before", "handler", "main after"]
    seen.clear()
    await chat.send("/inner")
    around = ["main before", "other before", "innermost before"]
    assert seen == [*around, "inner", *(name.replace("before", "after") for name in reversed(around))]


async def test_changes_of_middleware_are_rolled_back_with_those_of_the_handler_and_made_again() -> None:
    router, _ = made()
    attempts: list[int] = []

    @router.middleware
    async def count(ctx: Context, handle: Handle) -> None:
        ctx.profile["seen"] = ctx.profile.get("seen", 0) + 1
        await handle()
        ctx.answer(f"Seen {ctx.profile['seen']}.")

    @router.on(command("fail"), attempts=2)
    async def fail(ctx: Context) -> None:
        attempts.append(ctx.profile["seen"])
        if len(attempts) == 1:
            raise ValueError

    assert await Chat(router).send("/fail") == ["Seen 1."]
    assert attempts == [1, 1]


async def test_an_error_handler_gets_the_errors_of_middleware_too() -> None:
    router, _ = made()

    @router.middleware
    async def broken(ctx: Context, handle: Handle) -> None:
        await handle()
        raise ValueError("broken")

    @router.on_error
    async def on_error(ctx: Context, error: Exception) -> None:
        ctx.answer(f"Sorry: {error}")

    assert await Chat(router).send("hi") == ["Sorry: broken"]


async def test_wrong_middleware_is_refused_with_what_to_write() -> None:
    router, _ = made()
    wrong: Any = lambda ctx, handle: None  # noqa: E731
    with pytest.raises(InvalidOption, match="middleware is an async def, which awaits handle"):
        router.middleware(wrong)
    with pytest.raises(InvalidOption, match=r"@router.middleware decorates a function of the context and handle"):
        router.middleware(None)  # type: ignore[type-var]

    async def short(ctx: Context) -> None: ...

    with pytest.raises(InvalidOption, match=r"has the wrong arguments; write short\(ctx, handle\)"):
        router.middleware(short)  # type: ignore[type-var]

    @router.middleware
    async def twice(ctx: Context, handle: Handle) -> None:
        await handle()
        await handle()

    with pytest.raises(UsageError, match=r"called handle\(\) twice"):
        await Chat(router).send("hi")
