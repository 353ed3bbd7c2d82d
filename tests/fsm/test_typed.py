from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

import msgspec
import pydantic
import pytest

from stepwell.errors import FieldError, IncompleteData
from stepwell.fsm.flows.typed import build, check_field, check_fields, is_data_type


class Colour(enum.Enum):
    red = "red"


@dataclass
class Address:
    city: str


@dataclass
class AsDataclass:
    name: str
    age: int
    born: date | None = None
    tags: list[str] = field(default_factory=list)


class AsStruct(msgspec.Struct, rename="camel"):
    name: str
    age: Annotated[int, msgspec.Meta(ge=0)]
    born: date | None = None
    tags: list[str] = []


class AsTypedDict(TypedDict):
    name: str
    age: int
    born: NotRequired[date | None]
    tags: NotRequired[list[str]]


class Loose(TypedDict, total=False):
    name: Required[str]
    age: Required[int]
    born: date | None
    tags: list[str]


class AsPydantic(pydantic.BaseModel, frozen=True):
    name: str
    age: int = pydantic.Field(alias="howOld", ge=0)
    born: date | None = None
    tags: list[str] = []

    @pydantic.model_validator(mode="after")
    def _grown(self) -> AsPydantic:
        if self.name == "Methuselah" and self.age < 900:
            raise ValueError("too young")
        return self


TYPES: list[Any] = [AsDataclass, AsStruct, AsTypedDict, Loose, AsPydantic]
each_type = pytest.mark.parametrize("kind", TYPES)


@each_type
def test_four_kinds_of_data_type_are_accepted(kind: Any) -> None:
    assert is_data_type(kind)


@each_type
@pytest.mark.parametrize(
    ("name", "value"),
    [("name", "Alice"), ("age", 7), ("born", date(1852, 5, 4)), ("born", None), ("tags", []), ("tags", ["a"])],
)
def test_a_field_of_the_declared_type_is_accepted(kind: Any, name: str, value: object) -> None:
    check_field("form", kind, name, value)


@each_type
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("name", 5, "str"),
        ("name", None, "str"),
        ("age", "7", "int"),
        ("age", True, "int"),
        ("age", 7.0, "int"),
        ("born", "1852-05-04", "date"),
        ("tags", "a", "list[str]"),
        ("tags", [5], "list[str]"),
    ],
)
def test_the_error_for_a_wrong_field_names_flow_field_and_type(
    kind: Any, name: str, value: object, expected: str
) -> None:
    with pytest.raises(FieldError) as caught:
        check_field("form", kind, name, value)
    error = caught.value
    assert (error.flow, error.field) == ("form", name)
    assert expected in error.expected
    for part in ("'form'", repr(name), expected):
        assert part in str(error)
    assert isinstance(error, TypeError)


@each_type
@pytest.mark.parametrize("name", ["nmae", 5, None, ("a",)])
def test_the_error_for_an_undeclared_field_lists_the_declared(kind: Any, name: object) -> None:
    with pytest.raises(FieldError, match="one of name, age, born, tags"):
        check_field("form", kind, name, "x")


@pytest.mark.parametrize("kind", [AsStruct, AsPydantic])
def test_a_limit_of_a_field_is_checked(kind: Any) -> None:
    with pytest.raises(FieldError, match="'age'"):
        check_field("form", kind, "age", -1)


def test_each_field_is_checked_although_others_are_missing() -> None:
    check_fields("form", AsPydantic, {"name": "Methuselah"})
    check_fields("form", AsPydantic, {"age": 3})
    check_fields("form", AsDataclass, {})


def test_without_a_data_type_every_field_is_accepted() -> None:
    check_fields("form", None, {"x": object(), 5: None})


def test_a_pydantic_model_with_extras_accepts_other_fields() -> None:
    class Open(pydantic.BaseModel, extra="allow"):
        name: str

    check_field("form", Open, "whatever", object())
    assert build(Open, {"name": "a", "x": 1}).model_extra == {"x": 1}


