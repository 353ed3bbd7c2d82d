"""The data that a Mini App gets from Telegram."""

from __future__ import annotations

import hashlib
import hmac
import json
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.telegram import read_init_data

TOKEN = "42:secret"
FIELDS = {"auth_date": "1000", "query_id": "AA", "user": json.dumps({"id": 42, "first_name": "Ann & Bo"})}


def signed(fields: dict[str, str], token: str = TOKEN) -> str:
    """Sign fields as the Bot API's documentation says."""
    lines = "\n".join(f"{name}={value}" for name, value in sorted(fields.items()))
    key = hmac.new(b"WebAppData", token.encode(), hashlib.sha256).digest()
    return urlencode({**fields, "hash": hmac.new(key, lines.encode(), hashlib.sha256).hexdigest()})


def test_signed_data_is_read() -> None:
    found = read_init_data(signed(FIELDS), TOKEN, clock=lambda: 1001.0)
    assert found == {"auth_date": "1000", "query_id": "AA", "user": {"id": 42, "first_name": "Ann & Bo"}}


@pytest.mark.parametrize(
    "data",
    [
        signed(FIELDS, "43:secret"),
        signed(FIELDS).replace("42", "43"),
        signed(FIELDS) + "&more=1",
        signed({**FIELDS, "auth_date": "1"}),
        signed({**FIELDS, "auth_date": "x"}),
        signed({"user": "{}"}),
        signed({**FIELDS, "user": "{"}),
        urlencode(FIELDS),
        "",
        "x" * 20_000,
    ],
)
def test_other_data_is_not(data: str) -> None:
    assert read_init_data(data, TOKEN, clock=lambda: 90_000.0) is None


@given(st.text(max_size=100))
def test_garbage_is_not(data: str) -> None:
    assert read_init_data(data, TOKEN) is None
