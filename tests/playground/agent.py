"""A bot with turns for the tests of the page: it waits in a tool, and asks a question."""

import asyncio
import os

from stepwell.telegram import BotClient
from stepwell.turns import Turns

turns = Turns("agent", storage=os.environ["STEPWELL_STORAGE"], collect=0.3)
#: Set by the message "go".
go = asyncio.Event()


async def look_up(what: str) -> str:
    await go.wait()
    return what.upper()


@turns.handler
async def answer(turn):
    found = await turn.tool(look_up, turn.text, replay="never")
    if await turn.ask(f"Send {found}?", timeout=600):
        turn.answer(found)


async def main() -> None:
    async with BotClient(os.environ["BOT_TOKEN"], api=os.environ["BOT_API"], limits=None) as client:

        async def send(call):
            return await client.call(call["method"], **{name: each for name, each in call.items() if name != "method"})

        async with turns.storage, turns.worker(send=send):
            offset = 0
            while True:
                for update in await client.call("getUpdates", offset=offset, timeout=30):
                    offset = update["update_id"] + 1
                    if update.get("message", {}).get("text") == "go":
                        go.set()
                        continue
                    for call in (await turns.admit(update)).calls:
                        await send(call)


if __name__ == "__main__":
    asyncio.run(main())
