"""An agent: ``stepwell play examples/agent_bot.py``. With OPENAI_API_KEY and ``pip install openai``: a real one."""

import asyncio
import importlib
import os
from collections.abc import AsyncIterator
from typing import Any

from stepwell.turns import Turn, Turns, UnknownOutcome

turns = Turns("agent_bot", storage="sqlite:///agent_bot.db", collect=1.0, on_busy="steer")


async def model(told: list[dict[str, Any]]) -> AsyncIterator[str]:
    if "OPENAI_API_KEY" in os.environ:
        chat: Any = importlib.import_module("openai").AsyncOpenAI().chat.completions
        async for chunk in await chat.create(model="gpt-5-mini", messages=told, stream=True):
            yield chunk.choices[0].delta.content or ""
    else:
        for word in f"I was told {len(told)} things. The last one: {told[-1]['content']}\n".split(" "):
            await asyncio.sleep(0.2)
            yield f"{word} "


async def pay(amount: str) -> str:
    return f"Receipt for {amount} EUR"


@turns.handler
async def answer(turn: Turn) -> None:
    new = [{"role": "user", "content": turn.text}]
    try:
        if turn.text.startswith("pay ") and await turn.ask(f"Really {turn.text}?", timeout="24h"):
            new.append({"role": "system", "content": await turn.tool(pay, turn.text[4:], replay="never")})
    except UnknownOutcome:
        new.append({"role": "system", "content": "Nobody knows whether it was paid: ask the bank."})
    known = await turn.history.read(last=20)
    async with turn.stream() as out:
        while new[-1]["role"] != "assistant":
            async for piece in model(known + new):
                out.write(piece)
            steered = [{"role": "user", "content": each.text} for each in await turn.steered()]
            new += steered or [{"role": "assistant", "content": out.text}]
    turn.history.append(*new)
