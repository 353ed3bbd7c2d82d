"""``stepwell webhook``: shows and removes the webhook of a bot."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stepwell.botapi import BotAPI
from stepwell.telegram import BotClient
from tests.cli.conftest import Command
from tests.until import until


async def test_webhook_shows_the_webhook_of_a_bot_and_removes_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BotAPI(webhook_pause=0.1) as api:
        bot = api.bot("my_bot")
        monkeypatch.delenv("BOT_TOKEN", raising=False)
        monkeypatch.setenv("BOT_API", api.url)
        (tmp_path / ".env").write_text(f"BOT_TOKEN={bot.token}\n")
        file = str(tmp_path / "bot.py")
        assert (await command("webhook", file)).err == "@my_bot has no webhook\n"
        assert (await command("webhook", file, "--delete")).err == "@my_bot has no webhook\n"
        async with BotClient(bot.token, api=api.url) as client:
            await client.call("setWebhook", url=f"http://127.0.0.1:9/{bot.token}")
            await api.chat(bot).send("Hello")
            await until(lambda: client.call("getWebhookInfo"), lambda it: it.get("last_error_message"))
            shown = await command("webhook", file)
            assert await command("webhook", file, "--info") == shown
            assert shown.code == 0
            assert "bot       @my_bot\nurl       http://127.0.0.1:9/<token>\nwaiting   1 update\nerror" in shown.out
            assert bot.token not in shown.out
            told = (await command("webhook", file, "--json")).json
            assert told["url"] == "http://127.0.0.1:9/<token>"
            assert told["pending_update_count"] == 1

            done = await command("webhook", file, "--delete")
            told = "removed the webhook of @my_bot, which can poll now; 1 update will come then\n"
            assert (done.code, done.out) == (0, told)
            assert (await client.call("getWebhookInfo"))["url"] == ""
            assert (await command("webhook", file, "--delete", "--json")).json == {"bot": "my_bot", "deleted": False}


async def test_webhook_names_the_server_that_is_no_bot_api(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 501 Unsupported method\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        monkeypatch.setenv("BOT_TOKEN", "1:secret")
        done = await command("webhook", "--api", url)
        assert (done.code, done.out) == (1, "")
        assert f"501 HTTP status 501 from {url}, no answer of the Bot API" in done.err
        assert "secret" not in done.err
    done = await command("webhook", "--api", url)
    assert (done.code, done.out) == (1, "")
    assert f" from {url}; try it again later\n" in done.err
