"""The groups of events: which update or timer a write, an error or a Bot API call belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.botapi import WorldEvent
from stepwell.playground.events.group import EventGroup
from stepwell.playground.events.timeline import MAX_EVENTS, MAX_GROUPS, Timeline

FIRED = {"what": "timer fired", "flow": "order", "state": "size"}


class Play:
    """A timeline with a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.changed: list[EventGroup] = []
        self.timeline = Timeline(self.changed.append, clock=lambda: self.now)

    def update(self, number: int, text: str = "hi", *, user: int = 42) -> None:
        message = {"from": {"id": user, "first_name": f"User {user}"}, "chat": {"id": user}, "text": text}
        self.timeline.update(WorldEvent("update", None, None, {"update_id": number, "message": message}))

    def press(self, number: int, query: str) -> None:
        event = {"id": query, "from": {"id": 42}, "message": {"chat": {"id": 42}}, "data": "yes"}
        self.timeline.update(WorldEvent("update", None, None, {"update_id": number, "callback_query": event}))

    def call(self, method: str = "sendMessage", *, ok: bool = True, **params: Any) -> None:
        answer = {"ok": ok} if ok else {"ok": False, "description": "Bad Request: no"}
        self.timeline.call(WorldEvent("call", None, None, {"method": method, **params, "answer": answer}))

    def report(self, update_id: int | None = None, *, at: float | None = None, **more: Any) -> dict[str, Any]:
        return {
            "bot": "bot", "key": "(42,42)", "user": 42, "chat": 42, "at": self.now if at is None else at,
            "duration": 0.0, "update_id": update_id, "error": None, "traceback": None, **more,
        }  # fmt: skip

    def received(self, update_id: int, *, at: float | None = None) -> None:
        self.timeline.received(self.report(update_id, at=at))

    @property
    def titles(self) -> list[list[str]]:
        """The titles of the events of each group, oldest group first."""
        return [[event["title"] for event in group.json()["events"]] for group in self.timeline.groups]


@pytest.fixture
def play() -> Play:
    return Play()


def test_an_update_has_its_writes_calls_key_and_duration(play: Play) -> None:
    play.update(1, "/start")
    play.now += 5  # the bot was busy
    play.received(1)
    play.now += 0.010
    play.timeline.written(play.report(1), "form / name", {"record": {}}, None)
    play.now += 0.002
    play.call(chat_id=42, text="What's your name?")
    (group,) = [each.json() for each in play.timeline.groups]
    assert (group["kind"], group["title"], group["who"], group["key"]) == ("update", "/start", "User 42", "(42,42)")
    assert play.titles == [["form / name", "sendMessage: What's your name?"]]
    assert group["duration"] == pytest.approx(0.012)
    assert not group["failed"]


def test_ten_updates_at_once_each_get_their_own_call(play: Play) -> None:
    for number in range(10):
        play.update(number, f"message {number}")
    for number in range(10):
        play.now += 0.001
        play.received(number)
        play.now += 0.001
        play.call(chat_id=42, text=f"answer {number}")
    assert play.titles == [[f"sendMessage: answer {number}"] for number in range(10)]


def test_a_call_that_arrives_before_the_report_of_its_update_is_moved_to_it(play: Play) -> None:
    play.update(1)
    play.update(2)
    play.received(1, at=1000.001)
    play.now = 1000.002
    play.call(chat_id=42, text="one")
    play.now = 1000.004
    play.call(chat_id=42, text="two")
    assert play.titles == [["sendMessage: one", "sendMessage: two"], []]
    play.received(2, at=1000.003)
    assert play.titles == [["sendMessage: one"], ["sendMessage: two"]]


def test_a_call_to_another_chat_belongs_to_the_update_that_is_handled(play: Play) -> None:
    play.update(1, "hello", user=43)
    play.received(1)
    play.call(chat_id=43, text="hi")
    play.now += 60
    play.update(2, "notify user 43")
    play.received(2)
    play.call(chat_id=43, text="a notice")
    assert play.titles == [["sendMessage: hi"], ["sendMessage: a notice"]]


def test_the_answer_of_a_slow_handler_belongs_to_its_own_chat(play: Play) -> None:
    play.update(1, "think", user=43)
    play.received(1)
    play.now += 20
    play.update(2, "quick")
    play.received(2)
    play.call(chat_id=42, text="done")
    play.now += 20
    play.call(chat_id=43, text="thought")
    assert play.titles == [["sendMessage: thought"], ["sendMessage: done"]]


