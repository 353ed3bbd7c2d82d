from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from stepwell import record_type
from stepwell.codec.json import from_json
from stepwell.codec.values import encode
from stepwell.operate.masking import MASK, masked
from stepwell.record import Limits


@record_type(name="masking.Card")
@dataclass
class Card:
    number: str
    __stepwell_secret__ = True


@record_type(name="masking.Account")
@dataclass
class Account:
    owner: str
    balance: int
    password: str
    __stepwell_secret__ = frozenset({"balance"})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"name": "Anna", "token": "t"}, {"name": "Anna", "token": MASK}),
        ({"token": None}, {"token": None}),
        ([{"deep": {"dbPassword": [1]}}], [{"deep": {"dbPassword": MASK}}]),
        ({1: "a", "pin": 2}, {"$dict": [[1, "a"], ["pin", MASK]]}),
        ((1, {"secret": 2}), {"$tuple": [1, {"secret": MASK}]}),
        (Card("4111"), {"$record": ["masking.Card", MASK]}),
        (
            {"account": Account("Anna", 5, "p")},
            {"account": {"$record": ["masking.Account", {"owner": "Anna", "balance": MASK, "password": MASK}]}},
        ),
    ],
)
def test_secrets_are_masked_by_field_name_and_by_marked_class(value: Any, shown: Any) -> None:
    assert masked(from_json(encode(value, Limits()))) == shown
