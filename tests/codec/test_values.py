from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.codec import Seal, address_of, pieces, values
from stepwell.errors import CorruptRecord, EncodeError, InvalidOption, StoredDataError, TooLarge, UnknownType
from stepwell.record import Limits
from stepwell.testing.contract.values import same
from tests.reliability.dose import dose

LIMITS = Limits()


def there_and_back(value: Any) -> Any:
    return values.decode(values.encode(value, LIMITS).decode())


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.binary(),
    st.datetimes(timezones=st.none() | st.timezones()),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
)
HASHABLES = st.recursive(
    SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
EVERYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(HASHABLES, inner, max_size=3)
        | st.dictionaries(st.text("$abct", max_size=3), inner, max_size=2)
        | st.sets(HASHABLES, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=dose("VALUES", 150, 4000))
@given(EVERYTHING)
def test_every_supported_value_is_decoded_equal_and_of_the_same_type(value: Any) -> None:
    assert same(there_and_back(value), value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Alice", '"Alice"'),
        ({"price": 9.5, "tags": ["a", None]}, '{"price":9.5,"tags":["a",null]}'),
        ((1, 2), '{"$tuple":[1,2]}'),
        ({3, 1, 2}, '{"$set":[1,2,3]}'),
        ({"$set": [1]}, '{"$dict":[["$set",[1]]]}'),
        (2**80, '{"$int":"0x100000000000000000000"}'),
    ],
)
def test_stored_values_are_readable(value: Any, text: str) -> None:
    assert values.encode(value, LIMITS).decode() == text


@stepwell.record_type
class Color(enum.Enum):
    RED = 1
    BLUE = "b"


@stepwell.record_type
class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@stepwell.record_type(name="level")
class Level(enum.IntEnum):
    LOW = 1


@stepwell.record_type
@dataclasses.dataclass
class Line:
    name: str
    price: Any = 0
    seen: list[int] = dataclasses.field(default_factory=list, init=False)


@stepwell.record_type
@dataclasses.dataclass(frozen=True)
class Upper:
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text + "!")


@stepwell.record_type
class Point(msgspec.Struct, frozen=True):
    x: int
    y: tuple[int, ...] = ()


@stepwell.record_type
class Person(pydantic.BaseModel):
    name: str
    friends: list[Any] = []


def test_registered_classes_are_decoded_equal_and_of_the_same_type() -> None:
    line = Line("tea", Color.RED)
    line.seen.append(1)
    for value in (
        Color.RED,
        Color.BLUE,
        Rights.READ | Rights.WRITE,
        Rights(0),
        Level.LOW,
        line,
        Upper("a"),
        Point(1, (2,)),
    ):
        back = there_and_back({"v": [value], value if value.__hash__ else "k": 1})
        assert back["v"] == [value]
        assert type(back["v"][0]) is type(value)
    person = Person(name="Ann", friends=[Person(name="Bob"), Point(1), {1, 2}])
    assert there_and_back(person) == person


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (len, "is a function, which cannot be stored; store a name instead"),
        (lambda: 1, "is a function, which cannot be stored; store a name instead"),
        ([].append, "is a function, which cannot be stored; store a name instead"),
        (functools.partial(len), "is a function, which cannot be stored; store a name instead"),
        (dict, "is a class, which cannot be stored; store a name instead"),
        (collections.defaultdict(list), "is a dict of another class, which cannot be stored; store dict(value)"),
        (collections.Counter("a"), "is a dict of another class, which cannot be stored; store dict(value)"),
        (bytearray(b"x"), "is not of the class bytes; store bytes(value)"),
        (Path("x"), "is of a class of Python that cannot be stored; store its plain values, such as str(value)"),
        (range(3), "is of a class of Python that cannot be stored; store its plain values, such as str(value)"),
        (collections.deque([1]), "is a sequence of another class, which cannot be stored; store list(value)"),
    ],
)
def test_a_value_of_a_class_that_no_decorator_can_register_is_refused_with_what_to_store(value: Any, why: str) -> None:
    with pytest.raises(EncodeError) as caught:
        values.encode({"a": value}, LIMITS)
    assert why in str(caught.value)
    assert "record_type" not in str(caught.value)


def test_an_unregistered_class_is_refused_with_path_and_type() -> None:
    @dataclasses.dataclass
    class Cart:
        items: list[Any]

    with pytest.raises(EncodeError, match=r"\$\.cart.*Cart.*record_type"):
        values.encode({"cart": Cart([])}, LIMITS)
    with pytest.raises(EncodeError) as caught:
        values.encode({"line": [Line("x", price=[object()])]}, LIMITS)
    assert caught.value.path == "$.line[0].price[0]"


def test_a_subclass_of_a_plain_type_is_not_silently_flattened() -> None:
    class Name(str):
        __slots__ = ()

    for value in (Name("x"), type("Ints", (list,), {})([1]), type("D", (dict,), {})(a=1)):
        with pytest.raises(EncodeError):
            values.encode(value, LIMITS)


def test_an_unregistered_tag_raises_unknown_type_when_decoded() -> None:
    with pytest.raises(UnknownType, match=r"'Cart'.*record_type"):
        values.decode('{"$record":["Cart",{"items":[]}]}')
    with pytest.raises(UnknownType, match=r"\$future"):
        values.decode('{"$future":1}')


