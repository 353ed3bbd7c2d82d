"""Fixtures: a flow, a machine and updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepwell.fsm import FSM, Flow, state
from tests.backends import Backend


class Form(Flow, name="form"):
    name = state(to=["email"])
    email = state(to=["done", "name"])
    done = state(to=[])
    default_state = name


class Open(Flow, name="open"):
    a = state()
    b = state()
    default_state = None


class Mixed(Flow, name="mixed"):
    first = state(to=["first", "second"])
    second = state()
    default_state = first


Make = Callable[..., FSM]


@pytest.fixture
def make_fsm(backend: Backend) -> Make:
    """Return a function that makes machines on this test's storage."""
    storage = backend.storage()

    def make(**options: Any) -> FSM:
        return FSM("bot", **{"storage": storage, "flows": [Form, Open, Mixed], **options})

    return make


@pytest.fixture
def fsm(make_fsm: Make) -> FSM:
    return make_fsm()


def message(
    text: str = "hi", *, user: int = 42, chat: int = 42, update_id: int | None = None, **more: Any
) -> dict[str, Any]:
    """Return a message in the form of the Bot API."""
    update: dict[str, Any] = {
        "message": {
            "message_id": 1,
            "date": 1_700_000_000,
            "chat": {"id": chat, "type": "private" if chat > 0 else "supergroup"},
            "from": {"id": user, "is_bot": False, "first_name": "A", "language_code": "de"},
            "text": text,
            **more,
        }
    }
    return update if update_id is None else {"update_id": update_id, **update}


POLL = {"update_id": 900, "poll": {"id": "1", "question": "?", "options": [], "total_voter_count": 0}}
