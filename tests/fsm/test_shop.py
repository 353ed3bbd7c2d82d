"""The example shop: timeouts, going back, an inner flow, a deploy during a conversation."""

from __future__ import annotations

import subprocess
import sys

import pytest
from examples.shop import NextShop, make_router

from stepwell import State
from stepwell.testing import Chat, Clock
from tests.backends import Backend


@pytest.fixture
async def chat(backend: Backend, clock: Clock) -> Chat:
    return Chat(make_router, storage=backend.storage(clock=clock))


async def to_delivery(chat: Chat) -> None:
    for words in ("/shop", "tea", "cups", "/checkout", "Main Street 1"):
        await chat.send(words)
    assert await chat.send("Berlin") == ["By post, or by bike?"]


async def test_an_inner_flow_asks_for_the_address(chat: Chat) -> None:
    await to_delivery(chat)
    assert await chat.record() == State(
        "shop", "delivery", {"items": ["tea", "cups"], "address": "Main Street 1, Berlin"}
    )
    assert await chat.send("bike") == ["By bike to Main Street 1, Berlin. Pay now?"]
    assert await chat.send("/back") == ["Back at delivery."]


async def test_an_abandoned_cart_is_emptied(chat: Chat) -> None:
    await chat.send("/shop")
    await chat.send("tea")
    assert await chat.advance(1700) == []
    assert await chat.advance(200) == ["Your cart of 1 was emptied. /shop to begin again."]
    assert await chat.record() is None
    assert chat.last == "Your cart of 1 was emptied. /shop to begin again."


async def test_without_a_payment_the_bot_asks_for_the_delivery_again(chat: Chat) -> None:
    await to_delivery(chat)
    await chat.send("post")
    await chat.advance(601)
    record = await chat.record()
    assert record is not None
    assert record.state == "delivery"


async def test_a_release_that_renames_a_state_migrates_all_conversations(chat: Chat) -> None:
    await to_delivery(chat)
    inside = chat.user(43)
    for words in ("/shop", "tea", "/checkout", "Side Street 2"):
        await inside.send(words)
    await chat.restart(lambda storage: make_router(storage, NextShop))
    assert await chat.send("bike") == ["By bike to Main Street 1, Berlin. Pay now?"]
    assert await inside.send("Rome") == ["By post, or by bike?"]
    assert await inside.record() == State("shop", "shipping", {"items": [("tea", 1)], "address": "Side Street 2, Rome"})


async def test_an_old_conversation_expires_after_a_week(chat: Chat) -> None:
    await to_delivery(chat)
    await chat.advance(8 * 24 * 3600)
    assert await chat.record() is None


def test_the_example_runs() -> None:
    done = subprocess.run([sys.executable, "examples/shop.py"], capture_output=True, text=True, check=True)
    assert "Back at shipping." in done.stdout
