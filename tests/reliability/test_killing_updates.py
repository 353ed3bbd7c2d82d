"""An update whose handler ends the process is set aside after five attempts."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio import create_subprocess_exec as spawn
from pathlib import Path

import pytest

from stepwell import open_storage
from stepwell.log import Log
from tests.backends import Backend
from tests.reliability.dose import LARGE, dose
from tests.reliability.raw_telegram import RawTelegram, message
from tests.until import until

BOT = Path(__file__).with_name("killing_bot.py")
ROOT = Path(__file__).parents[2]
ASIDE = "updates set aside"


@pytest.mark.parametrize("how", ["kill", "exit"])
async def test_an_update_that_kills_its_process_is_set_aside_after_five_attempts_and_its_chat_goes_on(
    shared_backend: Backend, how: str, tmp_path: Path
) -> None:
    if not LARGE and (shared_backend.name, how) not in (("sqlite", "kill"), ("postgres", "exit")):
        pytest.skip("the large dose runs on all backends")
    poisons, chats = dose("KILLING_UPDATES", 1, 3), dose("KILLING_CHATS", 5, 20)
    place, attempts = shared_backend.place(), tmp_path / "attempts"
    async with RawTelegram() as telegram:
        env = {
            **os.environ, "BOT_TOKEN": "1:x", "STEPWELL_STORAGE": place, "PYTHONPATH": f"{ROOT}:{ROOT}/src",
            "ATTEMPTS": str(attempts), "HOW": how,
        }  # fmt: skip
        number, expected = 0, dict[int, list[str]]()
        for text in ("before", *["poison"] * poisons, "after"):
            for chat in range(1, chats + 1):
                number += 1
                if text != "poison":
                    telegram.put(message(number, chat, text))
                    expected.setdefault(chat, []).append(f"got {text}")
                elif chat == 1:
                    telegram.put(message(number, chat, text))
        command = (sys.executable, "-m", "stepwell", "run", str(BOT), "--api", telegram.url)
        starts = 0
        async with asyncio.timeout(60 + 60 * poisons):
            while not _answered(telegram, expected):
                process = await spawn(*command, env=env, stdout=asyncio.subprocess.DEVNULL)
                starts += 1
                ended = asyncio.create_task(process.wait())
                await until(lambda: ended.done() or _answered(telegram, expected))
                if not ended.done():
                    process.terminate()
                await ended
    # An update that was in flight at a kill may be answered twice.
    assert {chat: list(dict.fromkeys(texts)) for chat, texts in telegram.sent.items()} == expected
    async with open_storage(place) as storage:
        kept = [entry.value for entry in await Log(storage, "my_bot", ASIDE).read()]
    assert [(entry["chat"], entry["attempts"]) for entry in kept] == [(1, 5)] * poisons
    print(f"{starts} starts, {len(attempts.read_text())} attempts, {sum(map(len, expected.values()))} answers")
    # An update is not counted in the process that has fetched it, if it had to wait there for another one.
    assert 5 * poisons <= len(attempts.read_text()) <= 6 * poisons


def _answered(telegram: RawTelegram, expected: dict[int, list[str]]) -> bool:
    return all(set(telegram.sent.get(chat, ())) == set(texts) for chat, texts in expected.items())