def test_the_answer_to_a_button_belongs_to_its_press(play: Play) -> None:
    play.press(1, "q1")
    play.update(2)
    play.received(2)
    play.call("answerCallbackQuery", callback_query_id="q1")
    assert play.titles == [["answerCallbackQuery"], []]


def test_a_repeated_update_is_a_group_of_its_own_and_says_that_it_was_handled_before(play: Play) -> None:
    play.update(1)
    play.received(1)
    play.call(chat_id=42, text="hello")
    play.now += 1
    play.update(1)
    play.now += 1
    play.received(1)
    play.timeline.repeated(play.report(1))
    play.call(chat_id=42, text="hello")
    first, second = [each.json() for each in play.timeline.groups]
    assert (first["again"], first["duplicate"], second["again"], second["duplicate"]) == (False, None, True, "answered")
    assert play.titles == [["sendMessage: hello"], ["sendMessage: hello"]]


def test_an_answer_that_is_repeated_after_a_kill_is_not_an_answer_of_its_own(play: Play) -> None:
    play.update(1)
    for _ in range(2):
        play.received(1)
        play.call(chat_id=42, text="hello")
    play.timeline.repeated(play.report(1))
    (group,) = play.timeline.groups
    assert (len(group.calls), len(group.own_calls)) == (2, 1)


def test_claims_of_a_framework_tell_which_update_is_handled(play: Play) -> None:
    play.update(1)
    play.update(2)
    for number in (1, 2):
        play.now += 0.001
        play.timeline.claimed(play.report(ids=[42]))
        play.now += 0.001
        play.call(chat_id=42, text=str(number))
        play.now += 0.001
        play.timeline.written(play.report(ids=[42]), f"state {number}", {}, None)
    assert play.titles == [["sendMessage: 1", "state 1"], ["sendMessage: 2", "state 2"]]


def test_an_error_is_at_its_update_with_its_traceback(play: Play) -> None:
    play.update(1)
    play.update(2)
    play.received(1)
    play.received(2)
    play.timeline.failed(play.report(1, error="ValueError: no", traceback="Traceback ..."))
    first, second = [each.json() for each in play.timeline.groups]
    assert (first["failed"], second["failed"]) == (True, False)
    assert first["events"][0]["json"] == {"error": "ValueError: no", "traceback": "Traceback ..."}


def test_a_timer_is_a_group_with_its_write_and_calls(play: Play) -> None:
    play.update(1)
    play.received(1)
    play.now += 600
    play.timeline.written(play.report(duration=0.001), "order / drink", {"record": {}}, None)
    play.timeline.fired(play.report(**FIRED, duration=0.002))
    play.call(chat_id=42, text="Too late.")
    timer = play.timeline.groups[-1].json()
    assert (timer["kind"], timer["title"], timer["user"]) == ("timer", "timer fired: order / size", 42)
    assert play.titles == [[], ["order / drink", "sendMessage: Too late."]]


def test_a_timer_that_an_update_applies_is_an_event_of_that_update(play: Play) -> None:
    play.update(1)
    play.received(1)
    play.timeline.fired(play.report(1, **FIRED))
    assert play.titles == [["timer fired: order / size"]]


def test_jobs_at_different_times_are_different_groups(play: Play) -> None:
    for _ in range(2):
        play.timeline.written(play.report(), "order / drink", {}, None)
        play.now += 10
    assert [group.kind for group in play.timeline.groups] == ["job", "job"]


def test_a_refused_call_is_marked_and_calls_for_the_bot_itself_are_hidden(play: Play) -> None:
    play.call("getMe")
    play.call("setMyCommands", ok=False)
    play.update(1)
    play.call(ok=False, chat_id=42)
    refused, update = [each.json() for each in play.timeline.groups]
    assert (refused["kind"], refused["failed"]) == ("call", True)
    assert (update["failed"], play.titles[-1]) == (True, ["sendMessage: Bad Request: no"])


def test_groups_and_their_events_are_limited(play: Play) -> None:
    for number in range(2 * MAX_GROUPS):
        play.update(number)
    for number in range(2 * MAX_EVENTS):
        play.call(chat_id=42, text=str(number))
    assert len(play.timeline.groups) == MAX_GROUPS
    assert len(play.timeline.groups[-1].events) == MAX_EVENTS
