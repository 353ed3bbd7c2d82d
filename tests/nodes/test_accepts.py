"""Waits that accept values of a type only: what does not fit is refused before it is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from msgspec import Meta, Struct
from pydantic import BaseModel, Field, field_validator

from stepwell import Storage, record_type
from stepwell.codec.accepted import Accepted, problem_in
from stepwell.errors import InvalidAnswer, InvalidOption, Parked
from stepwell.nodes import NodeFlow, Wait, linear
from stepwell.nodes.engine import answer as answer_as_operator
from tests.backends import Backend


@record_type(name="accepted line")
@dataclass
class Line:
    item: str
    count: Annotated[int, Meta(ge=1)] = 1


@dataclass
class Decision:
    approved: bool
    until: date | None = None
    lines: list[Line] = field(default_factory=list)


class Rating(BaseModel):
    stars: int = Field(ge=1, le=5)
    text: str = ""

    @field_validator("text")
    @classmethod
    def _polite(cls, text: str) -> str:
        if "bad" in text:
            raise ValueError("be polite")
        return text


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Named(TypedDict):
    name: str


class Point(Struct):
    x: int
    y: int


@pytest.fixture
async def storage(backend: Backend) -> Storage:
    storage = backend.storage()
    await storage.open()
    return storage


async def ask(storage: Storage, accepts: Any, flow_id: str = "r", **options: Any) -> tuple[NodeFlow, str]:
    flow = linear(Wait("answer", accepts=accepts, **options), name="asking", storage=storage, keep=True)
    with pytest.raises(Parked) as parked:
        await flow.run({}, flow_id=flow_id)
    return flow, parked.value.id


@pytest.mark.every_backend
async def test_an_answer_that_does_not_fit_is_refused_and_the_run_still_waits(storage: Storage) -> None:
    flow, wait = await ask(storage, Decision)
    with pytest.raises(InvalidAnswer, match=r"'answer' of run 'r' does not fit: .*bool.*approved.*nothing was") as told:
        await flow.answer(wait, {"approved": "perhaps"})
    assert (told.value.flow_id, told.value.node) == ("r", "answer")
    with pytest.raises(InvalidAnswer, match="lines"):
        await flow.resume(wait, {"approved": True, "lines": [{"item": "pen", "count": 0}]})
    assert [each.id for each in (await flow.status("r")).waits] == [wait]
    final = await flow.resume(wait, {"approved": True, "until": "2030-01-02", "lines": [{"item": "pen"}]})
    assert final == {"answer": Decision(approved=True, until=date(2030, 1, 2), lines=[Line("pen")])}


@pytest.mark.parametrize(
    ("accepts", "fits", "value", "wrong"),
    [
        (bool, True, True, "yes"),
        (Literal["yes", "no"], "yes", "yes", "maybe"),
        (Annotated[int, Meta(ge=1, le=5)], 3, 3, 9),
        (list[str], ["a"], ["a"], ["a", 1]),
        (dict[str, int], {"a": 1}, {"a": 1}, {"a": "b"}),
        (int | None, None, None, "1"),
        (tuple[int, str], [1, "a"], (1, "a"), [1]),
        (Size, "s", Size.SMALL, "m"),
        (Named, {"name": "Ann"}, {"name": "Ann"}, {}),
        (Point, {"x": 1, "y": 2}, Point(1, 2), {"x": 1}),
        (Point, Point(1, 2), Point(1, 2), {"x": 1, "y": 2.5}),
        (Rating, {"stars": 5}, Rating(stars=5), {"stars": 6}),
        (Rating, Rating(stars=1), Rating(stars=1), {"text": "x"}),
        (Decision, Decision(approved=False), Decision(approved=False), {"approved": True, "lines": {}}),
    ],
)
async def test_types_of_many_kinds_are_checked_with_and_without_the_code(
    storage: Storage, accepts: Any, fits: Any, value: Any, wrong: Any
) -> None:
    flow, wait = await ask(storage, accepts)
    operator = NodeFlow(name="asking")
    with pytest.raises(InvalidAnswer):
        await flow.answer(wait, wrong)
    with pytest.raises(InvalidAnswer):
        await answer_as_operator(operator, wait, wrong, storage=storage)
    assert (await flow.status("r")).waits[0].accepts == Accepted(accepts, "answer").schema
    assert await flow.resume(wait, fits) == {"answer": value}
    _, second = await ask(storage, accepts, "s")
    plain = Accepted(accepts, "answer").plain(fits)
    assert await answer_as_operator(operator, second, plain, storage=storage)
    assert await flow.resume("s") == {"answer": value}


async def test_the_validators_of_a_model_are_called_and_its_values_are_not_shown(storage: Storage) -> None:
    flow, wait = await ask(storage, Rating)
    with pytest.raises(InvalidAnswer, match=r"be polite - at `\$\.text`") as told:
        await flow.answer(wait, {"stars": 1, "text": "bad secret"})
    assert "secret" not in str(told.value)


async def test_what_only_the_code_refuses_fails_the_run_which_takes_another_answer(storage: Storage) -> None:
    flow, wait = await ask(storage, Rating)
    assert await answer_as_operator(NodeFlow(name="asking"), wait, {"stars": 1, "text": "bad"}, storage=storage)
    with pytest.raises(ValueError, match="be polite"):
        await flow.resume("r")
    assert await flow.resume("r", {"stars": 2}) == {"answer": Rating(stars=2)}


async def test_a_signal_that_does_not_fit_is_refused(storage: Storage) -> None:
    flow, _ = await ask(storage, int, signal="paid")
    with pytest.raises(InvalidAnswer, match="the signal 'paid' for 'answer' of run 'r' does not fit"):
        await flow.signal("r", "paid", "much")
    await flow.signal("r", "paid", 20)
    assert await flow.resume("r") == {"answer": 20}


def test_a_type_without_a_schema_is_refused() -> None:
    with pytest.raises(InvalidOption, match="has no JSON schema"):
        Wait("answer", accepts=object())


def test_schemas_that_refer_to_themselves_and_unknown_keywords_are_checked_as_far_as_they_are_known() -> None:
    tree: dict[str, Any] = {"$ref": "#/$defs/T", "$defs": {"T": {"type": "array", "items": {"$ref": "#/$defs/T"}}}}
    assert problem_in([[], [[]]], tree) is None
    assert problem_in([[], [[1]]], tree) == "Expected array, got integer - at `$[1][0][0]`"
    assert problem_in({"a": 1}, {"additionalProperties": False}) == "Object contains unknown field `a`"
    assert problem_in("a", {"pattern": "^b"}) == "Expected a text that matches '^b'"
    assert problem_in("", {"minLength": 1}) == "Expected a length of at least 1"
    assert problem_in([1, 2], {"maxItems": 1}) == "Expected a length of at most 1"
    assert problem_in(1, {"oneOf": [{"type": "string"}, {"allOf": [{"minimum": 2}]}]}) == "Expected string, got integer"
    assert problem_in(1, {"unknown": True, "type": ["integer", "null"]}) is None
