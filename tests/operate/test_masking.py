"""Secrets are masked by the names of fields, and by markers on fields and classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NewType, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from stepwell import Secret, record_type
from stepwell.codec.json import from_json
from stepwell.codec.secret import secret_fields
from stepwell.codec.values import encode
from stepwell.operate.masking import MASK, masked, masked_text
from stepwell.record import Limits

Account = NewType("Account", Annotated[str, Secret])  # type: ignore[valid-newtype]


@record_type(name="masking.Card")
@dataclass
class Card:
    number: str
    __stepwell_secret__ = True


@record_type(name="masking.Payment")
@dataclass
class Payment:
    amount: int
    account: Annotated[str, Secret]
    note: Annotated[str, Secret()] | None = None
    password: str = "p"


@record_type(name="masking.Offer")
class Offer(msgspec.Struct):
    amount: int
    account: Annotated[str, Secret] = ""


@record_type(name="masking.Model")
class Model(pydantic.BaseModel, extra="allow"):
    amount: int
    account: Annotated[str, Secret] = ""


class Answers(TypedDict):
    amount: int
    account: NotRequired[Annotated[str, Secret]]
    lines: list[Annotated[str, Secret]]


class Unresolved:
    amount: int
    account: Annotated[Missing, Secret]  # type: ignore[name-defined] # noqa: F821


class Aliased(Payment):
    iban: Account


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
            {"payment": Payment(5, "DE1")},
            {
                "payment": {
                    "$record": ["masking.Payment", {"amount": 5, "account": MASK, "note": None, "password": MASK}]
                }
            },
        ),
        (Offer(5, "DE1"), {"$record": ["masking.Offer", {"amount": 5, "account": MASK}]}),
        (Model(amount=5, account="DE1"), {"$record": ["masking.Model", {"amount": 5, "account": MASK}]}),
    ],
)
def test_secrets_are_masked_by_field_name_and_by_marker(value: Any, shown: Any) -> None:
    assert masked(from_json(encode(value, Limits()))) == shown


def test_a_model_with_extra_fields_is_masked_too() -> None:
    shown = str(masked(from_json(encode(Model(amount=5, account="DE1", pin="1234"), Limits()))))  # type: ignore[call-arg]
    assert "DE1" not in shown
    assert "1234" not in shown


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (Payment, {"account", "note"}),
        (Answers, {"account", "lines"}),
        (Unresolved, {"account"}),
        (Aliased, {"account", "note", "iban"}),
        (dict, set()),
    ],
)
def test_the_marker_may_be_anywhere_in_an_annotation(cls: type, names: set[str]) -> None:
    assert secret_fields(cls) == names


def test_a_secret_behind_another_name_is_masked() -> None:
    assert masked_text("ValueError: password=hunter2") == f"ValueError: password={MASK}"
    assert masked_text('at "a": {"api_key": "k", "name": "Ann"}') == f'at "a": {{"api_key": {MASK}, "name": "Ann"}}'


@pytest.mark.parametrize("piece", ["x", "a:", "a://:", "a://b:c", "1:", 'token="', "a-", "sk-", "eyJ."])
def test_the_time_to_mask_a_text_is_in_proportion_to_its_size(piece: str) -> None:
    # If it were not, this would take minutes.
    masked_text(piece * (300_000 // len(piece)))
