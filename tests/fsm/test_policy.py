from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from stepwell.errors import (
    DuplicateUpdate,
    FieldError,
    IncompleteData,
    InvalidFlow,
    InvalidOption,
    NoKeyError,
    StepwellError,
    TransitionError,
    UnknownFlowError,
    UnknownStateError,
)
from stepwell.fsm import FSM
from stepwell.fsm.policy import Policy, UnknownStatePolicy

WRONG_MOVE = TransitionError("form", "name", "done", allowed=("email", "phone"))
NO_KEY = NoKeyError("poll", "ChatUser")


def policy(choice: Any) -> Policy:
    return Policy("on_invalid_transition", choice, ("raise", "log", "ignore"), "(ctx, from_, to)")


def unknown_state(choice: Any) -> UnknownStatePolicy:
    return UnknownStatePolicy("on_unknown_state", choice, ("keep", "reset", "raise"), "(ctx, flow, state)")


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ("on_invalid_transition", ["raise", "log", "ignore", print]),
        ("on_missing_key", ["raise", "log", "ignore"]),
        ("on_duplicate", ["raise", "enter"]),
        ("on_unknown_state", ["keep", "reset", "raise", print]),
    ],
)
def test_an_option_takes_its_words_and_its_error_lists_them(option: str, choices: list[Any]) -> None:
    for choice in choices:
        FSM("bot", storage="memory://", flows=[], **{option: choice})
    for wrong in ("", "rais", None, True, 5, *(() if print in choices else (print,))):
        with pytest.raises(InvalidOption) as caught:
            FSM("bot", storage="memory://", flows=[], **{option: wrong})
        message = str(caught.value)
        assert message.startswith(f"{option}={wrong!r}")
        assert all(repr(choice) in message for choice in choices if choice is not print)
        assert ("a function" in message) is (print in choices)


def test_raise_raises_the_error() -> None:
    with pytest.raises(TransitionError) as caught:
        policy("raise").refuse(WRONG_MOVE)
    assert (caught.value.flow, caught.value.from_, caught.value.to) == ("form", "name", "done")
    with pytest.raises(NoKeyError, match="ChatUser returned no key for this poll update"):
        policy("raise").refuse(NO_KEY)


def test_log_logs_one_warning_and_returns_false(caplog: pytest.LogCaptureFixture) -> None:
    assert policy("log").refuse(WRONG_MOVE) is False
    assert policy("log").refuse(NO_KEY) is False
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.messages == [str(WRONG_MOVE), str(NO_KEY)]
    assert {record.name for record in caplog.records} == {"stepwell.fsm.policy"}


def test_ignore_returns_false_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert policy("ignore").refuse(WRONG_MOVE) is False
    assert caplog.records == []


def test_a_function_gets_the_arguments_and_its_result_is_returned() -> None:
    calls = []

    def decide(*arguments: object) -> str:
        calls.append(arguments)
        return "stay"

    assert policy(decide).refuse(WRONG_MOVE, "ctx", "name", "done") == "stay"
    assert calls == [("ctx", "name", "done")]


async def test_an_unknown_state_is_kept_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert await unknown_state("keep").resolve(None, "form", "gone") == "keep"
    (message,) = caplog.messages
    assert "'gone'" in message and "'form'" in message and "clear_flow" in message


async def test_each_unknown_state_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    policy = unknown_state("keep")
    for state in ("gone", "gone", "lost", "gone", None, None):
        assert await policy.resolve(None, "form", state) == "keep"
    assert [message.split()[3] for message in caplog.messages] == ["'gone'", "'lost'", "None"]


async def test_an_unknown_state_is_reset_raised_or_passed_to_a_function(caplog: pytest.LogCaptureFixture) -> None:
    assert await unknown_state("reset").resolve(None, "form", "gone") == "reset"
    with pytest.raises(UnknownStateError, match="'gone' of flow 'form'"):
        await unknown_state("raise").resolve(None, "form", "gone")
    calls = []
    assert await unknown_state(lambda *given: calls.append(given)).resolve("ctx", "form", "gone") == "keep"
    assert calls == [("ctx", "form", "gone")]
    assert caplog.records == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (WRONG_MOVE, "does not lead from 'name' to 'done'; allowed: 'email', 'phone'"),
        (TransitionError("form", "done", "name"), "allowed: no state"),
        (TransitionError(None, None, "name"), "no flow is active"),
        (TransitionError("form", "form", "shop", starting=True), "'shop' cannot start while 'form' is active"),
        (TransitionError("form", "name", None), "no state before 'name'"),
    ],
)
def test_a_transition_error_lists_the_allowed_states(error: TransitionError, message: str) -> None:
    assert message in str(error)


@pytest.mark.parametrize(
    "error",
    [
        WRONG_MOVE,
        NO_KEY,
        InvalidFlow("form", "is odd"),
        UnknownFlowError("form", ["shop"]),
        UnknownStateError("form", "gone"),
        DuplicateUpdate("('my_bot', (42, 42))", 5),
        FieldError("form", "age", "int", "got str"),
        IncompleteData("FormData", ["age"], {"name": "got int"}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_pickled_errors_keep_their_fields(error: StepwellError) -> None:
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))
