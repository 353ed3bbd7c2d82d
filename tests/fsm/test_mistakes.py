"""Mistakes of bot authors: each error says what was probably meant."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import aiogram.methods as aiogram_methods
import pytest

from stepwell import MemoryStorage
from stepwell.errors import AlreadyHeld, InvalidFlow, InvalidOption, TransitionError
from stepwell.fsm import FSM, Context, Flow, Router, fsm_flow, kind, state
from stepwell.fsm.conversation.parameters import PARAMETERS
from stepwell.testing import Chat, Clock
from tests.fsm.conftest import message


class Order(Flow, name="order"):
    size = state(to=["paid"])
    paid = state(to=[])
    default_state = size


class Survey(Flow, name="survey"):
    mood = state()
    default_state = mood


async def remind(ctx: Context) -> None:
    ctx.answer("Are you still there?")


async def note(ctx: Context) -> None:
    ctx.profile["asleep"] = True


class Reminding(Flow, name="reminding"):
    asked = state(timeout=600, on_timeout=remind)
    default_state = asked


class Noting(Flow, name="noting"):
    asked = state(timeout=600, on_timeout=note)
    default_state = asked


def router_with(handler: Callable[[Context], Any], **options: Any) -> Router:
    router = Router(FSM("bot", storage=MemoryStorage(), flows=[Order, Survey], **options))
    router.on()(handler)
    return router


async def error_of(handler: Callable[[Context], Any], kind: type[Exception] = InvalidOption) -> str:
    with pytest.raises(kind) as caught:
        await router_with(handler).handle(message())
    return str(caught.value)


# Calls of the Bot API


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("reply_makrup", "reply_markup"),
        ("replymarkup", "reply_markup"),
        ("keyboard", "reply_markup"),
        ("parsemode", "parse_mode"),
        ("disable_notifications", "disable_notification"),
        ("reply_to", "reply_parameters"),
    ],
)
async def test_a_misspelled_parameter_is_refused_with_the_likely_one(given: str, meant: str) -> None:
    said = await error_of(lambda ctx: ctx.answer("Hello", **{given: "x"}))
    assert said == f"sendMessage has no parameter {given!r}; did you mean {meant!r}?"


async def test_unknown_methods_and_new_parameters_are_passed_on() -> None:
    def handler(ctx: Context) -> None:
        ctx.answer("Hello", brand_new_option=1)
        ctx.call("sendHologram", reply_makrup={})
        for method, names in PARAMETERS.items():
            ctx.call(method, **dict.fromkeys(names, 1))

    calls = await router_with(handler).handle(message())
    assert calls[0]["brand_new_option"] == 1
    assert len(calls) == 2 + len(PARAMETERS)


@pytest.mark.parametrize("method", PARAMETERS)
def test_all_parameters_of_a_method_are_known(method: str) -> None:
    fields = getattr(aiogram_methods, method[0].upper() + method[1:]).model_fields
    assert {field.alias or name for name, field in fields.items()} <= PARAMETERS[method]


async def test_an_answer_that_is_no_text_is_refused() -> None:
    assert "got None instead of a text" in await error_of(lambda ctx: ctx.answer(None))  # type: ignore[arg-type]
    assert await error_of(lambda ctx: ctx.answer(5)) == "answer() takes a text, got int; write answer(str(...))"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "method"),
    [('await ctx.answer("Hello")', "ctx.answer"), ("await ctx.start_flow(Order)", "ctx.start_flow")],
)
async def test_awaiting_a_method_that_is_not_awaited_is_explained(
    line: str, method: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "awaiting_bot.py").write_text(
        f"from tests.fsm.test_mistakes import Order\n\nasync def handler(ctx):\n    {line}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "awaiting_bot", raising=False)
    from awaiting_bot import handler  # type: ignore[import-not-found]

    with pytest.raises(TypeError) as caught:
        await router_with(handler).handle(message())
    assert caught.value.__notes__ == [
        f"{method}() is not awaited; remove await. Of the methods of a context, only save() is awaited."
    ]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("get_data", "use ctx.data, a dict"),
        ("get_state", "use ctx.state"),
        ("clear", "use ctx.clear_flow()"),
        ("set_date", "did you mean 'set_data'?"),
        ("transitionn", "did you mean 'transition'?"),
        ("from_user", "use ctx.update.user"),
        ("reply", "use ctx.answer(text)"),
    ],
)
async def test_a_name_that_a_context_does_not_have_is_refused_with_the_one_to_use(given: str, meant: str) -> None:
    assert await error_of(lambda ctx: getattr(ctx, given), AttributeError) == f"a context has no {given!r}; {meant}"
    assert await error_of(lambda ctx: ctx.zebra, AttributeError) == "a context has no 'zebra'"  # type: ignore[attr-defined]
    assert await error_of(lambda ctx: hasattr(ctx, given) or 1 / 0, ZeroDivisionError) == "division by zero"


async def test_an_attribute_error_inside_a_property_of_a_context_is_raised_as_it_is() -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError("no such thing inside")

    def handler(ctx: Context) -> None:
        ctx._record = Broken()
        assert ctx.data

    with pytest.raises(AttributeError, match="no such thing inside"):
        await router_with(handler).handle(message())


async def test_a_handler_may_return_what_answer_returns() -> None:
    assert len(await router_with(lambda ctx: ctx.answer("Hello")).handle(message())) == 1


# Flows and states


async def test_a_state_where_a_flow_is_expected_is_refused() -> None:
    expected = (
        "'paid' is a state of flow 'order', and a flow is expected; pass the flow 'order', or enter the state with "
        "set_state('paid', flow='order')"
    )
    assert await error_of(lambda ctx: ctx.start_flow(Order.paid)) == expected
    with pytest.raises(InvalidOption, match="a flow is expected"):
        fsm_flow(Order.paid)


@pytest.mark.parametrize("policy", ["raise", "ignore"])
async def test_a_flow_where_a_state_is_expected_is_refused(policy: Any) -> None:
    def move(ctx: Context) -> None:
        ctx.start_flow(Order)
        ctx.transition(Survey)  # type: ignore[arg-type]

    def jump(ctx: Context) -> None:
        ctx.set_state(Survey)  # type: ignore[arg-type]

    for handler, method in ((move, "transition"), (jump, "set_state")):
        with pytest.raises(InvalidOption) as caught:
            await router_with(handler, on_invalid_transition=policy).handle(message())
        assert (
            str(caught.value) == f"{method}() takes a state, and 'survey' is a flow; begin the flow with start_flow()"
        )


async def test_an_undeclared_move_is_still_a_transition_error() -> None:
    def handler(ctx: Context) -> None:
        ctx.start_flow(Order)
        ctx.transition("nowhere")

    assert "is not a state of flow 'order'" in await error_of(handler, TransitionError)


async def yielding(ctx: Context) -> Any:
    yield ctx


def no_arguments() -> None: ...


def three_arguments(ctx: Any, error: Any, more: Any) -> None: ...


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (yielding, "yielding contains yield"),
        (no_arguments, r"no_arguments\(\).* has the wrong arguments; write no_arguments\(ctx"),
        (three_arguments, r"has the wrong arguments; write three_arguments\(ctx"),
    ],
)
def test_a_function_that_could_never_handle_anything_is_refused(handler: Any, said: str) -> None:
    router = Router(FSM("bot", storage="memory://", flows=[]))
    with pytest.raises(InvalidOption, match=said):
        router.on()(handler)
    with pytest.raises(InvalidOption, match=said):
        router.on_error(handler)


def test_a_timeout_function_with_other_arguments_is_refused() -> None:
    with pytest.raises(InvalidFlow, match="on_timeout= takes a state or a function of the context"):

        class Late(Flow, name="late"):
            a = state(to=[], timeout=5, on_timeout=no_arguments)


def test_a_misspelled_kind_of_update_is_refused_and_a_new_one_is_not() -> None:
    with pytest.raises(InvalidOption, match=r"kind\('mesage'\).*did you mean 'message'\?"):
        kind("mesage")
    with pytest.raises(InvalidOption, match="did you mean 'callback_query'\\?"):
        kind("message", "callbackquery")
    kind("hologram_moved")


# Updates


def updates() -> Iterator[Any]:
    yield message()


async def coming() -> Any:
    return message()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{}", "not str; parse its JSON first"),
        (b"{}", "not bytes; parse its JSON first"),
        ([message()], "not list; pass one update at a time"),
        ({}, "an empty dict is not an update"),
        (updates(), "not generator; pass one update at a time"),
        (iter([message()]), "not list_iterator; pass one update at a time"),
        ({"ok": True, "result": [message()]}, "a whole reply of getUpdates"),
        ({"ok": True, "result": []}, "a whole reply of getUpdates"),
        ({"ok": False, "error_code": 409, "description": "Conflict"}, "an error reply of the Bot API"),
    ],
)
async def test_anything_but_one_update_is_refused(given: Any, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        await router_with(lambda ctx: None).handle(given)


async def test_an_update_that_was_not_awaited_is_refused() -> None:
    given = coming()
    with pytest.raises(InvalidOption, match="not coroutine; await it first"):
        await router_with(lambda ctx: None).handle(given)
    given.close()


async def test_other_platforms_may_use_any_value_as_update() -> None:
    router = router_with(lambda ctx: None, key=lambda update: None)
    assert await router.handle({}) == []


async def test_a_child_task_of_a_handler_cannot_wait_for_its_own_key() -> None:
    async def handler(ctx: Context) -> None:
        await asyncio.wait_for(router.handle(message()), 30)

    router = router_with(handler)
    async with asyncio.timeout(10):
        with pytest.raises(AlreadyHeld):
            await router.handle(message())


# Timers


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_timers_that_nothing_fires_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    router = Router(FSM("bot", storage=MemoryStorage(), flows=[Noting]))
    for number in (1, 2):
        await router.handle(message(update_id=number))
    [warning] = warnings_in(caplog)
    assert warning.startswith(
        "bot has timeouts, on_expired or albums, and this process does not fire timers; use 'async with"
    )


async def test_answers_that_nothing_sends_are_warned_of_at_start_up(caplog: pytest.LogCaptureFixture) -> None:
    async with FSM("bot", storage=MemoryStorage(), flows=[Reminding]) as fsm:
        await Router(fsm).handle(message())
    assert warnings_in(caplog) == [
        "remind answers after a timeout, and nothing can send that answer; pass send= to FSM or Router"
    ]


async def test_machines_that_run_their_timers_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async def send(call: dict[str, Any]) -> None: ...

    async with FSM("bot", storage=MemoryStorage(), flows=[Noting]) as fsm:
        await Router(fsm).handle(message())
    async with FSM("bot", storage=MemoryStorage(), flows=[Reminding], send=send) as fsm:
        await Router(fsm).handle(message())
    await Router(FSM("bot", storage=MemoryStorage(), flows=[Reminding], run_timers=False)).handle(message())
    await Router(FSM("bot", storage=MemoryStorage(), flows=[Order])).handle(message())
    await Chat(Router(FSM("bot", storage=MemoryStorage(clock=Clock()), flows=[Reminding]))).send("hi")
    assert warnings_in(caplog) == []
