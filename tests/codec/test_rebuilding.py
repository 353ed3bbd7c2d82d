"""Instances of registered classes are decoded equal, without a call of their constructors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import Enum
from itertools import permutations
from typing import Any

import msgspec
import pydantic
import pytest

import stepwell
from stepwell import MemoryStorage, State
from stepwell.codec import ensure_registered, types, values
from stepwell.errors import EncodeError, InvalidOption, StoredDataError, UnknownType
from stepwell.record import Limits
from tests.insides import cells_of


def there_and_back(value: Any) -> Any:
    return values.decode(values.encode(value, Limits()).decode())


@stepwell.record_type
@dataclasses.dataclass
class Counted:
    n: int
    seed: dataclasses.InitVar[int]
    doubled: int = dataclasses.field(init=False)

    def __post_init__(self, seed: int) -> None:
        self.n += seed
        self.doubled = self.n * 2


@stepwell.record_type
@dataclasses.dataclass(init=False)
class OwnInit:
    a: int

    def __init__(self, something: str) -> None:
        self.a = len(something)


@stepwell.record_type
@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: int
    b: tuple[int, ...] = (1,)


@stepwell.record_type
class Growing(msgspec.Struct, frozen=True):
    n: int

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "n", self.n + 1)


@stepwell.record_type
class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    a: int = pydantic.Field(alias="b")
    b: int = pydantic.Field(alias="c")


@stepwell.record_type
class Private(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int = 1
    _secret: int = pydantic.PrivateAttr(default=7)
    _unset: int = pydantic.PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        self.a += 1


@stepwell.record_type
class Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    a: list[int] = []


def test_no_constructor_runs_a_second_time() -> None:
    for value in (Counted(1, 5), OwnInit("four"), Slotted(1), Slotted(2, ()), Growing(1), Frozen(a=[1])):
        back = there_and_back(value)
        assert back == value
        assert type(back) is type(value)


def test_pydantic_models_keep_aliases_extras_private_attributes_and_set_fields() -> None:
    aliased = Aliased(a=1, b=2)
    assert there_and_back(aliased) == aliased
    model = Private(cls=1, _fields_set=2)
    model._secret = 8
    back = there_and_back(model)
    assert back == model
    assert (back.a, back._secret, back.model_fields_set) == (2, 8, model.model_fields_set)
    assert there_and_back(Private()).model_dump(exclude_unset=True) == Private().model_dump(exclude_unset=True)


def test_a_field_without_a_value_is_refused_when_it_is_written() -> None:
    value = Counted(1, 1)
    del value.doubled
    with pytest.raises(EncodeError, match=r"\$\.x .*without a value"):
        values.encode({"x": value}, Limits())


def test_a_class_that_does_not_fit_stored_data_is_named_without_the_data() -> None:
    with pytest.raises(StoredDataError) as caught:
        values.decode('{"$record":["Slotted",{"secret":"hunter2"}]}')
    assert "Slotted" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert values.decode('{"$record":["Private",{}]}').a == 1


async def test_a_value_that_this_release_cannot_decode_is_not_damage() -> None:
    async with MemoryStorage() as storage:
        await storage.set_data("bot", 1, {"v": Slotted(1)})
        address = storage.address("bot", 1)
        seal = storage.seal(address)
        cell = cells_of(storage)[address]
        for text in (
            '{"$record":["Slotted",{}]}',
            '{"$datetime":["2026-01-01T00:00:00","Nowhere/At_All",0]}',
            '{"$new":1}',
        ):
            cell.fields["v"] = seal.seal_body("f", "v", text.encode())
            with pytest.raises(StoredDataError) as caught:
                await storage.get_data("bot", 1)
            assert type(caught.value).__name__ != "CorruptRecord"
            assert "bot/1" in caught.value.__notes__[0]
        assert await storage.quarantined("bot", 1) is None


class Named(str, Enum):  # noqa: UP042 the kind that says another text
    A = "registration"


async def test_names_of_a_str_subclass_are_stored_as_plain_str() -> None:
    async with MemoryStorage() as storage:
        await storage.set_state(Named.A, 1, State(Named.A, Named.A))
        assert await storage.get_state("registration", 1) == State("registration", "registration")


@pytest.mark.parametrize(
    "text",
    ['{"$uuid":5}', '{"$bytes":"é"}', '{"$timedelta":[1e400]}', '{"$dict":[1]}', '{"$date":{}}', '{"$record":5}'],
)
def test_hostile_texts_are_typed_errors(text: str) -> None:
    with pytest.raises(StoredDataError):
        values.decode(text)


# Classes that forms, flows and bots register


class Color(Enum):
    RED = 1


@dataclasses.dataclass
class Paint:
    color: str


RED = Paint("red")


class Other:
    class Color(Enum):
        RED = 1


@pytest.fixture
def registry() -> Iterator[None]:
    """Remove the names that a test registers."""
    registered: tuple[Any, ...] = (types.PACKERS, types._UNPACKERS, types._OWNERS, types._AUTOMATIC, types._NAMED)
    kept = [(each, each.copy()) for each in registered]
    yield
    for each, before in kept:
        each.clear()
        each.update(before)


def text_of(value: Any) -> str:
    return values.encode(value, Limits()).decode()


def release(*registrations: tuple[type, str]) -> None:
    """Forget all names of earlier releases, and register these."""
    for cls in (Color, Paint, Other.Color):
        types.PACKERS.pop(cls, None)
        types._AUTOMATIC.pop(cls, None)
        types._NAMED.discard(cls)
        for key in [key for key, owner in types._OWNERS.items() if owner is cls]:
            del types._OWNERS[key], types._UNPACKERS[key]
    for cls, name in registrations:
        ensure_registered(cls, name)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("value", [Color.RED, RED])
def test_the_stored_name_of_a_class_does_not_depend_on_the_order_of_its_registrations(value: Any) -> None:
    kind = type(value)
    names = [f"{form}.{kind.__name__}" for form in ("b", "a", "c")]
    texts = set()
    for order in permutations(names):
        release(*((kind, name) for name in order))
        texts.add(text_of(value))
    assert texts == {text_of(value)}
    # Releases before this one stored the name that was registered first.
    for name in names:
        release((kind, name))
        stored = text_of(value)
        assert name in stored
        for order in permutations(names):
            release(*((kind, each) for each in order))
            assert values.decode(stored) == value
        # The form with this name was removed.
        release(*((kind, each) for each in names if each != name))
        assert values.decode(stored) == value


@pytest.mark.usefixtures("registry")
def test_a_value_of_a_removed_name_is_read_as_another_class_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    release((Color, "gone.Color"))
    stored = text_of(Color.RED)
    release((Color, "kept.Color"))
    for _ in range(3):
        assert values.decode(stored) is Color.RED
    (warning,) = caplog.messages
    assert "no flow, form or bot registers 'gone.Color'; it is read as" in warning
    with pytest.raises(UnknownType, match=r"gone\.Color"):
        values.decode(stored.replace("RED", "MAUVE"))


@pytest.mark.usefixtures("registry")
def test_a_removed_name_that_two_classes_may_have_had_is_unknown() -> None:
    release((Color, "a.Color"))
    stored = text_of(Color.RED)
    release((Color, "b.Color"), (Other.Color, "c.Color"))
    with pytest.raises(UnknownType, match=r"a\.Color"):
        values.decode(stored)
    release((Color, "a.Color"), (Other.Color, "c.Color"))
    assert values.decode(stored) is Color.RED
    assert values.decode(text_of(Other.Color.RED)) is Other.Color.RED
    # The name of another class. Other.Color keeps its own.
    ensure_registered(Other.Color, "a.Color")
    assert values.decode(stored) is Color.RED
    assert values.decode(text_of(Other.Color.RED)) is Other.Color.RED
    release((Color, "a.Color"))
    with pytest.raises(InvalidOption, match="already registered"):
        ensure_registered(Other.Color, "a.Color")


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("first", [True, False])
def test_the_name_given_to_record_type_is_stored_and_others_are_read(first: bool) -> None:
    release((Color, "a.Color"))
    stored = text_of(Color.RED)
    release()
    steps = [lambda: stepwell.record_type(name="paint")(Color), lambda: ensure_registered(Color, "a.Color")]
    for step in steps if first else reversed(steps):
        step()
    ensure_registered(Color, "b.Color")
    assert text_of(Color.RED) == '{"$enum":["paint","RED"]}'
    assert values.decode(stored) is Color.RED
