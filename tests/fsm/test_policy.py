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
from stepwell.fsm.policy import DuplicatePolicy, MissingKeyPolicy, TransitionPolicy, UnknownStatePolicy

WRONG_MOVE = TransitionError("form", "name", "done", allowed=("email", "phone"))
NO_KEY = NoKeyError("poll", "ChatUser")


@pytest.mark.parametrize(
    ("policy", "choices"),
    [
        (TransitionPolicy, ["raise", "log", "ignore", print]),
        (MissingKeyPolicy, ["raise", "log", "ignore"]),
        (DuplicatePolicy, ["raise", "enter"]),
        (UnknownStatePolicy, ["keep", "reset", "raise", print]),
    ],
)
def test_a_policy_takes_its_words_and_refuses_all_others_with_a_list(policy: Any, choices: list[Any]) -> None:
    for choice in choices:
        policy(choice)
    for wrong in ("", "rais", None, True, 5, *(() if print in choices else (print,))):
        with pytest.raises(InvalidOption) as caught:
            policy(wrong)
        message = str(caught.value)
        assert message.startswith(f"{policy.option}={wrong!r}")
        assert all(repr(choice) in message for choice in choices if choice is not print)
        assert ("a function" in message) is (print in choices)


def test_raise_raises_the_transition_error() -> None:
    with pytest.raises(TransitionError) as caught:
        TransitionPolicy("raise").refuse(None, WRONG_MOVE)
    assert (caught.value.flow, caught.value.from_, caught.value.to) == ("form", "name", "done")


def test_log_is_one_warning_and_false(caplog: pytest.LogCaptureFixture) -> None:
    assert TransitionPolicy("log").refuse(None, WRONG_MOVE) is False
    assert MissingKeyPolicy("log").refuse(NO_KEY) is False
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.messages == [str(WRONG_MOVE), str(NO_KEY)]
    assert {record.name for record in caplog.records} == {"stepwell.fsm.policy"}


def test_ignore_is_false_and_silent(caplog: pytest.LogCaptureFixture) -> None:
    assert TransitionPolicy("ignore").refuse(None, WRONG_MOVE) is False
    assert MissingKeyPolicy("ignore").refuse(NO_KEY) is False
    assert caplog.records == []


def test_a_function_gets_context_from_and_to_and_its_result_is_returned() -> None:
    asked = []

    def decide(*arguments: object) -> str:
        asked.append(arguments)
        return "stay"

    assert TransitionPolicy(decide).refuse("ctx", WRONG_MOVE) == "stay"
    assert asked == [("ctx", "name", "done")]


def test_a_missing_key_raises_the_error() -> None:
    with pytest.raises(NoKeyError, match="ChatUser returned no key for this poll update"):
        MissingKeyPolicy("raise").refuse(NO_KEY)


def test_a_duplicate_is_entered_only_when_chosen() -> None:
    assert DuplicatePolicy("enter").enters is True
    assert DuplicatePolicy("raise").enters is False


async def test_an_unknown_state_is_kept_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert await UnknownStatePolicy("keep").resolve(None, "form", "gone") == "keep"
    (message,) = caplog.messages
    assert "'gone'" in message and "'form'" in message and "clear_flow" in message


async def test_an_unknown_state_is_reset_raised_or_given_to_a_function(caplog: pytest.LogCaptureFixture) -> None:
    assert await UnknownStatePolicy("reset").resolve(None, "form", "gone") == "reset"
    with pytest.raises(UnknownStateError, match="'gone' of flow 'form'"):
        await UnknownStatePolicy("raise").resolve(None, "form", "gone")
    asked = []
    assert await UnknownStatePolicy(lambda *given: asked.append(given)).resolve("ctx", "form", "gone") == "keep"
    assert asked == [("ctx", "form", "gone")]
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
def test_a_transition_error_says_what_is_allowed(error: TransitionError, message: str) -> None:
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
def test_errors_cross_processes_with_their_fields(error: StepwellError) -> None:
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))
