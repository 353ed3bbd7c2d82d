from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from stepwell.errors import InvalidFlow, InvalidOption
from stepwell.fsm import (
    Filter,
    Flow,
    Update,
    callback,
    command,
    content,
    fsm_flow,
    fsm_in_flow,
    fsm_state,
    kind,
    state,
    text,
)
from stepwell.fsm.filters import as_filter
from tests.fsm.updates import find


class Form(Flow, name="form"):
    email = state()


class Other(Flow, name="other"):
    email = state()


@dataclass
class Context:
    flow: str | None = None
    state: str | None = None
    data: dict[Any, Any] = field(default_factory=dict)
    update: Update = field(default_factory=lambda: Update.of({}))
    match: re.Match[str] | None = None


EMPTY = Context()
IN_FORM = Context(flow="form", state="email", data={"age": 7, "none": None})
IN_OTHER = Context(flow="other", state="email")
BEFORE = Context(flow="form", state=None)


def with_text(words: str, *, where: str = "message") -> Context:
    return Context(update=Update.of({"update_id": 1, where: {"chat": {"id": 1}, "from": {"id": 1}, "text": words}}))


def pressed(data: str | None) -> Context:
    update = find("callback_query", "in a private chat")
    update["callback_query"]["data"] = data
    return Context(update=Update.of(update))


@pytest.mark.parametrize("flow", [Form, Form(), "form", SimpleNamespace(flow_name="form")])
def test_fsm_flow_matches_the_active_flow_by_class_object_or_name(flow: object) -> None:
    wanted = fsm_flow(flow)
    assert [wanted(ctx) for ctx in (IN_FORM, BEFORE, IN_OTHER, EMPTY)] == [True, True, False, False]


def test_fsm_flow_none_matches_no_active_flow() -> None:
    assert [fsm_flow(None)(ctx) for ctx in (EMPTY, IN_FORM)] == [True, False]


def test_fsm_state_by_name_matches_that_state_in_any_flow() -> None:
    assert [fsm_state("email")(ctx) for ctx in (IN_FORM, IN_OTHER, BEFORE, EMPTY)] == [True, True, False, False]


def test_fsm_state_by_state_matches_that_state_in_its_flow() -> None:
    assert [fsm_state(Form.email)(ctx) for ctx in (IN_FORM, IN_OTHER, EMPTY)] == [True, False, False]


def test_fsm_state_none_matches_no_state() -> None:
    assert [fsm_state(None)(ctx) for ctx in (EMPTY, BEFORE, IN_FORM)] == [True, True, False]


@pytest.mark.parametrize(
    ("pair", "expected"),
    [(("age", 7), True), (("age", 8), False), (("none", None), True), (("missing", None), False)],
)
def test_fsm_state_of_a_pair_reads_the_data_and_a_missing_field_never_matches(
    pair: tuple[Any, Any], expected: bool
) -> None:
    assert fsm_state(pair)(IN_FORM) is expected
    assert fsm_state(pair)(EMPTY) is False


def test_fsm_in_flow_matches_any_active_flow() -> None:
    assert [fsm_in_flow()(ctx) for ctx in (IN_FORM, BEFORE, EMPTY)] == [True, True, False]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("/start", True),
        ("/start@my_bot deep-link", True),
        ("/START", True),
        ("/help\nme", True),
        ("/starting", False),
        ("start", False),
        ("please /start", False),
    ],
)
def test_command_matches_one_of_its_names(words: str, expected: bool) -> None:
    assert command("start", "/Help")(with_text(words)) is expected


def test_command_without_names_matches_any_command() -> None:
    assert command()(with_text("/whatever"))
    assert not command()(with_text("whatever"))


def test_a_command_for_another_bot_can_be_ignored() -> None:
    mine = command("start", bot="@My_Bot")
    assert [mine(with_text(words)) for words in ("/start", "/start@my_bot", "/start@other_bot")] == [True, True, False]


@pytest.mark.parametrize("where", ["edited_message", "edited_channel_post", "edited_business_message"])
def test_an_edited_message_matches_only_with_edited(where: str) -> None:
    assert not command("start")(with_text("/start", where=where))
    assert command("start", edited=True)(with_text("/start", where=where))
    assert not text("hi")(with_text("hi", where=where))
    assert text("hi", edited=True)(with_text("hi", where=where))


@pytest.mark.parametrize("name", ["two words", "", "start!", 5])
def test_an_invalid_command_is_refused(name: Any) -> None:
    with pytest.raises(InvalidOption, match="command"):
        command(name)


def test_text_of_a_string_matches_an_equal_text() -> None:
    assert [text("yes")(with_text(words)) for words in ("yes", "Yes", "yes!")] == [True, False, False]


def test_text_of_a_regex_searches_and_stores_its_match() -> None:
    ctx = with_text("I am 42 years old")
    assert text(re.compile(r"(\d+) years"))(ctx)
    assert ctx.match is not None
    assert ctx.match.group(1) == "42"
    assert not text(re.compile(r"^\d+$"))(ctx)


