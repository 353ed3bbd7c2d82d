"""The router: the first matching handler is called, calls are returned, duplicates get the same answer."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stepwell import State
from stepwell.errors import InvalidOption, UsageError
from stepwell.fsm import (
    FSM,
    Context,
    Filter,
    Router,
    UnknownFlowError,
    callback,
    command,
    fsm_flow,
    fsm_in_flow,
    fsm_state,
    keys,
    kind,
    text,
)
from stepwell.storage import Claim, Release
from stepwell.testing import FaultyStorage
from tests.fsm.conftest import POLL, Form, Make, Open, message

KEY = (42, 42)


@pytest.fixture
def router(fsm: FSM) -> Router:
    router = Router(fsm)

    @router.on(command("register"))
    async def begin(ctx: Context) -> None:
        ctx.start_flow(Form)
        ctx.answer("What's your name?")

    @router.on(fsm_state(Form.name), text())
    async def name(ctx: Context) -> None:
        ctx.update_data(name=ctx.text)
        ctx.transition(Form.email)
        ctx.answer(f"Hello, {ctx.text}!")

    return router


def press(data: str = "yes", update_id: int | None = None) -> dict[str, Any]:
    pressed = {
        "callback_query": {
            "id": "77",
            "chat_instance": "1",
            "from": {"id": 42, "is_bot": False, "first_name": "A"},
            "message": {"message_id": 5, "date": 1, "chat": {"id": 42, "type": "private"}},
            "data": data,
        }
    }
    return pressed if update_id is None else {"update_id": update_id, **pressed}


async def test_the_router_returns_the_calls_to_make(router: Router) -> None:
    assert await router.handle(message("/register", update_id=1)) == [
        {"method": "sendMessage", "chat_id": 42, "text": "What's your name?"}
    ]
    assert await router.handle(message("Ann", update_id=2)) == [
        {"method": "sendMessage", "chat_id": 42, "text": "Hello, Ann!"}
    ]
    assert router.fsm is not None
    assert await router.fsm.storage.get_state("bot", KEY) == State("form", "email", {"name": "Ann"})


async def test_without_a_match_there_are_no_calls_and_no_writes() -> None:
    async with FaultyStorage() as storage:
        router = Router(FSM("bot", storage=storage, flows=[Form]))
        assert await router.handle(message("hi", update_id=1)) == []
        assert await router.handle(POLL) == []
        assert [type(operation) for batch in storage.batches for operation in batch] == [Claim, Release]


@pytest.mark.filterwarnings("ignore:.*never gets an update:UserWarning")
async def test_the_first_matching_handler_in_the_order_of_registration_is_called(fsm: FSM) -> None:
    router = Router(fsm)
    seen: list[str] = []
    for name, filters in {"cancel": [command("cancel")], "any": [], "never": [text()]}.items():
        router.on(*filters)(lambda ctx, name=name: seen.append(name))
    for words in ("/cancel", "hello", "/other"):
        await router.handle(message(words))
    assert seen == ["cancel", "any", "any"]


async def test_the_newest_update_delivered_again_gets_the_same_calls(router: Router) -> None:
    first = await router.handle(message("/register", update_id=1))
    assert await router.handle(message("/register", update_id=1)) == first
    second = await router.handle(message("Ann", update_id=2))
    assert await router.handle(message("/register", update_id=1)) == []
    assert await router.handle(message("Ann", update_id=2)) == second
    assert router.fsm is not None
    assert await router.fsm.storage.get_data("bot", KEY) == {"name": "Ann"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('{"update_id": 1}', "not str; parse its JSON first"),
        (b"{}", "not bytes; parse its JSON first"),
        ([message(update_id=1)], "not list; pass one update at a time"),
        (7, "not int"),
        ({"ok": True, "result": [message(update_id=1)]}, r"for update in reply\['result'\]"),
        ({"ok": False, "error_code": 409, "description": "Conflict"}, r"reply\['ok'\]"),
    ],
    ids=["str", "bytes", "list", "int", "reply", "error reply"],
)
async def test_the_error_for_a_value_that_is_not_an_update_says_what_to_pass(wrong: Any, said: str) -> None:
    fsm = FSM("bot", storage="memory://", flows=[Form])
    router = Router(fsm)
    ran: list[Any] = []

    @router.on()
    async def handler(ctx: Context) -> None:
        ran.append(ctx.update)

    with pytest.raises(InvalidOption, match=said):
        await router.handle(wrong)
    with pytest.raises(InvalidOption, match=said):
        await fsm.handle(wrong, handler)
    with pytest.raises(InvalidOption, match=said):
        async with fsm.conversation(wrong):
            pass
    assert not ran


async def test_a_platform_whose_updates_are_plain_text_works_with_a_key_of_its_own() -> None:
    fsm = FSM("irc", storage="memory://", flows=[Form], key=lambda update: update.raw.partition(" ")[2] or None)
    seen: list[Any] = []

    async def handler(ctx: Context) -> None:
        seen.append((ctx.key, ctx.update.raw))

    for line in ("JOIN ann", "PING"):
        await fsm.handle(line, handler)
    assert seen == [("ann", "JOIN ann"), (None, "PING")]
    await fsm.storage.close()


async def test_calls_that_cannot_be_remembered_do_not_stop_the_update(
    fsm: FSM, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router(fsm)
    huge = "x" * fsm.storage.limits.record

    @router.on()
    async def send(ctx: Context) -> None:
        ctx.update_data(sent=ctx.text)
        ctx.call("sendPhoto", photo=object() if ctx.text == "object" else huge)

    for number, words in enumerate(("object", "huge"), 1):
        assert len(await router.handle(message(words, update_id=number))) == 1
        assert await router.handle(message(words, update_id=number)) == []
    assert caplog.text.count("cannot be remembered") == 2
    assert await fsm.storage.get_data("bot", KEY) == {"sent": "huge"}


async def test_the_other_calls_beside_a_large_one_are_remembered(fsm: FSM, caplog: pytest.LogCaptureFixture) -> None:
    router = Router(fsm)

    @router.on()
    async def handler(ctx: Context) -> None:
        ctx.update_data(sent=True)
        ctx.answer("before")
        ctx.call("sendDocument", document="x" * fsm.storage.limits.record)
        ctx.answer("after")

    update = message("hello", update_id=1)
    assert len(await router.handle(update)) == 3
    assert [call["text"] for call in await router.handle(update)] == ["before", "after"]
    assert caplog.text.count("the call sendDocument of this update cannot be remembered") == 1


async def test_calls_that_are_too_many_to_be_remembered_are_reported_together(
    fsm: FSM, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router(fsm)
    texts = [f"{n} {'ж' * 4000}" for n in range(200)]

    @router.on()
    async def handler(ctx: Context) -> None:
        ctx.update_data(sent=True)
        for each in texts:
            ctx.answer(each)

    update = message("hello", update_id=1)
    assert len(await router.handle(update)) == 200
    kept = [call["text"] for call in await router.handle(update)]
    assert kept == texts[: len(kept)]
    # Each takes 8,0xx bytes of at most 256 KiB.
    assert len(kept) == 32
    assert caplog.text.count("cannot be remembered") == 1
    assert "168 calls sendMessage of this update cannot be remembered: the memo takes" in caplog.text


async def test_a_handler_that_raises_changes_nothing_and_answers_nothing(fsm: FSM) -> None:
    sent: list[Any] = []

    async def send(call: dict[str, Any]) -> None:
        sent.append(call)

    router = Router(fsm, send=send)

    @router.on()
    async def fail(ctx: Context) -> None:
        ctx.start_flow(Form)
        ctx.answer("never sent")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await router.handle(message(update_id=1))
    assert sent == []
    assert await fsm.storage.get_state("bot", KEY) is None


async def test_calls_are_sent_after_the_commit(fsm: FSM) -> None:
    sent: list[Any] = []

    async def send(call: dict[str, Any]) -> None:
        sent.append((call["text"], await fsm.storage.get_state("bot", KEY)))

    router = Router(fsm, send=send)

    @router.on()
    def begin(ctx: Context) -> None:
        ctx.start_flow(Form)
        ctx.answer("one")
        ctx.answer("two")

    await router.handle(message(update_id=1))
    assert sent == [("one", State("form", "name", {})), ("two", State("form", "name", {}))]


async def test_send_may_be_a_def_function(fsm: FSM) -> None:
    sent: list[str] = []

    def send(call: dict[str, Any]) -> None:
        sent.append(call["text"])

    router = Router(fsm, send=send)

    @router.on()
    async def answer(ctx: Context) -> None:
        ctx.answer("one")
        ctx.answer("two")

    await router.handle(message(update_id=1))
    async with fsm.conversation(key=KEY) as ctx:
        ctx.answer("three")
    assert sent == ["one", "two", "three"]


def test_a_send_that_cannot_be_called_is_refused(fsm: FSM) -> None:
    wrong: Any = "x"
    with pytest.raises(InvalidOption, match=r"Router\(send=\.\.\.\) takes a function of a call, got 'x'"):
        Router(fsm, send=wrong)


@pytest.mark.filterwarnings("ignore:.*never gets an update:UserWarning")
async def test_a_scope_adds_its_filters_and_keeps_the_order_of_handlers(fsm: FSM) -> None:
    router = Router(fsm)
    seen: list[str] = []
    inside = router.scope(fsm_flow(Form))
    deeper = inside.scope(text())
    deeper.on(fsm_state("name"))(lambda ctx: seen.append("name"))
    router.on()(lambda ctx: seen.append("outside"))
    inside.on()(lambda ctx: seen.append("too late"))
    await router.handle(message("hi"))
    await fsm.storage.set_state("bot", KEY, State("form", "name"))
    await router.handle(message("hi"))
    await router.handle(message("/hi"))
    assert seen == ["outside", "name", "outside"]


def test_the_warning_for_a_state_that_no_flow_has_suggests_similar_states(make_fsm: Make) -> None:
    router, collected = Router(make_fsm()), Router()
    collected.on(text(), ~fsm_state("emial"))(lambda ctx: None)
    for register in (
        lambda: router.on(fsm_state("emial")),
        lambda: router.on(text() & (fsm_state("emial") | fsm_state("name"))),
        lambda: router.scope(fsm_state("emial")),
        lambda: router.include(collected),
    ):
        with pytest.warns(UserWarning, match=r"no registered flow has .*'emial'.*did you mean 'email'") as caught:
            register()
        assert (len(caught), caught[0].filename) == (1, __file__)
    with pytest.warns(UserWarning, match="; correct it, or add its flow"):
        router.on(fsm_state("zz"))


def test_a_state_that_a_flow_has_gives_no_warning(make_fsm: Make) -> None:
    for fine in ("email", "a", Form.email, None, ("emial", 1)):
        Router(make_fsm()).on(fsm_state(fine))
    for nothing_known in (Router(), Router(make_fsm(flows=[]))):
        nothing_known.on(fsm_state("emial"))


@pytest.mark.parametrize(
    ("filters", "requested"),
    [
        ((text(),), set()),
        ((kind("message", "my_chat_member"),), set()),
        ((~kind("message_reaction"),), set()),
        ((kind("message_reaction"),), {"message_reaction"}),
        ((kind("chat_member", "message") & fsm_in_flow(),), {"chat_member"}),
        ((text() | kind("message_reaction_count"),), {"message_reaction_count"}),
    ],
)
def test_kinds_that_telegram_sends_only_on_request_are_requested_if_a_filter_names_them(
    fsm: FSM, filters: Any, requested: set[str]
) -> None:
    router, inner = Router(fsm), Router()
    inner.scope(*filters).on()(print)
    router.include(inner)
    kinds = router.allowed_updates
    if not requested:
        assert kinds is None
    else:
        assert kinds is not None
        assert {"message", "callback_query", "poll", *requested} <= set(kinds)
        assert {"chat_member", "message_reaction", "message_reaction_count"}.intersection(kinds) == requested


async def test_an_included_router_keeps_its_place_in_the_order(fsm: FSM) -> None:
    router, other = Router(fsm), Router()
    seen: list[str] = []
    other.on(command("a"))(lambda ctx: seen.append("a"))
    router.scope(~fsm_in_flow()).include(other)
    router.on()(lambda ctx: seen.append("rest"))
    other.on(command("b"))(lambda ctx: seen.append("b, added later"))
    for words in ("/a", "/b", "/c"):
        await router.handle(message(words))
    assert seen == ["a", "b, added later", "rest"]
    with pytest.raises(InvalidOption, match="itself"):
        router.include(router)
    with pytest.raises(InvalidOption, match=r"include\(\) takes a Router, got <.*FSM"):
        router.include(fsm)  # type: ignore[arg-type]
    other.include(Router())
    with pytest.raises(InvalidOption, match="itself"):
        loop = Router()
        loop.include(other)
        other.include(loop)


async def test_a_router_without_a_machine_only_collects_handlers(fsm: FSM) -> None:
    with pytest.raises(InvalidOption, match=r"Router\(fsm\)"):
        await Router().handle(message("hi"))
    with pytest.raises(InvalidOption, match="FSM"):
        Router("bot")  # type: ignore[arg-type]


async def test_an_unregistered_flow_in_a_filter_raises_at_once(make_fsm: Make) -> None:
    router = Router(make_fsm(flows=[Form]))
    with pytest.raises(UnknownFlowError, match="'open'"):
        router.on(fsm_flow(Open))
    with pytest.raises(UnknownFlowError):
        router.on(text() & ~fsm_state(Open.a))
    with pytest.raises(UnknownFlowError):
        router.scope(fsm_flow("nowhere"))
    other = Router()
    other.on(fsm_flow(Open))(lambda ctx: None)
    with pytest.raises(UnknownFlowError):
        router.include(other)


async def test_filters_combine(fsm: FSM) -> None:
    router = Router(fsm)
    seen: list[Any] = []
    router.on((command("a") | text(re.compile(r"(\d+)"))) & ~text("13"))(
        lambda ctx: seen.append(ctx.match and ctx.match[1])
    )
    router.on(callback("yes"))(lambda ctx: seen.append("pressed"))
    router.on(kind("poll"))(lambda ctx: seen.append("poll"))
    for update in (message("/a"), message("room 12"), message("13"), message("x"), press("yes"), press("no"), POLL):
        await router.handle(update)
    assert seen == [None, "12", "pressed", "poll"]


async def test_an_answer_goes_to_the_chat_of_the_update(make_fsm: Make) -> None:
    router = Router(make_fsm(key=keys.User()))

    @router.on()
    def answer(ctx: Context) -> None:
        if ctx.update.kind == "callback_query":
            ctx.answer_callback("ok", show_alert=True)
        ctx.answer("hi", parse_mode="HTML")

    call = {"method": "sendMessage", "text": "hi", "parse_mode": "HTML"}
    assert await router.handle(message(chat=-5)) == [{**call, "chat_id": -5}]
    topic = message(chat=-5, message_thread_id=9, is_topic_message=True)
    assert await router.handle(topic) == [{**call, "chat_id": -5, "message_thread_id": 9}]
    assert await router.handle(message(chat=-5, message_thread_id=9)) == [{**call, "chat_id": -5}]
    assert await router.handle(press()) == [
        {"method": "answerCallbackQuery", "callback_query_id": "77", "text": "ok", "show_alert": True},
        {**call, "chat_id": 42},
    ]
    inline = {"update_id": 1, "inline_query": {"id": "1", "from": {"id": 42}, "query": "", "offset": ""}}
    assert await router.handle(inline) == [{**call, "chat_id": 42}]


async def test_an_answer_without_a_destination_raises(fsm: FSM) -> None:
    router = Router(fsm)
    router.on(text())(lambda ctx: ctx.answer_callback())
    router.on(kind("poll"))(lambda ctx: ctx.answer("to whom?"))
    with pytest.raises(UsageError, match="callback queries"):
        await router.handle(message("hi"))
    with pytest.raises(UsageError, match="chat_id"):
        await router.handle(POLL)


async def test_a_toast_answers_the_pressed_button_before_the_message_is_sent_or_edited(fsm: FSM) -> None:
    router = Router(fsm)
    router.on(callback("yes"))(lambda ctx: ctx.answer("Yes.", toast="Saved"))
    router.on(callback("no"))(lambda ctx: ctx.edit("No.", toast="Not saved"))
    router.on(text())(lambda ctx: ctx.answer("Saved.", toast="Saved"))
    assert [(call["method"], call["text"]) for call in await router.handle(press("yes"))] == [
        ("answerCallbackQuery", "Saved"),
        ("sendMessage", "Yes."),
    ]
    pressed = {"id": "8", "from": {"id": 42}, "data": "no", "message": {"message_id": 5, "chat": {"id": 42}}}
    calls = await router.handle({"update_id": 80, "callback_query": pressed})
    assert [(call["method"], call["text"]) for call in calls] == [
        ("answerCallbackQuery", "Not saved"),
        ("editMessageText", "No."),
    ]
    with pytest.raises(UsageError, match="callback queries"):
        await router.handle(message("hi"))


def test_a_custom_filter_may_have_an_attribute_states() -> None:
    class Between(Filter):
        def __init__(self, *states: str) -> None:
            self.states = states

        def __call__(self, ctx: Context) -> bool:
            return ctx.state in self.states

    router = Router(FSM("bot", storage="memory://", flows=[Form]))
    router.on(Between("name", "email"))(lambda ctx: None)


def test_handle_sync_works_without_an_event_loop() -> None:
    router = Router(FSM("bot", storage="memory://", flows=[Form]))
    router.on(command("start"))(lambda ctx: ctx.answer("hello"))
    assert router.handle_sync(message("/start")) == [{"method": "sendMessage", "chat_id": 42, "text": "hello"}]