def test_a_validator_that_needs_other_fields_does_not_refuse_a_single_field() -> None:
    class Curious(pydantic.BaseModel):
        one: int = 1
        two: int = 2

        @pydantic.model_validator(mode="before")
        @classmethod
        def _look(cls, values: Any) -> Any:
            values["two"]
            return values

    check_field("form", Curious, "one", 5)


@dataclass
class Wide:
    where: Address
    colour: Colour
    mode: Literal["a", "b"]
    either: Address | AsStruct
    price: Decimal
    many: dict[str, Address]
    anything: Any


def test_classes_enums_literals_and_unions_are_supported() -> None:
    good = {
        "where": Address("Oxford"),
        "colour": Colour.red,
        "mode": "a",
        "either": Address("Oxford"),
        "price": Decimal("1.20"),
        "many": {"home": Address("Oxford")},
        "anything": object(),
    }
    check_fields("form", Wide, good)
    assert build(Wide, good).where == Address("Oxford")
    for name, value in {"where": 5, "colour": "blue", "mode": "c", "price": 1.2, "many": {"home": 5}}.items():
        with pytest.raises(FieldError):
            check_field("form", Wide, name, value)


class Level(enum.Enum):
    low = 1
    high = 2


class WithLevel(msgspec.Struct):
    level: Level
    best: Level | None = None


def test_members_with_numbers_are_accepted() -> None:
    check_fields("form", WithLevel, {"level": Level.low, "best": Level.high})
    assert build(WithLevel, {"level": Level.low, "best": Level.high}) == WithLevel(Level.low, Level.high)
    for value in (3, Colour.red):
        with pytest.raises(FieldError):
            check_field("form", WithLevel, "level", value)


class KeywordOnly(msgspec.Struct, kw_only=True):
    given: int = 5
    needed: str


@dataclass(kw_only=True)
class WithComputed:
    needed: str
    computed: str = field(init=False)

    def __post_init__(self) -> None:
        self.computed = self.needed.upper()


@pytest.mark.parametrize("kind", [KeywordOnly, WithComputed])
def test_the_required_fields_are_those_of_the_constructor(kind: Any) -> None:
    with pytest.raises(IncompleteData) as caught:
        build(kind, {})
    assert caught.value.missing == ("needed",)
    assert build(kind, {"needed": "x"}).needed == "x"


def test_annotations_that_cannot_be_resolved_raise() -> None:
    class Hidden: ...

    @dataclass
    class Local:
        hidden: Hidden

    with pytest.raises(TypeError, match="annotations of Local cannot be resolved"):
        check_field("form", Local, "hidden", 5)


@each_type
def test_an_object_is_built_from_its_fields(kind: Any) -> None:
    data = {"name": "Alice", "age": 7, "born": date(1852, 5, 4)}
    built = build(kind, data)
    read = built.get if isinstance(built, dict) else lambda name: getattr(built, name)
    assert (read("name"), read("age"), read("born")) == ("Alice", 7, date(1852, 5, 4))
    assert isinstance(built, dict if kind in (AsTypedDict, Loose) else kind)


@each_type
def test_the_error_names_missing_and_wrong_fields(kind: Any) -> None:
    with pytest.raises(IncompleteData) as caught:
        build(kind, {"tags": 5})
    assert caught.value.missing == ("name", "age")
    assert list(caught.value.wrong) == ["tags"]
    assert f"is not a complete {kind.__name__} yet: missing 'name', 'age'; 'tags': " in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_the_error_of_a_model_validator_is_reported_for_the_model() -> None:
    with pytest.raises(IncompleteData, match="too young"):
        build(AsPydantic, {"name": "Methuselah", "age": 3})


@pytest.mark.parametrize("kind", [AsDataclass, AsStruct, AsTypedDict, AsPydantic])
def test_fields_that_the_type_does_not_have_are_left_out(kind: Any) -> None:
    built = build(kind, {"name": "Alice", "age": 7, "other": 1})
    assert "other" not in (built if isinstance(built, dict) else dir(built))


def test_building_an_unsupported_type_raises() -> None:
    with pytest.raises(TypeError, match="data_as"):
        build(int, {})
