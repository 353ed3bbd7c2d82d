"""``stepwell botapi`` as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.cli.conftest import Command

TOKEN = "123456:secret"


@asynccontextmanager
async def served(*options: str, stdin: int = PIPE) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stepwell", "botapi", "--port", "0", *options,
        stdin=stdin, stdout=PIPE, stderr=PIPE, env={**os.environ, "COLUMNS": "300"},
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line_with(process: Process, part: str) -> str:
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode():
        if part in line:
            return line.strip()
    raise AssertionError(f"it printed no {part!r}")


async def started(process: Process) -> str:
    """Return the address when everything is printed."""
    url = await line_with(process, "  http://127.0.0.1:")
    await line_with(process, "Ctrl-C")
    return url


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_serves_the_bots_that_it_prints_and_ends_with_0_at_a_signal(number: signal.Signals) -> None:
    async with served("--bot", f"shop={TOKEN}", "--bot", "other") as process, httpx.AsyncClient() as http:
        url = await line_with(process, "  http://127.0.0.1:")
        assert await line_with(process, "shop") == f"shop  {TOKEN}"
        token = (await line_with(process, "other")).split()[1]
        assert await line_with(process, "curl") == f"curl {url}/bot{TOKEN}/getMe"
        assert await line_with(process, "BOT_API") == f"BOT_API={url} BOT_TOKEN={TOKEN} stepwell run bot.py"
        await line_with(process, "Ctrl-C")
        for given, name in ((TOKEN, "shop"), (token, "other")):
            assert (await http.get(f"{url}/bot{given}/getMe")).json()["result"]["username"] == name
        # A poll that waits does not delay the end.
        polling = asyncio.create_task(http.get(f"{url}/bot{TOKEN}/getUpdates?timeout=50", timeout=60))
        await asyncio.sleep(0.1)
        process.send_signal(number)
        assert await process.wait() == 0
        await asyncio.gather(polling, return_exceptions=True)
        assert process.stderr is not None
        assert await process.stderr.read() == b""


async def test_a_line_is_a_message_and_the_text_of_a_button_presses_it() -> None:
    async with served("--bot", f"shop={TOKEN}") as process, httpx.AsyncClient() as http:
        base = f"{await started(process)}/bot{TOKEN}"
        assert process.stdin is not None

        async def update(text: str, offset: int = 0) -> dict[str, Any]:
            assert process.stdin is not None
            process.stdin.write(f"{text}\n".encode())
            (found,) = (await http.post(f"{base}/getUpdates", json={"timeout": 30, "offset": offset})).json()["result"]
            return dict(found)

        first = await update("/start")
        assert (first["message"]["text"], first["message"]["from"]["id"]) == ("/start", 42)
        keyboard = {"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}, {"text": "Web", "url": "http://x"}]]}
        await http.post(f"{base}/sendMessage", json={"chat_id": 42, "text": "Ready?", "reply_markup": keyboard})
        assert await line_with(process, "Ready") == "shop  Ready? [Yes] [Web]"
        pressed = await update("Yes", first["update_id"] + 1)
        assert pressed["callback_query"]["data"] == "y"
        edit = {"chat_id": 42, "message_id": pressed["callback_query"]["message"]["message_id"], "text": "Done"}
        assert (await http.post(f"{base}/editMessageText", json={**edit, "reply_markup": keyboard})).json()["ok"]
        assert await line_with(process, "Done") == "shop  (edited) Done [Yes] [Web]"
        process.stdin.write(b"Web\n")
        assert "opens a page" in await line_with(process, "error")
        rich = {"chat_id": 42, "rich_message": {"markdown": "# A *plan*"}}
        assert (await http.post(f"{base}/sendRichMessage", json=rich)).json()["ok"]
        assert await line_with(process, "plan") == "shop  A plan"
        process.stdin.close()
        # The server outlives its input.
        assert (await http.get(f"{base}/getMe")).json()["ok"]


async def test_messages_above_telegrams_limits_are_refused_if_that_is_asked_for() -> None:
    async with served("--bot", f"shop={TOKEN}", "--limits") as process, httpx.AsyncClient() as http:
        base = f"{await started(process)}/bot{TOKEN}"
        answers = [await http.post(f"{base}/sendMessage", json={"chat_id": 42, "text": "x"}) for _ in range(30)]
        refused = [answer.json() for answer in answers if answer.status_code == 429]
        assert refused
        assert refused[0]["parameters"] == {"retry_after": 1}


async def test_it_runs_without_input() -> None:
    async with served(stdin=DEVNULL) as process, httpx.AsyncClient() as http:
        url = await started(process)
        assert (await http.get(f"{url}/botx/getMe")).status_code == 404


async def test_a_taken_port_gives_one_line(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = await command("botapi", "--port", str(port))
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use; choose another host or port" in done.err


async def test_a_secret_in_the_place_of_the_host_is_not_shown(command: Command) -> None:
    done = await command("botapi", "--host", "redis://:s3cret@127.0.0.1:1")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "cannot listen on <str> port 8081: " in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bot", "shop=nonsense"], "--bot shop: a bot's token must have the form 123456:secret"),
        (["--bot", f"a={TOKEN}", "--bot", f"b={TOKEN}"], "--bot b: a bot's token"),
        (["--bot", f"={TOKEN}"], "a bot needs a name: --bot NAME=TOKEN"),
        (["--port", "70000"], "a port must be a number from 0 to 65535"),
    ],
)
async def test_a_wrong_option_gives_one_line(command: Command, arguments: list[str], message: str) -> None:
    done = await command("botapi", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
