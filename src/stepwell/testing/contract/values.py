"""Promises of values: they come back equal, and unsupported ones are refused before the write."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from stepwell.errors import EncodeError, InvalidName, TooLarge
from stepwell.record import State
from stepwell.storage import Storage
from stepwell.testing.contract.suite import Suite

#: Values that JSON, jsonb, Lua or a careless tag would change.
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**30, -(10**5000),
    0.0, -0.0, 1.0, 0.1, 1e16, 1e22, 5e-324, 1.7976931348623157e308,
    "", "a", "NUL \0 inside", "🙂 é e\u0301", "\u2028\x7f\x1b", '"quoted" \\ back', "1", "null", "$",
    b"", b"\x00\xff", [], [1, [2, []]], (), (1, (2,)), {}, {"b": 1, "a": 2}, set(), {1, "a"}, frozenset({1}),
    {1: "int", "1": "str", None: 0, (1, 2): [3], b"b": 1, 1.5: 1, Decimal("1.1"): 1, frozenset({1}): 2, True + 1: 0},
    {"$tuple": [1]}, {"$dict": []}, {"$unknown": 1}, {"$": {"$set": [1]}}, {"$int": "0x1", "b": 2}, ["$tuple", [1]],
    dt.datetime(2026, 1, 2, 3, 4, 5, 6), dt.datetime(2026, 1, 2, tzinfo=dt.UTC), dt.date(1, 1, 1), dt.time(23, 59, 1),
    dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-5, minutes=-30))),
    dt.datetime.max, dt.time(1, fold=1),
    dt.datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1), dt.time(1, 2, tzinfo=dt.UTC),
    dt.timedelta(days=-1, microseconds=1), Decimal("1.10"), Decimal("-0"), Decimal("1E+100"), Decimal("Infinity"),
    UUID(int=7), [{"deep": [({"a": {1: {Decimal(1)}}},)]}],
]  # fmt: skip

REFUSED: list[tuple[Any, str]] = [
    (object(), "object"),
    (float("nan"), "float"),
    (float("inf"), "float"),
    (Decimal("NaN"), "Decimal"),
    ("\ud800", "str"),
    (bytearray(b"x"), "bytearray"),
    (1j, "complex"),
    (len, "builtin"),
    (type("Unregistered", (), {})(), "Unregistered"),
]


class ValuePromises(Suite):
    async def test_every_value_comes_back_equal_and_of_the_same_type(self, storage: Storage) -> None:
        given = {f"v{number}": value for number, value in enumerate(VALUES)}
        await storage.set_state("bot", 1, State("f", "s", given))
        await storage.update_data("bot", 2, given)
        for key in (1, 2):
            back = await storage.get_data("bot", key)
            assert back is not None
            assert back.keys() == given.keys()
            for name, value in given.items():
                assert same(back[name], value), f"{value!r} came back as {back[name]!r}"

    async def test_keys_of_the_data_may_be_of_any_hashable_type(self, storage: Storage) -> None:
        given = {
            key: number for number, key in enumerate(["", "$", "$x", "a.b", "a\0", 1, "1", None, (1, "2"), b"\0", 2.5])
        }
        await storage.set_data("bot", 1, given)
        assert await storage.update_data("bot", 1, {(1, "2"): "new", 7: "more"}) == {
            **given,
            (1, "2"): "new",
            7: "more",
        }

    async def test_the_order_inside_a_value_is_kept(self, storage: Storage) -> None:
        await storage.set_data("bot", 1, {"v": {"b": 1, "a": 2, "c": {"z": 1, "y": 2}}})
        data = await storage.get_data("bot", 1)
        assert data is not None
        assert list(data["v"]) == ["b", "a", "c"]
        assert list(data["v"]["c"]) == ["z", "y"]

    async def test_flow_and_state_may_have_any_name_without_control_characters(self, storage: Storage) -> None:
        for name in ("", "é", "a:b", "null", "None", "🙂", "a b", "x" * 300):
            await storage.set_state("bot", 1, State(name, name, {}))
            assert await storage.get_state("bot", 1) == State(name, name, {})
        for name in ("\0", "a\nb"):
            with pytest.raises(InvalidName):
                await storage.set_state("bot", 1, State(name, name, {}))

    async def test_an_unsupported_value_is_refused_with_path_and_type(self, storage: Storage) -> None:
        await storage.set_state("bot", 1, State("f", "s", {"a": 1}))
        for value, name in REFUSED:
            data = {"a": 2, "cart": [0, {"price": value}]}
            for write in (storage.update_data, storage.set_data):
                with pytest.raises(EncodeError) as caught:
                    await write("bot", 1, data)
                assert caught.value.path == "$.cart[1].price"
                assert name in caught.value.type_name
            with pytest.raises(EncodeError):
                await storage.set_state("bot", 1, State("f", "s", data))
        assert await storage.get_state("bot", 1) == State("f", "s", {"a": 1})

    async def test_a_value_nested_too_deeply_or_in_itself_is_refused(self, storage: Storage) -> None:
        loop: list[Any] = []
        loop.append(loop)
        with pytest.raises(EncodeError, match="nested"):
            await storage.set_data("bot", 1, {"a": loop})
        assert await storage.get_state("bot", 1) is None

    async def test_a_record_above_its_limit_is_refused_and_stays_unchanged(self, storage: Storage) -> None:
        chunk = "é" * (storage.limits.record // 8)
        await storage.set_state("bot", 1, State("f", "s", {"a": chunk, "b": chunk, "c": chunk}))
        with pytest.raises(TooLarge):
            await storage.update_data("bot", 1, {"d": chunk, "small": 1})
        with pytest.raises(TooLarge):
            await storage.set_data("bot", 1, {"x": chunk * 5})
        assert await storage.get_state("bot", 1) == State("f", "s", {"a": chunk, "b": chunk, "c": chunk})
        await storage.update_data("bot", 1, {"a": ""})
        assert await storage.update_data("bot", 1, {"d": chunk}) == {"a": "", "b": chunk, "c": chunk, "d": chunk}

    async def test_a_record_with_many_fields_comes_back_complete(self, storage: Storage) -> None:
        given = {f"field {number}": number for number in range(500)}
        await storage.set_data("bot", 1, given)
        assert await storage.get_data("bot", 1) == given


def same(one: Any, other: Any) -> bool:
    """Return whether two values and their parts have equal types and values; 0.0 and -0.0 differ."""
    return bool(one == other) and _shape(one) == _shape(other)


def _shape(value: Any) -> str:
    kind = type(value).__qualname__
    if isinstance(value, list | tuple):
        return f"{kind}{[_shape(item) for item in value]}"
    if isinstance(value, set | frozenset):
        return f"{kind}{sorted(_shape(item) for item in value)}"
    if isinstance(value, dict):
        return f"{kind}{sorted((_shape(key), _shape(item)) for key, item in value.items())}"
    if isinstance(value, dt.datetime | dt.time):
        return f"{kind} {value.isoformat()} {value.fold}"
    return f"{kind} {value!r}" if not isinstance(value, int) else f"{kind} {value:x}"
