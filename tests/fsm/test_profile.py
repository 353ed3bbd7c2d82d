"""``ctx.profile`` outlives flows; idle timeouts count from the last update."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from stepwell.errors import FieldError, InvalidFlow, NoKeyError
from stepwell.fsm import FSM, Context, Flow, Router, state, text
from stepwell.testing import Clock
from tests.backends import Backend

KEY = (42, 42)


class Form(Flow, name="form"):
    name = state(to=["email"])
    email = state(to=[])
    default_state = name


class Patient(Flow, name="patient"):
    waiting = state(to=[], timeout=600, idle=True)
    default_state = waiting


def update(number: int, words: str = "hi") -> dict[str, Any]:
    person = {"id": 42, "first_name": "A", "is_bot": False}
    message = {"message_id": number, "date": 0, "chat": {**person, "type": "private"}, "from": person, "text": words}
    return {"update_id": number, "message": message}


@pytest.mark.every_backend
async def test_a_profile_outlives_flows_and_forget_removes_it(backend: Backend) -> None:
    storage = backend.storage()
    fsm = FSM("my_bot", storage=storage, flows=[Form])
    async with fsm.conversation(key=KEY) as ctx:
        ctx.profile["language"] = "de"
        ctx.profile["since"] = date(2026, 1, 2)
        ctx.start_flow(Form)
        ctx.update_data(name="Alice")
    async with fsm.conversation(key=KEY) as ctx:
        assert ctx.profile == {"language": "de", "since": date(2026, 1, 2)}
        assert ctx.data == {"name": "Alice"}
        ctx.start_flow(Form)
        ctx.set_data({})
        ctx.clear_flow()
    assert [entry.key async for entry in fsm.find(flow=Form)] == []
    assert await storage.get_data("my_bot", KEY) == {}
    async with fsm.conversation(key=KEY) as ctx:
        assert ctx.flow is None
        assert ctx.profile["language"] == "de"
        ctx.profile["language"] = "fr"
    async with fsm.conversation(key=KEY) as ctx:
        assert ctx.profile["language"] == "fr"
    assert await fsm.forget(user=42) == 1
    async with fsm.conversation(key=KEY) as ctx:
        assert ctx.profile == {}


async def test_an_emptied_profile_leaves_no_record(backend: Backend) -> None:
    storage = backend.storage()
    fsm = FSM("my_bot", storage=storage, flows=[Form])
    async with fsm.conversation(key=KEY) as ctx:
        ctx.profile["language"] = "de"
    async with fsm.conversation(key=KEY) as ctx:
        ctx.profile.clear()
    assert await storage.get_state("my_bot", KEY) is None


async def test_reading_a_profile_writes_nothing_and_an_error_rolls_it_back(backend: Backend) -> None:
    storage = backend.storage()
    fsm = FSM("my_bot", storage=storage, flows=[Form])
    async with fsm.conversation(key=KEY) as ctx:
        assert ctx.profile == {}
    assert await storage.get_state("my_bot", KEY) is None
    with pytest.raises(ValueError, match="no"):
        async with fsm.conversation(key=KEY) as ctx:
            ctx.profile["language"] = "de"
            raise ValueError("no")
    async with fsm.conversation(key=KEY) as ctx:
        assert ctx.profile == {}


@pytest.mark.parametrize("with_listener", [False, True])
async def test_a_profile_outlives_an_expired_conversation(backend: Backend, clock: Clock, with_listener: bool) -> None:
    expired = []
    options: dict[str, Any] = {"on_expired": expired.append} if with_listener else {}
    fsm = FSM("my_bot", storage=backend.storage(clock=clock), flows=[Form], ttl=60, **options)
    async with fsm.conversation(key=KEY) as ctx:
        ctx.profile["language"] = "de"
        ctx.start_flow(Form)
        ctx.update_data(name="Alice")
    clock.advance(61)
    await fsm.storage.sweep()
    if with_listener:
        assert await fsm.tick() == 1
        assert [(each.flow, each.state) for each in expired] == [("form", "name")]
    assert [entry.key async for entry in fsm.find(flow=Form)] == []
    async with fsm.conversation(key=KEY) as ctx:
        assert (ctx.flow, ctx.data, ctx.profile) == (None, {}, {"language": "de"})
    clock.advance(10 * 24 * 3600)
    await fsm.storage.sweep()
    async with fsm.conversation(key=KEY) as ctx:
        assert ctx.profile == {"language": "de"}


@dataclass
class Profile:
    language: str = "en"


async def test_a_typed_profile_is_checked(backend: Backend) -> None:
    fsm = FSM("my_bot", storage=backend.storage(), flows=[Form], profile=Profile)
    with pytest.raises(FieldError):
        async with fsm.conversation(key=KEY) as ctx:
            ctx.profile["language"] = 7
    with pytest.raises(FieldError):
        async with fsm.conversation(key=KEY) as ctx:
            ctx.profile["lang"] = "de"
    async with fsm.conversation(key=KEY) as ctx:
        ctx.profile["language"] = "de"


async def test_an_update_without_a_key_has_no_profile_to_write() -> None:
    fsm = FSM("my_bot", storage="memory://", flows=[Form])
    post = {"update_id": 1, "channel_post": {"message_id": 1, "date": 0, "chat": {"id": -5, "type": "channel"}}}
    with pytest.raises(NoKeyError):
        async with fsm.conversation(post) as ctx:
            ctx.profile["language"] = "de"


async def test_an_idle_timeout_counts_from_the_last_update(backend: Backend, clock: Clock) -> None:
    router = Router(FSM("my_bot", storage=backend.storage(clock=clock), flows=[Patient]))
    fsm = router.fsm
    assert fsm is not None

    @router.on(text("begin"))
    async def begin(ctx: Context) -> None:
        ctx.start_flow(Patient)

    @router.on(text())
    async def nothing(ctx: Context) -> None: ...

    await router.handle(update(1, "begin"))
    for number in range(2, 5):
        clock.advance(500)
        await router.handle(update(number))
        assert await fsm.tick() == 0
    # A job is not an update of the user.
    clock.advance(500)
    async with fsm.conversation(key=KEY) as ctx:
        ctx.update_data(seen=1)
    clock.advance(101)
    assert await fsm.tick() == 1
    assert await fsm.storage.get_state("my_bot", KEY) is None


def test_idle_needs_a_timeout() -> None:
    with pytest.raises(InvalidFlow, match="idle=True needs a timeout="):

        class Wrong(Flow, name="wrong"):
            one = state(to=[], idle=True)
            default_state = one
