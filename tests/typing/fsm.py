"""The types of conversations. Nothing runs here: mypy checks it in ``make check``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

from stepwell.fsm import FSM, Context, Filter, Flow, Form, Router, Update, command, fsm_state, keys, state, text


class RegistrationData(TypedDict):
    name: str
    age: int


class Registration(Flow, name="registration", data=RegistrationData):
    get_name = state(to=["get_age"])
    get_age = state(to=[])
    default_state = get_name


@dataclass
class Order:
    item: str


def on_refused(ctx: Context, from_: str | None, to: str | None) -> bool:
    return ctx.duplicate


fsm = FSM("bot", storage="memory://", flows=[Registration], key=keys.User, on_invalid_transition=on_refused)
FSM("bot", storage="memory://", flows=[], key=lambda update: update.chat and update.chat.id)
FSM("bot", storage="memory://", flows=[], on_invalid_transition="log", on_missing_key="ignore")
FSM("bot", storage="memory://", flows=[], on_invalid_transition="warn")  # type: ignore[arg-type]
FSM("bot", storage="memory://", flows=[], on_unknown_state="forget")  # type: ignore[arg-type]
FSM("bot", storage="memory://", flows=[], update_id=lambda update: update.raw["event_id"])

router = Router(fsm)


@router.on(fsm_state(Registration.get_name), text())
async def with_typed_data(ctx: Context[RegistrationData]) -> None:
    assert_type(ctx.data, RegistrationData)
    assert_type(ctx.data["name"], str)
    assert_type(ctx.update_data(age=5), RegistrationData)
    ctx.data["age"] = "five"  # type: ignore[typeddict-item]
    ctx.data["email"]  # type: ignore[typeddict-item]


@router.on(command("start"), lambda ctx: ctx.flow is None and ctx.text != "no")
async def with_a_plain_context(ctx: Context) -> None:
    assert_type(ctx, Context[dict[str, Any]])
    assert_type(ctx.data, dict[str, Any])
    assert_type(ctx.update_data({"a": 1}), dict[str, Any])
    assert_type(ctx.data_as(Order), Order)
    assert_type(ctx.state, str | None)
    assert_type(ctx.match, re.Match[str] | None)
    assert_type(ctx.update, Update)


@router.on()
def with_any_data(ctx: Context[Any]) -> None:
    assert_type(ctx.data, Any)


def a_dataclass_is_not_the_type_of_data(ctx: Context[Order]) -> None:  # type: ignore[type-var]
    """``ctx.data`` is a dict; ``ctx.data_as(Order)`` builds the object."""


class Adult(Filter):
    def __call__(self, ctx: Context[RegistrationData], /) -> bool:
        return ctx.data.get("age", 0) >= 18


async def in_a_block() -> None:
    async with fsm.conversation(key=1) as ctx:
        assert_type(ctx, Context[dict[str, Any]])
    await fsm.handle({}, with_typed_data)
    fsm.handle_sync({}, with_a_plain_context, key=("job", 5))
    async for entry in fsm.find(flow=Registration, state=Registration.get_age):
        assert_type(entry.tags, tuple[str, ...])


async def ordered(ctx: Context, order: Order) -> None:
    ctx.answer(order.item)


async def registered(ctx: Context, name: str) -> None: ...


form = Form(Order, name="order", ask={"item": lambda ctx: ctx.text or "What?"}, on_done=ordered)
assert_type(form, Form[Order])
assert_type(form.router, Router)
Form(Order, name="order", on_done=registered)  # type: ignore[arg-type]
Form(Order, name="order", strings=lambda ctx, string: None if ctx.flow else string)
