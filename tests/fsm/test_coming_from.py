"""One test for every row of docs/coming-from.md about ExGram.FSM's keys, flows and middleware."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from stepwell import State
from stepwell.errors import InvalidFlow, StorageUnavailable
from stepwell.fsm import (
    FSM,
    Context,
    Flow,
    NoKeyError,
    Router,
    StateName,
    TransitionError,
    UnknownFlowError,
    Update,
    fsm_flow,
    fsm_in_flow,
    fsm_state,
    keys,
    state,
)
from stepwell.testing import FaultyStorage
from tests.backends import Backend
from tests.fsm.conftest import POLL, message

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
SHOWN: set[str] = set()

T = TypeVar("T", bound=Callable[..., Any])


def shows(row: str) -> Callable[[T], T]:
    SHOWN.add(row)
    return lambda test: test


class Registration(Flow, name="registration"):
    get_name = state(to=["get_email"])
    get_email = state(to=[])
    default_state = get_name


class Settings(Flow, name="settings"):
    language = state()
    default_state = language


@pytest.fixture
def make(backend: Backend) -> Callable[..., FSM]:
    storage = backend.storage()
    return lambda **options: FSM("my_bot", storage=storage, flows=[Registration, Settings], **options)


@pytest.fixture
def fsm(make: Callable[..., FSM]) -> FSM:
    return make()


async def stored(fsm: FSM) -> State | None:
    return await fsm.storage.get_state("my_bot", (42, 42))


# Keys


@shows("`ExGram.FSM.Key.ChatUser`, `User`, `Chat`, `ChatTopic`, `ChatTopicUser`")
def test_the_five_strategies_give_tuples() -> None:
    update = Update.of(message(user=42, chat=-100, message_thread_id=7))
    given = [each().extract(update) for each in (keys.ChatUser, keys.User, keys.Chat, keys.ChatTopic)]
    assert given == [(-100, 42), (42,), (-100,), (-100, 7)]
    assert keys.ChatTopicUser().extract(update) == (-100, 7, 42)


@shows("`key:` takes a module")
@shows("`extract(cnt)` gives `{:ok, key}` or `:error`")
async def test_a_key_is_an_instance_a_class_or_a_function_and_none_is_no_key(make: Callable[..., FSM]) -> None:
    class UserLanguage:
        def extract(self, update: Update) -> Any:
            return (update.user.id, update.user.raw["language_code"]) if update.user else None

    for key in (UserLanguage, UserLanguage(), UserLanguage().extract):
        async with make(key=key).conversation(message()) as ctx:
            assert ctx.key == (42, "de")
        async with make(key=key).conversation(POLL) as ctx:
            assert ctx.key is None


@shows("0 for a chat or thread that an update does not have")
def test_zero_means_no_chat_or_no_thread() -> None:
    inline = {"update_id": 1, "inline_query": {"id": "1", "from": {"id": 42}, "query": ""}}
    assert keys.ChatUser().extract(Update.of(inline)) == (0, 42)
    assert keys.ChatTopic().extract(Update.of(message(chat=-100))) == (-100, 0)


@shows("`:error`: an empty state, nothing is loaded or stored")
async def test_without_a_key_a_change_raises_unless_it_is_ignored(make: Callable[..., FSM]) -> None:
    async with make().conversation(POLL) as ctx:
        assert (ctx.flow, ctx.state, ctx.data) == (None, None, {})
    with pytest.raises(NoKeyError):
        async with make().conversation(POLL) as ctx:
            ctx.start_flow(Registration)
    async with make(on_missing_key="ignore").conversation(POLL) as ctx:
        assert ctx.start_flow(Registration) is False


@shows("`cnt.update` is ExGram's")
def test_updates_of_frameworks_and_plain_json_read_alike() -> None:
    from aiogram.types import Update as AiogramUpdate

    plain = message(chat=-100, update_id=5)
    for given in (plain, AiogramUpdate.model_validate(plain)):
        update = Update.of(given)
        assert update.user is not None
        assert update.chat is not None
        assert (update.user.id, update.chat.id, update.thread_id, update.text) == (42, -100, None, "hi")


# Flows


@shows("`use ExGram.FSM.Flow, name: :registration`")
@shows("`state :get_name, to: [:get_email]`")
@shows("`def default_state, do: :get_name`")
@shows("names are atoms")
def test_a_flow_is_a_class_and_its_states_are_strings() -> None:
    class Form(Flow, name="form"):
        name = state(to=["done"])
        done = state(to=[])
        default_state = name

    assert (Form.flow_name, Form.states, Form.default_state) == ("form", ("name", "done"), "name")
    assert Form.transitions == {"name": ("done",), "done": ()}
    assert Form.name == "name"
    assert isinstance(Form.name, StateName)
    assert Form.name.flow_name == "form"
    with pytest.raises(InvalidFlow, match="dnoe"):

        class Misspelt(Flow, name="misspelt"):
            name = state(to=["dnoe"])
            done = state(to=[])


@shows("`start_flow` of the active flow")
async def test_starting_the_active_flow_begins_again(fsm: FSM) -> None:
    async with fsm.conversation(message()) as ctx:
        ctx.start_flow("registration")
        ctx.update_data(name="Alice")
        ctx.transition("get_email")
    async with fsm.conversation(message()) as ctx:
        assert ctx.start_flow(Registration) is True
    assert await stored(fsm) == State("registration", "get_name", {})


@shows("`start_flow` while another flow is active")
@shows("`on_invalid_transition: :raise`, `:log`, `:ignore`, `{Module, :function}`")
@shows("a helper returns the context")
async def test_the_policy_decides_and_a_move_returns_whether_it_moved(make: Callable[..., FSM]) -> None:
    async with make().conversation(message()) as ctx:
        assert ctx.start_flow(Registration) is True
        with pytest.raises(TransitionError):
            ctx.start_flow(Settings)
    calls: list[Any] = []

    def policy(ctx: Context, from_: str, to: str) -> str:
        calls.append((from_, to))
        return "no"

    for given, result in (("log", False), ("ignore", False), (policy, "no")):
        async with make(on_invalid_transition=given).conversation(message()) as ctx:
            assert ctx.start_flow(Settings) == result
            assert ctx.transition("nowhere") == result
            assert (ctx.flow, ctx.state) == ("registration", "get_name")
    assert calls == [("registration", "settings"), ("get_name", "nowhere")]


@shows("`transition` without an active flow is allowed")
async def test_without_a_flow_a_transition_applies_the_policy(fsm: FSM) -> None:
    async with fsm.conversation(message()) as ctx:
        with pytest.raises(TransitionError, match="no flow is active"):
            ctx.transition("get_name")


@shows("a flow without a default state is left only by `set_state`")
async def test_the_first_transition_of_a_flow_without_default_may_go_to_any_state(backend: Backend) -> None:
    class Loose(Flow, name="loose"):
        one = state(to=["two"])
        two = state(to=["one"])
        default_state = None

    async with FSM("my_bot", storage=backend.storage(), flows=[Loose]).conversation(message()) as ctx:
        ctx.start_flow(Loose)
        assert ctx.state is None
        assert ctx.transition("two") is True
        with pytest.raises(TransitionError):
            ctx.transition("two")


@shows("`set_state(state)`, `set_state(flow, state)` jump")
async def test_set_state_jumps_to_declared_states_only(fsm: FSM) -> None:
    async with fsm.conversation(message()) as ctx:
        ctx.set_state("language", flow=Settings)
        ctx.update_data(kept=True)
        ctx.set_state("get_email", flow="registration")
        ctx.set_state("get_name")
        with pytest.raises(TransitionError):
            ctx.set_state("nowhere")
    assert await stored(fsm) == State("registration", "get_name", {"kept": True})


@shows("`clear_flow` removes the record")
async def test_clear_flow_removes_the_record_and_keeps_the_ids_of_handled_updates(fsm: FSM) -> None:
    async with fsm.conversation(message(update_id=1)) as ctx:
        ctx.start_flow(Registration)
    async with fsm.conversation(message(update_id=2)) as ctx:
        ctx.clear_flow()
    assert await stored(fsm) is None
    assert await fsm.handle(message(update_id=1), lambda ctx: ctx.start_flow(Registration)) is None
    assert await stored(fsm) is None


# Middleware


@shows("`use ExGram.FSM, storage:, key:, flows:`")
@shows("`storage:` is ETS unless given")
@shows("the state is put into `context.extra.fsm`")
async def test_the_machine_is_an_object_with_a_storage_of_your_choice() -> None:
    with pytest.raises(TypeError, match="storage"):
        FSM("my_bot", flows=[Registration])  # type: ignore[call-arg]
    fsm = FSM("my_bot", storage="memory://", key=keys.User(), flows=[Registration])
    async with fsm.conversation(message()) as ctx:
        ctx.start_flow(Registration)
        assert (ctx.flow, ctx.state, ctx.data) == ("registration", "get_name", {})


@shows("every helper writes to the storage")
async def test_there_is_one_write_at_the_end_and_none_if_the_handler_raises(fsm: FSM) -> None:
    async with fsm.conversation(message()) as ctx:
        ctx.start_flow(Registration)
        ctx.update_data(name="Alice")
        assert await stored(fsm) is None
    first = await stored(fsm)
    assert first == State("registration", "get_name", {"name": "Alice"})
    with pytest.raises(ZeroDivisionError):
        async with fsm.conversation(message()) as ctx:
            ctx.update_data(name="Bob")
            ctx.transition("get_email")
            _ = 1 / 0
    assert await stored(fsm) == first


@shows("a failed write is logged, and the bot continues")
async def test_a_write_that_fails_raises_and_the_update_can_be_handled_again() -> None:
    storage = FaultyStorage(before=[2], patience=0)
    fsm = FSM("my_bot", storage=storage, flows=[Registration])

    def begin(ctx: Context) -> Any:
        return ctx.start_flow(Registration)

    with pytest.raises(StorageUnavailable):
        await fsm.handle(message(update_id=1), begin)
    assert await stored(fsm) is None
    assert await fsm.handle(message(update_id=1), begin) is True


@shows("two updates of one user may be handled concurrently")
async def test_updates_of_one_user_are_handled_one_after_the_other(fsm: FSM) -> None:
    inside: list[str] = []

    async def handler(ctx: Context) -> None:
        inside.append("in")
        await asyncio.sleep(0.01)
        ctx.update_data({ctx.text: True})
        inside.append("out")

    await asyncio.gather(*(fsm.handle(message(str(number)), handler) for number in range(3)))
    assert inside == ["in", "out"] * 3


@shows("a redelivered update is handled again")
async def test_a_redelivered_update_changes_once_and_gets_the_same_answer(fsm: FSM) -> None:
    router = Router(fsm)

    @router.on()
    async def count(ctx: Context) -> None:
        ctx.data["times"] = ctx.data.get("times", 0) + 1
        ctx.answer(str(ctx.data["times"]))

    first = await router.handle(message(update_id=1))
    assert await router.handle(message(update_id=1)) == first
    assert await stored(fsm) == State(None, None, {"times": 1})


@shows("filters `:fsm_flow`, `:fsm_state`, `:fsm_in_flow`")
async def test_the_filters_of_the_same_names(fsm: FSM) -> None:
    async with fsm.conversation(message()) as ctx:
        assert fsm_flow(None)(ctx)
        assert (fsm_state(None) & ~fsm_in_flow())(ctx)
        ctx.start_flow(Registration)
        ctx.update_data(plan="free")
        assert (fsm_flow("registration") & fsm_in_flow())(ctx)
        assert (fsm_state("get_name") | fsm_state("nowhere"))(ctx)
        assert fsm_state(("plan", "free"))(ctx)


@shows("`start_flow` of a flow that is not registered raises")
async def test_an_unregistered_flow_is_an_error_also_when_a_handler_names_it() -> None:
    fsm = FSM("my_bot", storage="memory://", flows=[Registration])
    async with fsm.conversation(message()) as ctx:
        with pytest.raises(UnknownFlowError):
            ctx.start_flow(Settings)
    with pytest.raises(UnknownFlowError):
        Router(fsm).on(fsm_flow(Settings))


def test_every_row_is_shown() -> None:
    section = re.compile(r"^## ExGram.FSM \((keys|flows|middleware)\)\n(.*?)^(?=## |Each)", re.MULTILINE | re.DOTALL)
    sections = dict(section.findall(PAGE.read_text()))
    assert list(sections) == ["keys", "flows", "middleware"]
    lines = [line for text in sections.values() for line in text.splitlines() if line.startswith("| ")]
    rows = {line.removeprefix("| ").split(" | ")[0] for line in lines}
    assert rows - {"there", "---"} == SHOWN
