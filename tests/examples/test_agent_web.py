from __future__ import annotations

from typing import Any

import httpx

from examples import agent_web
from stepwell import MemoryStorage
from tests.until import until
from tests.web.chats import chunks_of, said


async def test_a_member_enters_with_a_link_and_lets_the_agent_delete() -> None:
    app = agent_web.make_app(MemoryStorage(), {"ann": "anns key", "ben": "bens key"})
    browser = {"transport": httpx.ASGITransport(app=app), "base_url": "http://example.com", "follow_redirects": True}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(**browser) as ann,  # type: ignore[arg-type]
        httpx.AsyncClient(**browser) as ben,  # type: ignore[arg-type]
    ):
        assert (await ann.get("/")).status_code == 401
        assert (await ann.get("/enter", params={"key": "wrong"})).status_code == 403
        assert "<textarea" in (await ann.get("/enter", params={"key": "anns key"})).text
        await ben.get("/enter", params={"key": "bens key"})
        answer = chunks_of((await ann.post("/api", json=said("m1", "delete notes.txt"))).text)
        assert answer[-1]["finishReason"] == "tool-calls"
        question = next(each["approvalId"] for each in answer if each["type"] == "tool-approval-request")
        decision = {"id": question, "choice": "Yes"}
        assert (await ben.post("/api/main/decide", json=decision)).status_code == 409
        assert (await ann.post("/api/main/decide", json=decision)).status_code == 200

        async def shown() -> Any:
            return (await ann.get("/api/main/messages")).text

        await until(shown, lambda text: '"text":"notes.txt is deleted"' in text)
        assert (await ben.get("/api/main/messages")).json() == []
