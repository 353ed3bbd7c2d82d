"""Forms: questions made from a model, read, checked, changed and confirmed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

from stepwell import MemoryStorage
from stepwell.errors import InvalidOption, TransitionError, UnknownFlowError, UsageError
from stepwell.fsm import FSM, Context, Flow, Form, Router, callback, command, fsm_flow, keyboard, state, text
from stepwell.storage.operations import Get
from stepwell.testing import Chat
from tests.backends import Backend


class Size(Enum):
    SMALL = 1
    VERY_LARGE = 2


@dataclass
class Applicant:
    name: str
    email: str
    plan: Literal["free", "pro"]
    age: int | None = None


class Everything(msgspec.Struct):
    text: str
    whole: int
    number: float
    agree: bool
    price: Decimal
    day: dt.date
    moment: dt.datetime
    clock: dt.time
    span: dt.timedelta
    id: UUID
    plan: Literal["free", "pro", 3]
    size: Size
    adult: Annotated[int, msgspec.Meta(ge=18)]
    either: int | str


class Account(pydantic.BaseModel):
    login: str = pydantic.Field(min_length=3)
    link: pydantic.HttpUrl
    born: dt.date
    size: Size = Size.SMALL
    tags: list[str] = []

    @pydantic.field_validator("login")
    @classmethod
    def _no_admin(cls, value: str) -> str:
        if value == "admin":
            raise ValueError("this name is taken")
        return value


def bot(form: Form[Any]) -> Callable[[Any], Router]:
    """Return a function that makes a bot with this form, a command that jumps to a state, and a fallback handler."""

    def make_router(storage: Any) -> Router:
        router = Router(FSM("bot", storage=storage, flows=[form.flow]))
        router.include(form.router)

        @router.on(command("jump"))
        async def jump(ctx: Context) -> None:
            ctx.set_state(ctx.args)

        @router.on(text())
        async def otherwise(ctx: Context) -> None:
            ctx.answer("Not in the form.")

        return router

    return make_router


class Other(Flow, name="other"):
    only = state(to=[])
    default_state = only


class Done:
    """Keeps the values that a form has made."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    async def __call__(self, ctx: Context, value: Any) -> None:
        self.values.append(value)
        ctx.answer("Saved.")


def person_form(**options: Any) -> tuple[Form[Applicant], Done]:
    done = Done()
    ask = {"name": "Your name?", "email": lambda ctx: f"Your email, {ctx.data['name']}?"}
    options = {"ask": ask, "validate": {"email": lambda ctx, value: "@" in value}, **options}
    return Form(Applicant, name="signup", command="register", on_done=done, **options), done


async def sent(chat: Chat, *texts: str) -> str | None:
    for each in texts:
        await chat.send(each)
    return chat.last


async def test_every_field_is_asked_for_and_the_value_is_passed_on() -> None:
    form, done = person_form()
    chat = Chat(bot(form))
    assert await chat.send("/register") == ["Your name?"]
    assert await chat.send("Alice") == ["Your email, Alice?"]
    assert await chat.send("a@example.com") == ["Plan?"]
    assert chat.buttons == ["free", "pro", "Back", "Cancel"]
    assert await chat.press("pro") == ["Age?"]
    assert chat.buttons == ["Skip", "Back", "Cancel"]
    record = await chat.record()
    assert record is not None
    assert (record.state, record.data) == ("ask_age", {"name": "Alice", "email": "a@example.com", "plan": "pro"})
    assert await chat.send(" 42 ") == [
        "Please check your answers:\n\nName: Alice\nEmail: a@example.com\nPlan: pro\nAge: 42"
    ]
    assert chat.buttons == ["Confirm", "Edit", "Cancel"]
    summary = chat.last
    assert await chat.press("Confirm") == [summary, "Saved."]
    assert done.values == [Applicant("Alice", "a@example.com", "pro", 42)]
    assert await chat.record() is None
    assert not any(message.get("reply_markup") for message in chat.messages[-2:])


