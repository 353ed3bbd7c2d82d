from __future__ import annotations

import enum
import os
import random
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.codec import Seal, decode_key, decode_namespace, encode_key, encode_namespace
from stepwell.errors import CorruptRecord, InvalidKey, TooLarge
from stepwell.nodes.run.table import flow_index, flow_of_index, run_head
from stepwell.record import RUNS, Address, Limits, OpenedHead, Place

PARTS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(st.characters(exclude_categories=["Cs"])), st.binary()
)
KEYS = st.recursive(PARTS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)


def typed(key: Any) -> Any:
    """Return a form that is equal only for keys of equal type and value."""
    return (type(key), tuple(typed(part) for part in key)) if isinstance(key, tuple) else (type(key), key)


@given(KEYS)
def test_a_key_is_decoded_equal(key: Any) -> None:
    assert typed(decode_key(encode_key(key))) == typed(key)


@given(KEYS, KEYS)
def test_different_keys_have_different_texts(one: Any, other: Any) -> None:
    assert (encode_key(one) == encode_key(other)) == (typed(one) == typed(other))


def test_a_million_random_keys_do_not_collide() -> None:
    count = 1_000_000 if os.environ.get("STEPWELL_DOSE") == "large" else 50_000
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    leaves: list[Any] = [
        0,
        1,
        -1,
        True,
        False,
        None,
        "",
        "0",
        "1",
        "a",
        "(",
        ")",
        ",",
        '"',
        "x",
        b"",
        b"1",
        "None",
        "\\",
    ]

    def key(depth: int) -> Any:
        if depth and rng.random() < 0.6:
            return tuple(key(depth - 1) for _ in range(rng.randrange(4)))
        return rng.choice(leaves) if rng.random() < 0.7 else rng.getrandbits(40)

    texts: dict[str, Any] = {}
    for _ in range(count):
        one = typed(key(3))
        text = encode_key(_untyped(one))
        assert texts.setdefault(text, one) == one
    assert len(texts) > count // 10


def _untyped(key: Any) -> Any:
    kind, value = key
    return tuple(_untyped(part) for part in value) if kind is tuple else value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ((42, 42), "(42,42)"),
        ((-100, 7, 42), "(-100,7,42)"),
        ("Ev123", '"Ev123"'),
        (("shop", None, True), '("shop",None,True)'),
        ((1,), "(1,)"),
        (b"\x00\xff", 'x"00ff"'),
    ],
)
def test_keys_are_readable(key: Any, text: str) -> None:
    assert encode_key(key) == text


def test_keys_of_one_chat_have_a_common_prefix() -> None:
    assert all(encode_key((-100, user)).startswith("(-100,") for user in (1, "a", None))


class Kind(enum.IntEnum):
    A = 1


@pytest.mark.parametrize("key", [1.5, Kind.A, uuid.UUID(int=1), [1], {1: 2}, (1, (Kind.A,)), object(), bytearray(b"")])
def test_an_unsupported_type_is_refused_and_named(key: Any) -> None:
    with pytest.raises(InvalidKey, match=r"keys are str, int"):
        encode_key(key)


def test_a_key_nested_in_itself_or_too_deeply_is_refused() -> None:
    key: Any = ()
    for _ in range(100):
        key = (key,)
    with pytest.raises(InvalidKey, match="deep"):
        encode_key(key)


@pytest.mark.parametrize("text", ["", "(", "(1", "1)", '"a', 'x"0', "(1,2", "nope", "()()", "(1 2)"])
def test_a_damaged_key_is_a_typed_error(text: str) -> None:
    with pytest.raises(CorruptRecord):
        decode_key(text)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_a_bots_name_is_encoded_without_control_characters_and_decoded_equal(name: str) -> None:
    text = encode_namespace(name, Limits(key=10_000))
    assert decode_namespace(text) == name
    assert all(ord(char) >= 32 for char in text)
    assert text != RUNS


@given(
    st.tuples(st.text('a/\\" ', min_size=1), st.text("a/", max_size=3)),
    st.tuples(st.text('a/\\" ', min_size=1), st.text("a/", max_size=3)),
)
def test_different_addresses_have_different_texts(one: tuple[str, str], other: tuple[str, str]) -> None:
    def text(pair: tuple[str, str]) -> str:
        return Address(encode_namespace(pair[0], Limits()), encode_key(pair[1])).text

    assert (text(one) == text(other)) == (one == other)


def test_a_bots_name_above_its_limit_is_refused() -> None:
    with pytest.raises(TooLarge):
        encode_namespace("x" * 600, Limits())


def test_a_head_is_opened_as_it_was_given() -> None:
    seal = Seal(Address("bot", "1"), Limits(), 1000)
    for head in (
        OpenedHead(Place("flow", "state")),
        OpenedHead(Place("flow", None, 2)),
        OpenedHead(Place("f", '{"', 1), {"timeout": 1.5}),
        OpenedHead(Place(None, None), {}, '{"a":[1,{"b":"é"}]}'),
        OpenedHead(Place("f", "s"), {"x": 2.0}, "[]", ("f@2", "failed")),
    ):
        sealed = seal.head(head)
        assert seal.open_head(sealed.text) == head
        assert (sealed.flow, sealed.state) == (head.indexed or (head.place.flow, head.place.state))


def test_a_head_of_another_form_is_damaged() -> None:
    seal = Seal(Address("bot", "1"), Limits(), 1000)
    for body in (
        b"{}",
        b'["f"]',
        b'["f",1]',
        b'["f","s","1"]',
        b'["f","s",1,{"t":"soon"}]',
        b'["f","s",1,{},["x"]]',
        b"[",
    ):
        with pytest.raises(CorruptRecord, match="unknown format"):
            seal.open_head(seal.seal_body("h", "", body))


@pytest.mark.parametrize("flow", ["f", "f@2", "@", "a@", "a@@", "@1", "a@@2", "a/b@2"])
@pytest.mark.parametrize("revision", [1, 2, 10])
def test_the_index_text_of_a_revision_is_unique_and_can_be_read(flow: str, revision: int) -> None:
    assert flow_of_index(flow_index(flow, revision)) == (flow, revision)


def test_the_first_revision_is_indexed_by_the_name_of_its_flow() -> None:
    assert flow_index("f") == flow_index("f", 1) == "f"
    assert flow_index("f", 2) == "f@2"
    assert flow_index("f@2") == "f@@2"


def test_runs_are_indexed_by_revision_and_status() -> None:
    table = {"status": "failed", "graph": "g"}
    assert run_head(Place("f", "node", 2), table, Limits()).indexed == ("f@2", "failed")
    assert run_head(Place("f", "node"), table, Limits()).indexed == ("f", "failed")
