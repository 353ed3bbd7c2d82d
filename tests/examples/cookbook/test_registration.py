"""The registration: what it asks is tested beside the wizard without a form; here is what it keeps."""

from __future__ import annotations

from examples.cookbook import registration
from stepwell.testing import Chat


async def test_killed_before_the_last_answer_the_person_is_registered_once_and_stays_known() -> None:
    chat = Chat(registration.make_router)
    assert await chat.send("/me") == ["Nobody yet. /register"]
    for text in ("/register", "Alice", "alice@example.com"):
        await chat.send(text)
    chat.kill_next()
    await chat.press("Confirm")
    assert (await chat.redeliver())[-1] == "Registered! Welcome, Alice!"
    await chat.restart()
    assert await chat.send("/me") == ["Alice, alice@example.com"]
