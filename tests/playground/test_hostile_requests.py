"""Hostile requests to the actions of the page: each is answered, and none with a 5xx."""

from __future__ import annotations

import json
import random
from pathlib import Path

import httpx
import pytest

from stepwell.playground.actions import ACTIONS
from stepwell.playground.play import Playground
from tests.web.hostile import BODIES, REQUESTS, VALUES

BOT = Path(__file__).parent / "cafe.py"
HOST = "127.0.0.1:8642"


@pytest.mark.parametrize("action", [name for name in ACTIONS if name != "restart"])
async def test_an_action_of_the_page_answers_every_request(tmp_path: Path, action: str) -> None:
    rng = random.Random(action)
    play = Playground(BOT, storage=f"sqlite:///{tmp_path}/play.db", port=8642)
    await play.api.chat(play.bot, 42).send("hello")
    headers = {"Origin": f"http://{HOST}", "Content-Type": "application/json"}
    names = ["room", "user", "text", "thread", "message", "row", "column", "update_id", "bot", "key", "name"]
    names += ["version", "state", "data"]
    valid = {"room": "42", "user": 42, "text": "x", "row": 0, "column": 0, "name": "n"}
    transport = httpx.ASGITransport(app=play.auth, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=headers) as http:
        await http.get(f"/?token={play.auth.token}")
        sent = [
            {**valid, **{name: rng.choice(VALUES) for name in rng.sample(names, 1 + at % 3)}} for at in range(REQUESTS)
        ]
        for body in [*BODIES, *(json.dumps(each).encode() for each in sent)]:
            answer = await http.post(f"/api/{action}", content=body)
            assert answer.status_code in (200, 400), body[:300]
            assert answer.json()["ok"] is (answer.status_code == 200)