BAD = [
    ("whole", "ten", "Please send a whole number, such as 42."),
    ("number", "a lot", "Please send a number, such as 3.5."),
    ("number", "nan", "Please send a number, such as 3.5."),
    ("number", "1e999", "Please send a number, such as 3.5."),
    ("agree", "perhaps", "Please choose one of the buttons."),
    ("price", "cheap", "Please send a number, such as 3.5."),
    ("price", "Infinity", "Please send a number, such as 3.5."),
    ("day", "tomorrow", "Please send a date, such as 2026-12-31."),
    ("day", "2026-02-30", "Please send a date, such as 2026-12-31."),
    ("moment", "noon", "Please send a date and time, such as 2026-12-31 18:30."),
    ("clock", "late", "Please send a time, such as 18:30."),
    ("span", "long", "This is not a valid answer."),
    ("id", "me", "This is not a valid answer."),
    ("plan", "gold", "Please choose one of the buttons."),
    ("size", "3", "Please choose one of the buttons."),
    ("adult", "17", "This is not a valid answer. Expected int >= 18"),
]
GOOD = [
    ("text", "Hello", "Hello"),
    ("whole", "42", 42),
    ("number", "3.5", 3.5),
    ("agree", "YES", True),
    ("agree", "no", False),
    ("price", "9.90", Decimal("9.90")),
    ("day", "2026-12-31", dt.date(2026, 12, 31)),
    ("moment", "2026-12-31 18:30", dt.datetime(2026, 12, 31, 18, 30)),
    ("clock", "18:30", dt.time(18, 30)),
    ("span", "90", dt.timedelta(seconds=90)),
    ("id", "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
    ("plan", "Pro", "pro"),
    ("plan", "3", 3),
    ("size", "very large", Size.VERY_LARGE),
    ("size", "1", Size.SMALL),
    ("adult", "18", 18),
    ("either", "x", "x"),
]


@pytest.mark.parametrize(("name", "typed", "answer"), BAD)
async def test_bad_input_gets_a_friendly_answer_and_changes_nothing(name: str, typed: str, answer: str) -> None:
    form = Form(Everything, name="all", command="all")
    chat = Chat(bot(form))
    await sent(chat, "/all", f"/jump ask_{name}")
    assert await chat.send(typed) == [answer]
    assert "Cancel" in chat.buttons
    record = await chat.record()
    assert record is not None
    assert (record.state, record.data) == (f"ask_{name}", {})


@pytest.mark.parametrize(("name", "typed", "value"), GOOD)
async def test_a_text_is_read_by_the_type_of_its_field(name: str, typed: str, value: Any) -> None:
    form = Form(Everything, name="all", command="all")
    chat = Chat(bot(form))
    await sent(chat, "/all", f"/jump ask_{name}")
    await chat.send(typed)
    record = await chat.record()
    assert record is not None
    assert record.data == {name: value}
    assert type(record.data[name]) is type(value)


async def test_the_answers_of_every_type_survive_the_storage(backend: Backend) -> None:
    done = Done()
    chat = Chat(bot(Form(Everything, name="all", command="all", on_done=done)), storage=backend.storage())
    answers = dict(reversed([(name, (typed, value)) for name, typed, value in GOOD]))
    await chat.send("/all")
    for name in Everything.__struct_fields__:
        await chat.send(answers[name][0])
    await chat.press("Confirm")
    assert done.values == [Everything(**{name: answers[name][1] for name in Everything.__struct_fields__})]


async def test_a_form_that_a_button_of_the_bot_starts_leaves_the_message_of_that_button() -> None:
    form = Form(Applicant, name="signup")

    def make_router(storage: Any) -> Router:
        router = Router(FSM("bot", storage=storage, flows=[form.flow]))
        router.include(form.router)

        @router.on(command("start"))
        async def start(ctx: Context) -> None:
            ctx.answer("Menu", reply_markup=keyboard([["Sign up"]]))

        @router.on(callback("Sign up"))
        async def sign_up(ctx: Context) -> None:
            form.start(ctx)

        return router

    chat = Chat(make_router)
    await chat.send("/start")
    assert await chat.press("Sign up") == ["Name?"]
    assert await chat.press("Cancel") == ["Cancelled."]
    assert [message["text"] for message in chat.messages] == ["/start", "Menu", "Cancelled."]


async def test_a_message_without_a_text_is_refused() -> None:
    form, _ = person_form()
    chat = Chat(bot(form))
    await chat.send("/register")
    assert await chat.send(photo=[{"file_id": "x"}]) == ["Please send a text."]
    assert await chat.send(" ") == ["Please send a text."]


async def test_a_parser_that_raises_refuses_the_text() -> None:
    form, _ = person_form(parse={"name": lambda text: {"a": "Alice"}[text] if text == "a" else str(int(text))})
    chat = Chat(bot(form))
    assert await sent(chat, "/register", "b") == "This is not a valid answer."
    assert await chat.send("a") == ["Your email, Alice?"]


async def test_a_pydantic_model_validates_its_fields() -> None:
    done = Done()
    form = Form(Account, name="account", command="account", fields=["login", "link", "born", "size"], on_done=done)
    chat = Chat(bot(form))
    await chat.send("/account")
    assert await chat.send("ab") == ["This is not a valid answer. String should have at least 3 characters"]
    assert await chat.send("admin") == ["This is not a valid answer. this name is taken"]
    assert await chat.send("alice") == ["Link?"]
    assert "not a valid answer" in (await chat.send("nowhere"))[0]
    assert await chat.send("https://example.com") == ["Born?"]
    assert await chat.send("2000-01-02") == ["Size?"]
    assert chat.buttons == ["Small", "Very large", "Skip", "Back", "Cancel"]
    await chat.press("Skip")
    assert "Size: Small" in (chat.last or "")
    await chat.press("Confirm")
    link = pydantic.HttpUrl("https://example.com")
    assert done.values == [Account(login="alice", link=link, born=dt.date(2000, 1, 2))]


async def test_a_skipped_field_gets_its_default() -> None:
    @dataclass
    class Order:
        note: str = "none"
        gift: bool = False
        tags: list[str] = field(default_factory=lambda: ["new"])
        phone: str | None = None

    done = Done()
    form = Form(Order, name="order", command="order", on_done=done, parse={"tags": str.split})
    chat = Chat(bot(form))
    await chat.send("/order")
    await chat.press("Skip")
    await chat.send("/skip")
    await chat.press("Skip")
    await chat.press("Skip")
    assert "Note: none\nGift: No\nTags: ['new']\nPhone: -" in (chat.last or "")
    assert await chat.send("/skip") == [chat.last]
    await chat.press("Confirm")
    assert done.values == [Order()]


async def test_a_required_field_cannot_be_skipped() -> None:
    form, _ = person_form()
    chat = Chat(bot(form))
    assert await sent(chat, "/register", "/skip") == "This question needs an answer."


async def test_back_asks_the_previous_question_again() -> None:
    form, done = person_form()
    chat = Chat(bot(form))
    assert await sent(chat, "/register", "/back") == "This is the first question."
    assert chat.buttons == ["Cancel"]
    assert await sent(chat, "Alice", "a@example.com") == "Plan?"
    assert await chat.press("Back") == ["Your email, Alice?"]
    assert await chat.send("/back") == ["Your name?"]
    assert await sent(chat, "Bob") == "Your email, Bob?"
    await sent(chat, "b@example.com")
    await chat.press("free")
    await chat.press("Skip")
    assert await chat.send("/back") == ["Age?"]
    await chat.send("7")
    await chat.press("Confirm")
    assert done.values == [Applicant("Bob", "b@example.com", "free", 7)]


@pytest.mark.parametrize("texts", [["/register"], ["/register", "Alice", "a@example.com"]])
@pytest.mark.parametrize("pressed", [True, False])
async def test_cancel_ends_the_form(texts: list[str], pressed: bool) -> None:
    form, done = person_form()
    chat = Chat(bot(form))
    await sent(chat, *texts)
    assert await (chat.press("Cancel") if pressed else chat.send("/cancel")) == ["Cancelled."]
    assert await chat.record() is None
    assert await chat.send("Alice") == ["Not in the form."]
    assert done.values == []


async def completed(chat: Chat) -> None:
    await sent(chat, "/register", "Alice", "a@example.com")
    await chat.press("free")
    await chat.press("Skip")


async def test_one_answer_is_changed_from_the_summary() -> None:
    form, done = person_form()
    chat = Chat(bot(form))
    await completed(chat)
    assert await chat.press("Edit") == ["Which answer do you want to change?"]
    assert chat.buttons == ["Name", "Email", "Plan", "Age", "Back"]
    assert "Alice" in (await chat.press("Back"))[0]
    await chat.press("Edit")
    assert await chat.press("Email") == ["Your email, Alice?"]
    assert await chat.send("nowhere") == ["This is not a valid answer."]
    assert "Email: a@example.com" in (await chat.press("Back"))[0]
    await chat.press("Edit")
    await chat.press("Email")
    assert "Email: new@example.com" in (await chat.send("new@example.com"))[0]
    await chat.press("Edit")
    await chat.press("Plan")
    assert "Plan: pro" in (await chat.press("pro"))[0]
    await chat.press("Confirm")
    assert done.values == [Applicant("Alice", "new@example.com", "pro")]


async def test_a_restart_in_the_middle_changes_nothing() -> None:
    form, done = person_form()
    chat = Chat(bot(form))
    await sent(chat, "/register", "Alice")
    await chat.restart(bot(person_form()[0]))
    assert await chat.send("a@example.com") == ["Plan?"]
    await chat.restart(bot(form))
    await chat.press("free")
    await chat.press("Skip")
    await chat.press("Confirm")
    assert done.values == [Applicant("Alice", "a@example.com", "free")]


async def test_the_command_begins_again() -> None:
    form, _ = person_form()
    chat = Chat(bot(form))
    assert await sent(chat, "/register", "Alice", "/register") == "Your name?"
    record = await chat.record()
    assert record is not None
    assert record.data == {}


async def test_an_outdated_button_changes_nothing() -> None:
    form, done = person_form()
    chat = Chat(bot(form))
    await sent(chat, "/register", "Alice", "a@example.com")
    assert await chat.press("Cancel", on="Your name?") == []
    assert chat.calls[-1]["text"] == "This button is outdated."
    assert chat.last == "Plan?"
    await chat.press("free")
    await chat.press("Skip")
    await chat.press("Confirm")
    assert await chat.press("Cancel", on="Your name?") == []
    assert chat.calls[-1]["text"] == "This button is outdated."
    assert len(done.values) == 1


async def test_an_older_summary_cannot_be_confirmed() -> None:
    form, done = person_form()
    chat = Chat(bot(form))
    await completed(chat)
    older = chat.last
    await chat.send("/back")
    await chat.send("42")
    (shown,) = await chat.press("Confirm", on=older)
    assert chat.calls[-2]["text"] == "This button is outdated."
    assert shown == chat.last
    assert done.values == []
    await chat.press("Confirm", on=shown)
    assert [value.age for value in done.values] == [42]


async def test_a_text_in_the_summary_shows_it_again() -> None:
    form, _ = person_form()
    chat = Chat(bot(form))
    await completed(chat)
    summary = chat.last
    assert await chat.send("yes") == [summary]
    assert chat.buttons == ["Confirm", "Edit", "Cancel"]


async def test_another_user_cannot_press_the_buttons() -> None:
    form, _ = person_form()
    alice = Chat(bot(form)).group(-100)
    await sent(alice, "/register", "Alice", "a@example.com")
    await alice.user(43).press("free")
    assert alice.calls[-1]["text"] == "This button is outdated."
    assert await alice.press("free") == ["Age?"]


async def test_a_validator_may_raise_a_text_for_the_user_and_may_be_async() -> None:
    taken = {"a@example.com"}

    async def is_free(ctx: Context, email: str) -> None:
        if email in taken:
            raise ValueError(f"{email} is registered already, {ctx.data['name']}.")

    form, _ = person_form(validate={"email": is_free})
    chat = Chat(bot(form))
    assert await sent(chat, "/register", "Alice", "a@example.com") == "a@example.com is registered already, Alice."
    assert await chat.send("b@example.com") == ["Plan?"]


async def test_a_validator_that_raises_without_a_text_refuses_the_value() -> None:
    def refuse(ctx: Context, value: str) -> None:
        raise ValueError

    form, _ = person_form(validate={"name": refuse})
    assert await sent(Chat(bot(form)), "/register", "Alice") == "This is not a valid answer."


async def test_a_model_that_raises_without_a_text_refuses_the_whole() -> None:
    @dataclass
    class Never:
        name: str

        def __post_init__(self) -> None:
            raise ValueError

    chat = Chat(bot(Form(Never, name="never", command="never")))
    await sent(chat, "/never", "Alice")
    assert await chat.press("Confirm") == ["This is not a valid answer.\n\nPlease check your answers:\n\nName: Alice"]


async def test_a_def_on_done_runs_too_and_without_one_the_user_is_thanked() -> None:
    values = []

    def save(ctx: Context, value: Applicant) -> None:
        values.append(value)
        ctx.answer(f"Saved {value.name}.")

    for on_done, answer in ((save, "Saved Alice."), (None, "Thank you.")):
        form = Form(Applicant, name="signup", command="register", on_done=on_done, confirm=False)
        chat = Chat(bot(form))
        await sent(chat, "/register", "Alice", "a@example.com", "pro")
        assert (await chat.press("Skip"))[-1] == answer
        assert await chat.record() is None
    assert values == [Applicant("Alice", "a@example.com", "pro")]


async def test_a_model_that_refuses_the_whole_explains_it() -> None:
    @dataclass
    class Range:
        low: int
        high: int

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("The low end is above the high end.")

    done = Done()
    chat = Chat(bot(Form(Range, name="range", command="range", on_done=done)))
    await sent(chat, "/range", "5", "3")
    assert await chat.press("Confirm") == [
        "The low end is above the high end.\n\nPlease check your answers:\n\nLow: 5\nHigh: 3"
    ]
    await chat.press("Edit")
    await chat.press("Low")
    await chat.send("1")
    await chat.press("Confirm")
    assert done.values == [Range(1, 3)]


async def test_a_validator_of_the_whole_pydantic_model_explains_itself() -> None:
    class Trip(pydantic.BaseModel):
        start: dt.date
        end: dt.date

        @pydantic.model_validator(mode="after")
        def _in_order(self) -> Trip:
            if self.start > self.end:
                raise ValueError("The trip ends before it starts.")
            return self

    done = Done()
    chat = Chat(bot(Form(Trip, name="trip", command="trip", on_done=done, confirm=False)))
    await sent(chat, "/trip", "2026-05-02", "2026-05-01")
    assert chat.last == "The trip ends before it starts.\n\nEnd?"
    assert await chat.send("/back") == ["Start?"]
    await sent(chat, "2026-05-01", "2026-05-03")
    assert done.values == [Trip(start=dt.date(2026, 5, 1), end=dt.date(2026, 5, 3))]


async def test_known_fields_are_not_asked_for() -> None:
    done = Done()
    form = Form(Applicant, name="signup", on_done=done)

    def make_router(storage: Any) -> Router:
        router = Router(FSM("bot", storage=storage, flows=[form.flow, Other]))

        @router.on(command("register"), ~fsm_flow(Other))
        async def register(ctx: Context) -> None:
            form.start(ctx, name="Alice", plan="pro", age=None)

        @router.on(command("again"))
        async def again(ctx: Context) -> None:
            ctx.start_flow(Other)
            form.start(ctx)

        router.include(form.router)
        return router

    chat = Chat(make_router)
    assert await chat.send("/register") == ["Email?"]
    await chat.send("a@example.com")
    await chat.press("Confirm")
    assert done.values == [Applicant("Alice", "a@example.com", "pro")]
    with pytest.raises(TransitionError):
        await chat.send("/again")


async def test_idle_users_get_a_reminder_once() -> None:
    form, _ = person_form(idle=600)
    chat = Chat(bot(form))
    await chat.send("/register")
    assert await chat.advance(500) == []
    await chat.send("Alice")
    assert await chat.advance(500) == []
    assert await chat.send("nowhere") == ["This is not a valid answer."]
    assert await chat.advance(500) == []
    assert await chat.advance(100) == ["Are you still there? Your email, Alice?"]
    assert await chat.advance(6000) == []
    assert await chat.press("Back") == ["Your name?"]


async def test_idle_forms_can_end() -> None:
    form: Form[Applicant]

    async def give_up(ctx: Context) -> None:
        form.cancel(ctx)

    form, _ = person_form(idle=dt.timedelta(minutes=10), on_idle=give_up)
    chat = Chat(bot(form))
    await chat.send("/register")
    assert await chat.advance(601) == ["Cancelled."]
    assert await chat.record() is None


GERMAN = {
    "ask.name": "Wie heißt du?",
    "label.plan": "Tarif",
    "choice.plan.free": "Kostenlos",
    "bad.email": "Das ist keine E-Mail-Adresse.",
    "back": "Zurück",
    "cancel": "Abbrechen",
    "question": "{label}:",
}


def translate(ctx: Context, string: str) -> str | None:
    user = ctx.update.user
    return GERMAN.get(string) if user is not None and user.language_code == "de" else None


@pytest.mark.parametrize("strings", [GERMAN, translate])
async def test_texts_can_be_replaced(strings: Any) -> None:
    form, _ = person_form(strings=strings)
    chat = Chat(bot(form)).user(7, language_code="de")
    assert await chat.send("/register") == ["Wie heißt du?"]
    assert chat.buttons == ["Abbrechen"]
    await chat.send("Anna")
    assert await chat.send("x") == ["Das ist keine E-Mail-Adresse."]
    assert await chat.send("a@example.com") == ["Tarif:"]
    assert chat.buttons == ["Kostenlos", "pro", "Zurück", "Abbrechen"]
    await chat.send("kostenlos")
    await chat.press("Skip")
    assert "Tarif: Kostenlos" in (chat.last or "")


async def test_strings_by_user() -> None:
    form, _ = person_form(strings=translate)
    chat = Chat(bot(form))
    assert await chat.send("/register") == ["Your name?"]
    assert await chat.user(7, language_code="de").send("/register") == ["Wie heißt du?"]


async def test_long_answers_fit_into_the_summary() -> None:
    form, _ = person_form()
    chat = Chat(bot(form))
    await sent(chat, "/register", "x" * 4096, "a@example.com", "free")
    await chat.press("Skip")
    assert "Name: " + "x" * 199 + "…\n" in (chat.last or "")


async def test_long_names_fit_into_button_data() -> None:
    long = "the_very_long_name_of_a_field_that_nobody_would_choose"
    model = msgspec.defstruct("Long", [(long, Literal["a" * 64, "b"])])
    done = Done()
    chat = Chat(bot(Form(model, name="n" * 32, command="long", on_done=done)))
    await chat.send("/long")
    await chat.press("a" * 64)
    await chat.press("Confirm")
    assert getattr(done.values[0], long) == "a" * 64


async def test_a_release_may_add_and_remove_fields() -> None:
    @dataclass
    class Old:
        name: str
        city: str

    @dataclass
    class New:
        name: str
        country: str

    done = Done()
    chat = Chat(bot(Form(Old, name="person", command="go")))
    await sent(chat, "/go", "Alice")
    await chat.restart(bot(Form(New, name="person", command="go", on_done=done)))
    assert await chat.send("Berlin") == ["Country?"]
    await chat.send("Germany")
    await chat.press("Confirm")
    assert done.values == [New("Alice", "Germany")]


async def test_a_field_that_a_release_adds_is_asked_for_in_the_summary() -> None:
    @dataclass
    class Short:
        name: str

    @dataclass
    class Longer:
        name: str
        city: str

    done = Done()
    chat = Chat(bot(Form(Short, name="longer", command="go")))
    await sent(chat, "/go", "Alice")
    await chat.restart(bot(Form(Longer, name="longer", command="go", on_done=done)))
    assert await chat.press("Confirm") == ["City?"]
    await chat.send("Berlin")
    await chat.press("Confirm")
    assert done.values == [Longer("Alice", "Berlin")]


@dataclass
class Odd:
    items: list[str]


async def parse_slowly(text: str) -> str:
    return text


@dataclass
class EmptyChoice:
    plan: Literal["", "pro"]


@dataclass
class SameChoices:
    plan: Literal[1, "1"]


@dataclass
class Wrong:
    number: int = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Form(dict, name="x"), "Form\\(\\) takes a dataclass, msgspec Struct or pydantic model"),
        (lambda: Form(Applicant, name=""), "the name must have 1 to 32 bytes"),
        (lambda: Form(Applicant, name="x" * 33), "the name must have 1 to 32 bytes"),
        (lambda: Form(Applicant, name="a:b"), "and no colon"),
        (lambda: Form(Applicant, name="x", ask={"nmae": "?"}), "ask= has 'nmae'.*did you mean 'name'"),
        (lambda: Form(Applicant, name="x", ask={"name": 1}), "takes a text or a def function"),  # type: ignore[dict-item]
        (lambda: Form(Applicant, name="x", validate={"mail": print}), "did you mean 'email'"),
        (lambda: Form(Applicant, name="x", validate={"email": "@"}), r"takes a function \(ctx, value\)"),  # type: ignore[dict-item]
        (
            lambda: Form(Applicant, name="x", fields=["name"]),
            "Applicant.email has no default, so the form must ask for it",
        ),
        (lambda: Form(Applicant, name="x", strings={"bakc": "?"}), "strings= has 'bakc'.*did you mean 'back'"),
        (lambda: Form(Applicant, name="x", strings=1), "strings= takes a mapping"),  # type: ignore[arg-type]
        (lambda: Form(Applicant, name="x", on_idle=print), "on_idle= needs idle="),
        (lambda: Form(Applicant, name="x", ask={"name": " "}), "ask= has an empty text for 'name'"),
        (lambda: Form(Applicant, name="x", strings={"done": ""}), "strings= has an empty text for 'done'"),
        (
            lambda: Form(Applicant, name="x", strings={"bad.age": "use {curly}"}),
            r"'bad.age'.* its fields are: \{problem\}",
        ),
        (lambda: Form(Applicant, name="x", strings={"question": "use { brace"}), r"its fields are: \{label\}"),
        (lambda: Form(Applicant, name="x", strings={"cancelled": "{oops}"}), "its fields are: none"),
        (lambda: Form(EmptyChoice, name="x"), "'plan' has the choice '', and a button needs a text"),
        (lambda: Form(SameChoices, name="x"), "SameChoices.plan has two choices with the text '1'"),
        (lambda: Form(Odd, name="x"), r"Odd.items is a list\[str\], which cannot be read from a text.*parse="),
        (lambda: Form(Wrong, name="x"), "the default of Wrong.number does not fit its type"),
    ],
)
def test_a_wrong_option_is_refused_with_a_sentence(make: Any, problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        make()


def test_every_default_string_and_its_fields_may_be_replaced() -> None:
    form = Form(
        Applicant, name="x", strings={**Form.STRINGS, "none": "", "bad.age": "{problem} {{ }}", "ask.name": "{"}
    )
    assert form.name == "x"
    assert Form(EmptyChoice, name="y", strings={"choice.plan.": "None"}).name == "y"


async def test_a_question_that_returns_no_text_is_named() -> None:
    nothing: Any = lambda ctx: None  # noqa: E731
    chat = Chat(bot(Form(Applicant, name="x", command="go", ask={"name": nothing})))
    with pytest.raises(InvalidOption, match=r"ask=\{'name': \.\.\.\} must return a text that is not empty, got None"):
        await chat.send("/go")


async def test_a_lone_surrogate_in_an_answer_is_refused() -> None:
    form, _ = person_form()
    assert await sent(Chat(bot(form)), "/register", "Ali\ud800ce") == "Please send a text."


async def test_a_form_whose_flow_is_not_registered_is_refused() -> None:
    router = Router(FSM("bot", storage="memory://", flows=[]))
    with pytest.raises(UnknownFlowError):
        router.include(Form(Applicant, name="signup").router)


async def test_a_form_with_nothing_to_ask_is_refused() -> None:
    form = Form(Applicant, name="signup", confirm=False)
    fsm = FSM("bot", storage="memory://", flows=[form.flow])
    with pytest.raises(UsageError, match="all fields are known"):
        async with fsm.conversation(key=1) as ctx:
            form.start(ctx, name="A", email="a@b", plan="pro", age=1)


def test_the_flow_declares_the_usual_moves() -> None:
    flow = Form(Applicant, name="signup").flow
    assert flow.states == ("ask_name", "ask_email", "ask_plan", "ask_age", "confirm")
    assert flow.transitions["ask_email"] == ("ask_plan", "ask_name", "confirm")


# Several forms


class Fit(Enum):
    TIGHT = 1


@dataclass
class Shirt:
    fit: Fit
    name: str


@dataclass
class Shoe:
    fit: Fit
    width: int


@pytest.mark.parametrize("order", [("shoe", "shirt"), ("shirt", "shoe")])
async def test_the_enum_of_two_forms_is_stored_under_one_name(order: tuple[str, ...]) -> None:
    models: dict[str, Any] = {"shirt": Shirt, "shoe": Shoe}
    forms = [Form(models[name], name=name, command=name) for name in order]

    def make_router(storage: Any) -> Router:
        router = Router(FSM("bot", storage=storage, flows=[form.flow for form in forms]))
        for form in forms:
            router.include(form.router)
        return router

    storage = MemoryStorage()
    chat = Chat(make_router, storage=storage)
    for name in order:
        await chat.send(f"/{name}")
        await chat.send("tight")
        record = await storage.perform(Get(storage.address("bot", (42, 42))))
        assert '{"$enum":["shirt.Fit","TIGHT"]}' in record.fields["fit"]
        await chat.send("/cancel")