def test_text_alone_matches_any_text_except_a_command() -> None:
    assert text()(with_text("Alice"))
    assert text(re.compile("^/"))(with_text("/cancel"))
    assert not text()(with_text("/cancel"))
    assert not text()(Context(update=Update.of(find("message", "a contact"))))
    assert not text()(pressed("yes"))


def test_callback_matches_the_data_of_a_button() -> None:
    assert [callback("yes")(ctx) for ctx in (pressed("yes"), pressed("no"), with_text("yes"))] == [True, False, False]
    ctx = pressed("buy:7")
    assert callback(re.compile(r"^buy:(\d+)$"))(ctx)
    assert ctx.match is not None
    assert ctx.match.group(1) == "7"


def test_callback_alone_matches_any_button_even_without_data() -> None:
    assert [callback()(ctx) for ctx in (pressed("x"), pressed(None), with_text("x"))] == [True, True, False]
    assert not callback("x")(pressed(None))


def test_kind_matches_one_of_its_names() -> None:
    wanted = kind("message", "poll")
    assert [wanted(ctx) for ctx in (with_text("x"), pressed("x"), EMPTY)] == [True, False, False]


@pytest.mark.parametrize("names", [(), (5,)])
def test_kind_needs_names(names: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidOption, match="kind"):
        kind(*names)


def with_fields(where: str = "message", **fields: Any) -> Any:
    return Context(update=Update.of({"update_id": 1, where: {"message_id": 1, **fields}}))


@pytest.mark.parametrize(
    ("ctx", "expected"),
    [
        (with_fields(document={"file_id": "1"}), True),
        (with_fields("channel_post", photo=[{"file_id": "1"}]), True),
        (with_fields(photo=[]), False),
        (with_fields(text="hi"), False),
        (with_fields("edited_message", document={}), False),
        (with_fields("callback_query", document={}), False),
        (EMPTY, False),
    ],
)
def test_content_matches_a_message_that_has_one_of_these_fields(ctx: Any, expected: bool) -> None:
    assert content("document", "photo")(ctx) is expected


def test_content_alone_matches_what_a_person_sends_and_no_notice() -> None:
    wanted = content()
    assert wanted(with_fields(text="hi"))
    assert wanted(with_fields("business_message", sticker={}))
    assert not wanted(with_fields(new_chat_members=[{"id": 1}]))
    assert content("forum_topic_closed")(with_fields(forum_topic_closed={}))
    assert content("document", edited=True)(with_fields("edited_message", document={}))


@pytest.mark.parametrize("name", ["", 5])
def test_content_takes_names(name: Any) -> None:
    with pytest.raises(InvalidOption, match="content"):
        content(name)


def test_filters_combine_with_and_or_not() -> None:
    yes, no = fsm_flow("form"), fsm_flow("other")
    assert (yes & yes)(IN_FORM) and not (yes & no)(IN_FORM)
    assert (yes | no)(IN_FORM) and not (no | no)(IN_FORM)
    assert (~no)(IN_FORM) and not (~yes)(IN_FORM)
    assert (yes & ~no | no)(IN_FORM)


def test_a_function_of_the_context_may_be_either_operand() -> None:
    def grown(ctx: Any) -> Any:
        return ctx.data.get("age")

    for joined in (fsm_in_flow() & grown, grown & fsm_in_flow(), as_filter(grown)):
        assert [joined(ctx) for ctx in (IN_FORM, BEFORE)] == [True, False]
    for joined in (fsm_flow("x") | grown, grown | fsm_flow("x")):
        assert joined(IN_FORM) is True


def test_the_second_filter_is_not_called_if_the_first_decides() -> None:
    def never(ctx: Any) -> bool:
        raise AssertionError

    assert not (fsm_flow("other") & never)(IN_FORM)
    assert (fsm_flow("form") | never)(IN_FORM)


def test_the_operators_and_or_not_raise() -> None:
    with pytest.raises(TypeError, match=r"& \| ~"):
        fsm_flow("form") and fsm_in_flow()


def test_a_filter_has_the_flows_that_it_names() -> None:
    filters: Filter = (fsm_flow(Form) | ~fsm_state(Other.email)) & fsm_state("x") & text() & fsm_flow(None)
    assert filters.flows == {"form", "other"}


@pytest.mark.parametrize("given", [5, None, "form", fsm_flow])
def test_a_value_that_is_not_a_filter_is_refused(given: Any) -> None:
    with pytest.raises(InvalidOption, match="not a filter"):
        as_filter(given)


def test_wrong_arguments_are_refused_when_the_filter_is_made() -> None:
    with pytest.raises(InvalidFlow):
        fsm_flow(5)
    for wrong in (5, ("a", "b", "c"), ["a", "b"]):
        with pytest.raises(InvalidOption, match="fsm_state"):
            fsm_state(wrong)  # type: ignore[arg-type]
    for make in (text, callback):
        for pattern in (5, re.compile(rb"x")):
            with pytest.raises(InvalidOption, match=r"re\.compile"):
                make(pattern)  # type: ignore[arg-type]
