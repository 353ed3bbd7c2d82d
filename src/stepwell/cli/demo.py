"""A registration, step by step, against the seven storage callbacks."""

from __future__ import annotations

from stepwell import State, Storage, open_storage

__all__ = ["play"]

BOT, KEY = "demo_bot", (42, 42)


async def play(url: str) -> int:
    """Play the conversation, show the record after each message, and check it; 0 if all is as it should be."""
    async with open_storage(url) as storage:
        await storage.init(BOT)
        await storage.clear(BOT, KEY)
        good = True
        for said, expected in SCRIPT:
            answer = await respond(storage, said)
            record = await storage.get_state(BOT, KEY)
            print(f"you   {said}\nbot   {answer}\n      {_shown(record)}\n")
            good = good and answer == expected
    print("Everything as it should be." if good else "An answer was not what it should be.")
    return 0 if good else 1


async def respond(storage: Storage, text: str) -> str:
    """The bot: what it answers depends on the record, and on nothing that dies with the process."""
    record = await storage.get_state(BOT, KEY) or State()
    if text == "/register":
        await storage.set_state(BOT, KEY, State("registration", "get_name"))
        return "What's your name?"
    if record.state == "get_name":
        await storage.set_state(BOT, KEY, State("registration", "get_email", {**record.data, "name": text}))
        return f"Got it, {text}! What's your email?"
    if record.state == "get_email":
        await storage.update_data(BOT, KEY, {"email": text})
        data = await storage.get_data(BOT, KEY) or {}
        await storage.set_state(BOT, KEY, State("registration", "confirm", data))
        return "Please confirm."
    if record.state == "confirm" and text == "yes":
        await storage.clear(BOT, KEY)
        return f"Registered! Welcome, {record.data['name']}!"
    return "Say /register to begin."


def _shown(record: State | None) -> str:
    return "no record" if record is None else f"{record.flow} / {record.state}   {record.data}"


SCRIPT = [
    ("/register", "What's your name?"),
    ("Alice", "Got it, Alice! What's your email?"),
    ("alice@example.com", "Please confirm."),
    ("yes", "Registered! Welcome, Alice!"),
]
