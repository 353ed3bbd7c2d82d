"""Encoding and decoding in pieces gives the same texts and values as in one call."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.codec import pieces, values
from stepwell.errors import EncodeError, StoredDataError
from stepwell.record import Limits
from stepwell.testing.contract.values import same
from tests.codec.test_values import EVERYTHING, cpu_time
from tests.constants import Constants
from tests.reliability.dose import dose

TEXTS = st.text(alphabet='[]{},:"\\aü\n', max_size=60)
TREES = st.recursive(
    TEXTS | st.integers(-5, 1000) | st.none(),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(TEXTS, inner, max_size=8),
    max_leaves=80,
)


@pytest.fixture(autouse=True)
def small_pieces(constants: Constants) -> None:
    constants(piece_bytes=16, few_pieces=3)


@settings(max_examples=dose("TREES", 60, 2000))
@given(TREES)
def test_a_tree_is_the_same_in_pieces_and_at_once(tree: Any) -> None:
    text = values.to_json(tree)
    assert pieces.dump(tree, lambda value, left: value, 99) == text
    assert pieces.load(text.decode(), 500) == tree


@settings(max_examples=dose("VALUES", 60, 1000))
@given(EVERYTHING)
def test_every_value_is_the_same_in_pieces_and_at_once(value: Any) -> None:
    text = values.encode(value, Limits(), large=True)
    assert text == values.encode(value, Limits())
    assert same(values.decode(text.decode()), value)


@settings(max_examples=dose("DAMAGED_TEXTS", 60, 2000))
@given(TREES, st.data())
def test_a_damaged_text_is_refused_in_pieces_and_at_once(tree: Any, data: st.DataObject) -> None:
    text = values.to_json(tree).decode()
    at = data.draw(st.integers(0, len(text)))
    damaged = (
        text[:at] + data.draw(st.sampled_from(["", "[", "]", "{", "}", ",", '"', "\\", "1", ":"])) + text[at + 1 :]
    )
    try:
        expected = values.from_json(damaged)
    except msgspec.DecodeError:
        with pytest.raises(msgspec.DecodeError):
            pieces.load(damaged, 500)
    else:
        assert pieces.load(damaged, 500) == expected


def test_the_limit_of_depth_holds_in_pieces() -> None:
    most = 4 * Limits().depth + 8
    nested = "[" * most + "1" + "]" * most
    assert values.decode(nested)
    for text in (f"[{nested}]", f'[1,2,"{"x" * 100}",{nested}]', f'{{"a":{nested},"b":{"[" * 9 + "]" * 9}}}'):
        with pytest.raises(StoredDataError, match="deeper"):
            values.decode(text)


def test_the_limit_of_depth_is_the_same_in_pieces_and_at_once() -> None:
    for make in (lambda inner: [inner] * 5, lambda inner: (inner,), lambda inner: {"a": inner, "b": 1, "c": 1, "d": 1}):
        value: Any = 1
        for _ in range(4):
            value = make(value)
        assert values.encode(value, Limits(depth=4), large=True) == values.encode(value, Limits(depth=4))
        with pytest.raises(EncodeError, match="deep"):
            values.encode([value], Limits(depth=4), large=True)


def test_large_sets_have_one_text() -> None:
    numbers = [str(number) for number in range(9000)]
    text = values.encode(set(numbers), Limits())
    backwards = set()
    for number in reversed(numbers):
        backwards.add(number)
    assert text == values.encode(backwards, Limits())
    assert values.from_json(text) == {"$set": sorted(numbers, key=values.to_json)}


@pytest.mark.parametrize(
    "make",
    [
        lambda: [{"id": n, "name": f"Ann {n}", "tags": ["a", "b"]} for n in range(50_000)],
        lambda: [[1, 2]] * 250_000,
        lambda: {"a": {"b": [list(range(350_000))]}},
        lambda: {f"k{n}": n for n in range(150_000)},
        lambda: {f"id{n}" for n in range(100_000)},
        lambda: ["word, [word]"] * 150_000,
    ],
    ids=["records", "pairs", "nested", "dict", "set", "strings"],
)
def test_no_call_for_a_large_value_takes_long(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    value = make()
    monkeypatch.undo()
    longest = 0.0

    def timed(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal longest
            begun = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                longest = max(longest, time.thread_time() - begun)

        return call

    for module, names in ((pieces, ("_to_json", "_from_json", "_brackets")), (values, ("sorted", "_is_exact"))):
        for name in names:
            monkeypatch.setattr(module, name, timed(getattr(module, name, sorted)), raising=False)
    # A garbage collection may happen in any call, and takes long with many objects.
    gc.disable()
    try:
        text = values.encode(value, Limits(), large=True).decode()
        assert values.decode(text) == value
    finally:
        gc.enable()
    monkeypatch.undo()
    whole = min(cpu_time(values.from_json, text) for _ in range(2))
    assert longest < max(0.01, whole / 5)
