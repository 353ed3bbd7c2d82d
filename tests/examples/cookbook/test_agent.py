"""The agent: it pays once, whatever happens, and asks before."""

from __future__ import annotations

from typing import Any

import pytest

from examples.cookbook import agent
from stepwell.testing import Chat, Clock
from tests.backends import Backend


@pytest.fixture
def paid(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The amounts that were paid."""
    amounts: list[str] = []

    async def pay(amount: str) -> str:
        amounts.append(amount)
        return f"Receipt for {amount} EUR"

    monkeypatch.setattr(agent, "pay", pay)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return amounts


async def test_it_streams_an_answer_and_remembers_the_conversation(
    backend: Backend, clock: Clock, paid: list[str]
) -> None:
    async with Chat(agent.make_router, storage=backend.storage(clock=clock)) as chat:
        assert await chat.ask("Hello") == ["Message 1 says: Hello"]
        await chat.restart()
        assert await chat.ask("Again") == ["Message 3 says: Again"]
        assert "sendMessageDraft" in [call["method"] for call in chat.calls]
    assert paid == []


async def test_it_pays_only_what_was_approved(paid: list[str]) -> None:
    async with Chat(agent.make_router) as chat:
        assert await chat.ask("pay 20") == ["Really pay 20 EUR?"]
        await chat.restart()
        await chat.press("No")
        assert await chat.advance(0) == ["Message 2 says: The person does not want to pay."]
        assert paid == []
        await chat.ask("pay 30")
        await chat.press("Yes")
        assert "Receipt for 30 EUR" in (await chat.advance(0))[0]
    assert paid == ["30"]


@pytest.mark.parametrize(
    ("point", "answer"),
    [
        ("before tool", "Receipt for 20 EUR"),
        ("in tool", "Nobody knows whether it was paid: ask the bank."),
        ("behind tool", "Receipt for 20 EUR"),
        ("before end", "Receipt for 20 EUR"),
    ],
)
async def test_killed_around_a_payment_it_pays_once_and_says_what_it_knows(
    point: str, answer: str, paid: list[Any]
) -> None:
    async with Chat(agent.make_router) as chat:
        await chat.ask("pay 20")
        chat.kill_next(point)
        await chat.press("Yes")
        await chat.advance(0)
        assert (await chat.advance(30))[-1].endswith(answer)
    assert paid == ["20"]