def test_a_class_may_gain_fields_with_defaults_and_lose_fields() -> None:
    assert values.decode('{"$record":["Line",{"name":"tea","gone":1}]}') == Line("tea", 0)
    with pytest.raises(StoredDataError, match=r"Line.*default"):
        values.decode('{"$record":["Line",{"price":1}]}')
    with pytest.raises(StoredDataError, match="Color"):
        values.decode('{"$enum":["Color","GREEN"]}')


def test_a_name_cannot_be_registered_for_two_classes() -> None:
    with pytest.raises(InvalidOption, match=r"'level' is already registered.*name="):

        @stepwell.record_type(name="level")
        class Other(enum.Enum):
            A = 1


def test_a_class_that_cannot_be_decoded_is_not_registered() -> None:
    with pytest.raises(InvalidOption, match="dataclasses"):

        @stepwell.record_type
        class Plain:
            pass

    with pytest.raises(InvalidOption, match="name"):
        stepwell.record_type("name")  # type: ignore[call-overload]


def seal(limit: int = 1000) -> Seal:
    return Seal(address_of("bot", (1, 2), LIMITS), LIMITS, limit)


def test_every_flipped_bit_cut_or_zeroed_byte_is_detected() -> None:
    for text in (seal().field("name", {"a": [1, "é"]}), seal().field("name", 7)):
        raw = text.encode()
        damaged = [raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :] for at in range(len(raw)) for bit in range(8)]
        damaged += [raw[:at] for at in range(len(raw))]
        damaged += [raw[:at] + b"\0" + raw[at + 1 :] for at in range(len(raw))]
        for bad in damaged:
            with pytest.raises(CorruptRecord):
                seal().data({"name": bad.decode("utf-8", "surrogateescape")})


def test_a_value_under_another_key_or_name_is_detected() -> None:
    text = seal().field("name", "Alice")
    with pytest.raises(CorruptRecord):
        seal().data({"other": text})
    elsewhere = Seal(address_of("bot", (1, 3), LIMITS), LIMITS, 1000)
    with pytest.raises(CorruptRecord, match=r"bot/\(1,3\)"):
        elsewhere.data({"name": text})
    with pytest.raises(CorruptRecord):
        seal().open_head(text)


def test_limits_hold_before_writing_and_before_parsing() -> None:
    with pytest.raises(TooLarge):
        seal(limit=10).field("name", "x" * 11)
    with pytest.raises(TooLarge, match="limit is 10"):
        seal(limit=10).data({"name": seal().field("name", "x" * 50)})
    deep = "[" * 5000 + "]" * 5000
    with pytest.raises(StoredDataError, match="deeper"):
        values.decode(deep)
    assert values.decode('"' + "[" * 5000 + '"') == "[" * 5000


def nesting(text: str) -> int:
    """Return the nesting depth, counted character by character."""
    deepest = depth = 0
    quoted = escaped = False
    for char in text:
        if quoted:
            escaped, quoted = char == "\\" and not escaped, escaped or char != '"'
        elif char == '"':
            quoted = True
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


TEXTS = st.text(alphabet='[]{}"\\aü', max_size=12)
TREES = st.recursive(
    TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=30
)


@settings(max_examples=dose("TREES", 100, 3000))
@given(TREES, st.integers(1, 12))
def test_the_depth_of_a_stored_text_is_counted_without_its_strings(tree: Any, limit: int) -> None:
    text = values.to_json(tree).decode()
    assert pieces.too_deep(text, limit) is (nesting(text) > limit)


def test_a_text_at_the_limit_of_depth_is_read_and_a_deeper_one_is_refused() -> None:
    value: Any = "deep"
    for _ in range(LIMITS.depth):
        value = (value,)
    assert there_and_back(value) == value
    most = 4 * LIMITS.depth + 8
    assert values.decode("[" * most + "]" * most)
    with pytest.raises(StoredDataError, match="deeper"):
        values.decode("[" * (most + 1) + "]" * (most + 1))


def test_a_large_text_with_many_brackets_is_decoded_without_a_loop_over_its_characters() -> None:
    text = values.to_json([{"text": "[x]" * 300, "tags": ["[", "\\"]}] * 900).decode()
    assert len(text) > 800_000
    # Any loop over the characters executes several instructions for each.
    assert instructions(nesting, text) > 10 * len(text)
    assert instructions(values.decode, text) < len(text) / 2
    assert instructions(pieces.too_deep, text, 100) < 1_000
    # In turns, because the speed of a machine changes.
    times = [[cpu_time(nesting, text), cpu_time(pieces.too_deep, text, 100)] for _ in range(5)]
    loop, counting = map(min, zip(*times, strict=True))
    assert counting < loop / 3


def instructions(function: Any, *args: Any) -> int:
    """Return how many instructions of Python a call executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args)
    finally:
        sys.settrace(before)
    return count


def cpu_time(function: Any, *args: Any) -> float:
    begun = time.thread_time()
    function(*args)
    return time.thread_time() - begun
