"""Updates of people, and a sender that keeps what was sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from stepwell.turns import Turns
from tests.until import until

#: The conversation of the private chat of user 42.
ANN = (42, 0)


class People:
    """People who write to a bot, and what the bot has sent to them."""

    def __init__(self) -> None:
        self._ids = count(1)
        self.sent: list[dict[str, Any]] = []

    async def send(self, call: dict[str, Any]) -> None:
        self.sent.append(call)

    @property
    def texts(self) -> list[str]:
        return [call["text"] for call in self.sent if call["method"] == "sendMessage"]

    def message(self, text: str | None = None, *, user: int = 42, chat: int | None = None, **fields: Any) -> Any:
        """Return an update with a message."""
        number = next(self._ids)
        return {"update_id": number, "message": _message(number, text, user, chat, fields)}

    def edit(self, update: dict[str, Any], text: str) -> Any:
        """Return an update with a newer text of an earlier message."""
        return {"update_id": next(self._ids), "edited_message": update["message"] | {"text": text, "edit_date": 1}}

    def press(self, card: dict[str, Any], option: str, *, user: int = 42) -> Any:
        """Return an update with a press of a button of a question."""
        buttons = [button for row in card["reply_markup"]["inline_keyboard"] for button in row]
        data = next(button["callback_data"] for button in buttons if button["text"] == option)
        number = next(self._ids)
        shown = _message(7, card["text"], 1, card["chat_id"], {})
        query = {"id": f"q{number}", "from": _person(user), "chat_instance": "1", "data": data, "message": shown}
        return {"update_id": number, "callback_query": query}

    async def answered(self, count: int = 1) -> list[str]:
        """Wait until so many messages were sent, and return their texts."""
        found: list[str] = await until(lambda: self.texts, lambda texts: len(texts) >= count)
        return found


def _person(user: int) -> dict[str, Any]:
    return {"id": user, "is_bot": False, "first_name": f"User {user}"}


def _message(number: int, text: str | None, user: int, chat: int | None, fields: dict[str, Any]) -> dict[str, Any]:
    where = user if chat is None else chat
    kind = "private" if where > 0 else "supergroup"
    said = {} if text is None else {"text": text}
    if text and text.startswith("/"):
        said["entities"] = [{"type": "bot_command", "offset": 0, "length": len(text.split()[0])}]  # type: ignore[assignment]
    return {
        "message_id": number,
        "date": 0,
        "chat": {"id": where, "type": kind},
        "from": _person(user),
        **said,
        **fields,
    }


@asynccontextmanager
async def working(turns: Turns, people: People, **options: Any) -> AsyncIterator[None]:
    """Run the turns in this process."""
    async with turns.worker(send=people.send, drain=0, **options):
        yield


async def state_of(turns: Turns, wanted: str, conversation: Any = ANN) -> None:
    """Wait for a state of a conversation."""

    async def look() -> str:
        return (await turns.status(conversation)).state

    await until(look, lambda state: state == wanted)
