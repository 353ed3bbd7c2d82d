"""The client against the local Bot API."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.botapi import Bot, BotAPI, Person
from stepwell.errors import BotApiError, BotBlocked, BotUnavailable, InvalidOption, StepwellError, UsageError
from stepwell.telegram import BotClient, InputFile, SendLimits
from tests.servers.proxy import CERTIFICATE, Proxy
from tests.until import until, yields


def texts(chat: Person) -> list[str]:
    return [message["text"] for message in chat.messages]


def when_called(api: BotAPI, times: int) -> asyncio.Event:
    """An event that is set after this many calls, refused ones included."""
    event, seen = asyncio.Event(), 0

    def watch(what: Any) -> None:
        nonlocal seen
        seen += what.kind == "call"
        if seen >= times:
            event.set()

    api.world.watch(watch)
    return event


# Calls and results


async def test_a_result_is_plain_json(client: BotClient, bot: Bot, chat: Person) -> None:
    me = await client.call("getMe")
    assert (me["id"], me["username"]) == (bot.id, "my_bot")
    message = await client.call("sendMessage", chat_id=42, text="<b>Hi</b> …🙂", parse_mode="HTML")
    assert message["text"] == "Hi …🙂"
    assert message["entities"] == [{"type": "bold", "offset": 0, "length": 2}]
    assert await client.call("deleteMessage", chat_id=42, message_id=message["message_id"]) is True


async def test_a_method_that_the_server_lacks_is_refused_at_once(client: BotClient, bot: Bot) -> None:
    with pytest.raises(BotApiError, match="'sendGift' is not supported") as refused:
        await client.call("sendGift", gift_id="1")
    assert not isinstance(refused.value, BotUnavailable)
    assert len(bot.calls) == 1


async def test_a_keyboard_is_a_dict_and_none_is_left_out(client: BotClient, chat: Person, bot: Bot) -> None:
    keyboard = {"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}]]}
    await client.call("sendMessage", chat_id=42, text="Ready?", reply_markup=keyboard, parse_mode=None)
    assert chat.buttons == ["Yes"]
    assert "parse_mode" not in bot.calls[-1]


async def test_a_long_poll_may_take_its_own_timeout_longer(api: BotAPI, bot: Bot, chat: Person) -> None:
    async with BotClient(bot.token, api=api.url, timeout=0.5, patience=1) as client:
        polling = asyncio.create_task(client.call("getUpdates", timeout=20))
        await asyncio.sleep(1.2)
        await chat.send("hello")
        (update,) = await polling
    assert update["message"]["text"] == "hello"
    assert bot.calls == type(bot.calls)()


async def test_a_parameter_that_is_no_json_is_refused_before_it_is_sent(client: BotClient, bot: Bot) -> None:
    with pytest.raises(InvalidOption, match=r"sendMessage: a value of type object cannot be sent"):
        await client.call("sendMessage", chat_id=42, text=object())
    with pytest.raises(InvalidOption, match="sendLocation: the parameters cannot be sent as JSON"):
        await client.call("sendLocation", chat_id=42, latitude=float("nan"))
    with pytest.raises(InvalidOption, match="is not the name of a Bot API method"):
        await client.call("../getMe")
    nothing: Any = None
    with pytest.raises(InvalidOption, match="is not the name of a Bot API method"):
        await client.call(nothing)
    assert not bot.calls


# Refused calls


async def test_a_refused_call_is_an_error_at_once_and_the_next_call_leaves(client: BotClient, chat: Person) -> None:
    with pytest.raises(BotApiError) as raised:
        await client.call("sendMessage", chat_id=42, text="")
    error = raised.value
    assert (error.method, error.code, error.description) == ("sendMessage", 400, "Bad Request: message text is empty")
    assert str(error) == "sendMessage was refused: 400 Bad Request: message text is empty"
    assert type(pickle.loads(pickle.dumps(error))) is BotApiError
    await client.call("sendMessage", chat_id=42, text="next")
    assert texts(chat) == ["next"]


async def test_a_user_who_blocked_the_bot_is_bot_blocked(client: BotClient, chat: Person) -> None:
    await chat.block()
    with pytest.raises(BotBlocked, match="bot was blocked by the user") as raised:
        await client.call("sendMessage", chat_id=42, text="hello")
    assert raised.value.code == 403
    await chat.unblock()
    await client.call("sendMessage", chat_id=42, text="hello")


async def test_a_group_that_became_a_supergroup_has_its_new_id(client: BotClient, chat: Person) -> None:
    new = await chat.group(-5).migrate()
    with pytest.raises(BotApiError, match="use the new chat id") as raised:
        await client.call("sendMessage", chat_id=-5, text="hello")
    assert raised.value.migrate_to_chat_id == new.room.id


@pytest.mark.parametrize(("token", "code"), [("1:wrong", 401), ("1:wrong", 404)])
async def test_a_token_that_telegram_does_not_know(api: BotAPI, bot: Bot, token: str, code: int) -> None:
    if code == 404:
        bot.refuse(404, "Not Found")
        token = bot.token
    async with BotClient(token, api=api.url) as client:
        with pytest.raises(BotApiError, match="getMe was refused: the token is not valid") as raised:
            await client.call("getMe")
    assert raised.value.code == code


# Retried calls


async def test_a_429_is_obeyed_and_holds_up_only_its_chat(client: BotClient, bot: Bot, chat: Person) -> None:
    other = chat.user(7)
    bot.limit(1, chat=42)
    began, order = time.monotonic(), []

    async def send(chat_id: int, text: str) -> None:
        await client.call("sendMessage", chat_id=chat_id, text=text)
        order.append(text)

    await asyncio.gather(send(42, "first"), send(42, "second"), send(7, "elsewhere"))
    assert order == ["elsewhere", "first", "second"]
    assert time.monotonic() - began >= 1
    assert texts(chat) == ["first", "second"]
    assert texts(other) == ["elsewhere"]


async def test_a_429_without_a_chat_holds_up_all_messages(
    client: BotClient, bot: Bot, chat: Person, caplog: pytest.LogCaptureFixture
) -> None:
    bot.limit(1, method="getMe")
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        me = asyncio.create_task(client.call("getMe"))
        await until(lambda: "asks to wait" in caplog.text)
    await client.call("sendMessage", chat_id=42, text="hello")
    assert time.monotonic() - began >= 1.0
    assert (await me)["id"] == bot.id


@pytest.mark.parametrize("code", [500, 502, 503])
async def test_a_failing_server_is_tried_again_and_nothing_overtakes(
    api: BotAPI, bot: Bot, chat: Person, code: int
) -> None:
    bot.refuse(code, "Internal Server Error", chat=42, times=3)
    async with BotClient(bot.token, api=api.url, limits=None) as client:
        await asyncio.gather(*(client.call("sendMessage", chat_id=42, text=str(number)) for number in range(3)))
    assert texts(chat) == ["0", "1", "2"]


async def test_a_cut_connection_is_tried_again(client: BotClient, bot: Bot, chat: Person) -> None:
    bot.cut(times=2)
    await asyncio.gather(*(client.call("sendMessage", chat_id=42, text=str(number)) for number in range(2)))
    assert texts(chat) == ["0", "1"]


async def test_a_message_may_come_twice_if_the_answer_was_lost(client: BotClient, bot: Bot, chat: Person) -> None:
    bot.cut(after=True)
    await client.call("sendMessage", chat_id=42, text="hello")
    assert texts(chat) == ["hello", "hello"]


async def test_patience_ends(api: BotAPI, bot: Bot, chat: Person) -> None:
    async with BotClient(bot.token, api=api.url, patience=0.5) as client:
        bot.refuse(502, "Bad Gateway", times=1000)
        with pytest.raises(BotUnavailable, match="sendMessage was not accepted: 502 Bad Gateway; try it again later"):
            await client.call("sendMessage", chat_id=42, text="hello")
        bot.failures.clear()
        await client.call("sendMessage", chat_id=42, text="hello")


async def test_a_server_that_fails_for_one_call_only_has_refused_it(api: BotAPI, bot: Bot, chat: Person) -> None:
    async with BotClient(bot.token, api=api.url, patience=2) as client:
        bot.refuse(500, "Internal Server Error", chat=42, times=1000)
        refused = asyncio.create_task(client.call("sendMessage", chat_id=42, text="hello"))
        await until(lambda: bot.calls)
        await client.call("getMe")
        with pytest.raises(BotApiError) as raised:
            await refused
    assert type(raised.value) is BotApiError


async def test_a_429_beyond_the_patience_is_an_error_at_once(api: BotAPI, bot: Bot, chat: Person) -> None:
    other = chat.user(7)
    async with BotClient(bot.token, api=api.url, patience=10) as client:
        bot.limit(3600, chat=42)
        calls = [client.call("sendMessage", chat_id=chat_id, text="hello") for chat_id in (42, 42, 7)]
        first, second, elsewhere = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, BotUnavailable)
    assert isinstance(second, BotUnavailable)
    assert first.retry_after == 3600
    assert second.retry_after == pytest.approx(3600, abs=10)
    assert not isinstance(elsewhere, BaseException)
    assert texts(other) == ["hello"]


async def test_an_unreachable_server_is_unavailable(bot: Bot) -> None:
    async with BotClient(bot.token, api="http://127.0.0.1:1", patience=0.3) as client:
        with pytest.raises(BotUnavailable) as raised:
            await client.call("getMe")
    assert raised.value.code is None
    assert isinstance(raised.value, ConnectionError)


async def test_an_outage_is_logged_once_and_its_end_too(
    api: BotAPI, bot: Bot, chat: Person, caplog: pytest.LogCaptureFixture
) -> None:
    bot.refuse(502, "Bad Gateway", times=6)
    with caplog.at_level(logging.INFO, "stepwell"):
        async with BotClient(bot.token, api=api.url) as client:
            await asyncio.gather(*(client.call("getMe") for _ in range(3)))
    assert [record.getMessage() for record in caplog.records] == [
        f"getMe: no usable answer from {api.url} (Bad Gateway), retrying",
        "the Bot API accepts calls again",
    ]


@contextlib.asynccontextmanager
async def serving(answer: bytes | None) -> AsyncIterator[str]:
    """A server that gives this answer to everything, or none."""

    tasks: set[asyncio.Task[Any] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            if answer is not None:
                writer.write(answer)
                await writer.drain()
            else:
                await reader.read()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.wait([task for task in tasks if task is not None])


async def test_a_server_that_does_not_answer_in_time_is_unavailable() -> None:
    async with serving(None) as url, BotClient("1:x", api=url, timeout=0.2, patience=0.5) as client:
        with pytest.raises(BotUnavailable, match=r"getMe was not accepted: no response within 0\.2 s"):
            await client.call("getMe")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>", BotUnavailable),
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 6\r\n\r\n<html>", BotUnavailable),
        (b"HTTP/1.1 429 Too Many\r\nretry-after: 60\r\ncontent-length: 0\r\n\r\n", BotUnavailable),
        (b"HTTP/1.1 413 Too Large\r\ncontent-length: 6\r\n\r\n<html>", BotApiError),
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", BotUnavailable),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 6\r\n\r\n<html>", BotUnavailable),
        (b"HTTP/1.1 403 Forbidden\r\ncontent-length: 6\r\n\r\n<html>", BotUnavailable),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", BotUnavailable),
        (b'HTTP/1.1 400 Bad\r\ncontent-length: 12\r\n\r\n{"ok":false}', BotApiError),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n[1,", BotUnavailable),
    ],
)
async def test_an_answer_of_something_else_than_the_bot_api(answer: bytes, error: type[Exception]) -> None:
    async with serving(answer) as url, BotClient("1:x", api=url, patience=0.3) as client:
        with pytest.raises(BotApiError) as raised:
            await client.call("getMe")
    assert type(raised.value) is error


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('{"message":"please log in"}', None),
        ("{}", None),
        ('{"ok":"true","result":{}}', None),
        ('{"ok":false}', 200),
        ('{"ok":false,"error_code":null}', 200),
        ('{"ok":false,"error_code":"x","description":5}', 200),
        ('{"ok":false,"error_code":400,"parameters":[1]}', 400),
        ('{"ok":false,"error_code":400,"parameters":{"migrate_to_chat_id":"x"}}', 400),
        ('{"ok":false,"error_code":429,"parameters":{"retry_after":"5"}}', 429),
        ('{"ok":false,"error_code":429,"parameters":{"retry_after":-5}}', 429),
        ('{"ok":false,"error_code":429,"parameters":[1]}', 429),
    ],
)
async def test_only_an_ok_answer_counts_as_sent(body: str, code: int | None) -> None:
    answer = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    async with serving(answer.encode()) as url, BotClient("1:x", api=url, patience=0.3) as client:
        with pytest.raises(BotApiError) as raised:
            await client.call("sendMessage", chat_id=42, text="Hello")
    assert raised.value.code == code
    assert isinstance(raised.value, BotUnavailable) == (code in (None, 429))
    assert raised.value.retry_after is None
    assert raised.value.migrate_to_chat_id is None


# Order and limits


async def test_calls_of_a_chat_leave_in_order_whatever_form_its_id_has(client: BotClient, chat: Person) -> None:
    ids: list[Any] = [42, "42", 42]
    await asyncio.gather(*(client.call("sendMessage", chat_id=chat_id, text=str(at)) for at, chat_id in enumerate(ids)))
    assert texts(chat) == ["0", "1", "2"]


async def test_messages_wait_for_the_limits(api: BotAPI, bot: Bot, chat: Person) -> None:
    users = [chat.user(number) for number in range(100, 130)]
    began = time.monotonic()
    async with BotClient(bot.token, api=api.url, limits=SendLimits(per_second=10)) as client:
        await asyncio.gather(*(client.call("sendMessage", chat_id=user.id, text="hello") for user in users))
    assert time.monotonic() - began >= 2
    assert all(texts(user) == ["hello"] for user in users)


async def test_only_messages_count(api: BotAPI, bot: Bot, chat: Person) -> None:
    began = time.monotonic()
    async with BotClient(bot.token, api=api.url, limits=SendLimits(per_second=1, per_chat=0.1, burst=1)) as client:
        await client.call("sendMessage", chat_id=42, text="hello")
        for _ in range(5):
            await client.call("sendChatAction", chat_id=42, action="typing")
            await client.call("getChat", chat_id=42)
            await client.call("getMe")
        await client.call("editMessageText", chat_id=42, message_id=1, text="edited")
    assert time.monotonic() - began < 9


async def test_limits_none_turns_them_off(api: BotAPI, bot: Bot, chat: Person) -> None:
    began = time.monotonic()
    async with BotClient(bot.token, api=api.url, limits=None) as client:
        await asyncio.gather(*(client.call("sendMessage", chat_id=42, text=str(number)) for number in range(50)))
    assert time.monotonic() - began < 40
    assert texts(chat) == [str(number) for number in range(50)]


async def test_a_cancelled_call_gives_up_its_place(api: BotAPI, client: BotClient, bot: Bot, chat: Person) -> None:
    refused = when_called(api, 1)
    bot.limit(1, chat=42)
    first, second, third = (
        asyncio.create_task(client.call("sendMessage", chat_id=42, text=text)) for text in ("first", "second", "third")
    )
    await refused.wait()
    first.cancel()
    second.cancel()
    await third
    assert first.cancelled()
    assert second.cancelled()
    assert texts(chat) == ["third"]


# Opening and closing


async def test_closing_ends_calls_that_wait_or_are_under_way(api: BotAPI, bot: Bot, chat: Person) -> None:
    client = BotClient(bot.token, api=api.url)
    called = when_called(api, 2)
    bot.limit(60, chat=42)
    bot.refuse(500, "Internal Server Error", method="getMe", times=1000)
    calls = [
        asyncio.create_task(client.call("sendMessage", chat_id=42, text="refused")),
        asyncio.create_task(client.call("sendMessage", chat_id=42, text="waits")),
        asyncio.create_task(client.call("getMe")),
        asyncio.create_task(client.call("getUpdates", timeout=50)),
    ]
    async with asyncio.timeout(10):
        await called.wait()
        await asyncio.sleep(0.1)
        await client.close()
        ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in ended] == [BotUnavailable] * 4
    assert "the client was closed" in str(ended[0])
    with pytest.raises(UsageError, match="is closed"):
        await client.call("getMe")
    await client.close()
    bot.failures.clear()
    async with client:
        assert (await client.call("getMe"))["id"] == bot.id


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 13, 20, 40])
@pytest.mark.parametrize("from_disk", [False, True], ids=["bytes", "path"])
async def test_closing_ends_an_upload_under_way(steps: int, from_disk: bool, tmp_path: Path) -> None:
    """The upload is at another point after each number of steps: it reads its file, connects or sends."""
    (tmp_path / "x").write_bytes(b"x")
    file = InputFile(tmp_path / "x") if from_disk else InputFile(content=b"x")
    # The kernel completes connections to this server, and nothing answers them.
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = BotClient("1:x", api=f"http://127.0.0.1:{server.getsockname()[1]}")
        upload = asyncio.create_task(client.call("sendDocument", chat_id=42, document=file))
        await yields(steps)
        assert not upload.done()
        async with asyncio.timeout(10):
            await client.close()
            with pytest.raises(BotUnavailable, match="the client was closed"):
                await upload


@pytest.mark.skipif(sys.platform != "linux", reason="needs a server with a full backlog")
async def test_closing_ends_a_call_that_connects() -> None:
    with contextlib.ExitStack() as sockets:
        server = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        client = BotClient("1:x", api=f"http://127.0.0.1:{server.getsockname()[1]}")
        call = asyncio.create_task(client.call("getMe"))
        await yields(40)
        assert not call.done()
        async with asyncio.timeout(10):
            await client.close()
            with pytest.raises(BotUnavailable, match="the client was closed"):
                await call


def test_a_client_belongs_to_one_loop() -> None:
    client = BotClient("1:x", api="http://127.0.0.1:1", patience=0.1)

    async def call() -> None:
        await client.call("getMe")

    with pytest.raises(BotUnavailable):
        asyncio.run(call())
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(call())


# The token


@pytest.mark.parametrize("token", ["", "secret", "1:", ":x", "1:x y", "1:x\n", "bot1:x", None, 5])
def test_a_token_of_another_form_is_refused_without_showing_it(token: Any) -> None:
    with pytest.raises(UsageError) as raised:
        BotClient(token)
    assert "does not have the form of a bot token" in str(raised.value)
    assert not token or f" {token} " not in str(raised.value)


@pytest.mark.parametrize(
    "api", ["api.telegram.org", "ftp://x", "http://", "https://api.telegram.org/bot1:secret", "http://u:p@x", 5, ""]
)
def test_an_address_that_is_no_url_is_refused(api: Any) -> None:
    with pytest.raises(InvalidOption) as raised:
        BotClient("1:x", api=api)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"patience": -1}, {"timeout": "5"}, {"limits": 30}])
def test_an_invalid_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        BotClient("1:x", **options)


@pytest.mark.parametrize("proxy", ["http://:secret@", "http://proxy:port", "gopher://proxy:1"])
async def test_a_proxy_that_is_not_valid_is_an_error_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(UsageError, match=r"the environment has a proxy for example\.com that is not valid") as raised:
        await BotClient("1:x", api="https://example.com", patience=0.1).call("getMe")
    assert "secret" not in str(raised.value)


async def test_the_token_is_in_no_log_repr_or_error(
    api: BotAPI, bot: Bot, chat: Person, caplog: pytest.LogCaptureFixture
) -> None:
    secret = bot.token.partition(":")[2]
    errors: list[StepwellError] = []

    async def call(client: BotClient, method: str, **params: Any) -> None:
        try:
            await client.call(method, **params)
        except StepwellError as error:
            errors.append(error)

    with caplog.at_level(logging.DEBUG):
        async with BotClient(bot.token, api=api.url, patience=0.2, limits=None) as client:
            # Files are sent by httpx.
            for params in ({"text": "hello"}, {"document": InputFile(content=b"x")}):
                method = "sendMessage" if "text" in params else "sendDocument"
                await call(client, method, chat_id=42, **params)
                bot.refuse(400, f"Bad Request: {bot.token}")
                await call(client, method, chat_id=42, **params)
                bot.cut()
                await call(client, method, chat_id=42, **params)
                bot.refuse(502, "Bad Gateway", times=1000)
                await call(client, method, chat_id=42, **params)
                bot.failures.clear()
            shown = repr(client)
        async with BotClient(bot.token, api="http://127.0.0.1:1", patience=0.2) as away:
            await call(away, "getMe")
            await call(away, "sendDocument", chat_id=42, document=InputFile(content=b"x"))
    assert len(errors) >= 6
    assert "httpcore" in caplog.text
    for text in (caplog.text, shown, *map(str, errors), *map(repr, errors)):
        assert secret not in text
    assert str(bot.id) in shown


def test_without_httpx_an_import_names_the_extra() -> None:
    code = "import sys; sys.modules['httpx'] = None; import stepwell.telegram"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtra: httpx is not installed; run: pip install 'stepwell[bot]'" in done.stderr


# Ways to the server


async def test_calls_and_uploads_over_tls(api: BotAPI, bot: Bot, chat: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Proxy(api.port, tls=True) as tls:
        api.hosts = (f"localhost:{tls.port}",)
        url = f"https://localhost:{tls.port}"
        async with BotClient(bot.token, api=url, patience=0.3) as client:
            with pytest.raises(BotUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await client.call("getMe")
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        async with BotClient(bot.token, api=url) as client:
            assert (await client.call("getMe"))["id"] == bot.id
            await client.call("sendMessage", chat_id=42, text="hello")
            await client.call("sendDocument", chat_id=42, document=InputFile(content=b"x"))
    assert len(chat.messages) == 2


async def test_a_proxy_of_the_environment_is_used(
    api: BotAPI, bot: Bot, chat: Person, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forwarded: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        length = int(request.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        forwarded.append(request.partition(b"\r\n")[0])
        from_api, to_api = await asyncio.open_connection("127.0.0.1", api.port)
        direct = request.replace(api.url.encode(), b"", 1).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        to_api.write(direct + await reader.readexactly(length))
        writer.write(await from_api.read())
        for each in (to_api, writer):
            each.close()
            await each.wait_closed()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "elsewhere")
        with caplog.at_level(logging.DEBUG):
            async with BotClient(bot.token, api=api.url) as client:
                await client.call("sendMessage", chat_id=42, text="hello")
        assert chat.last == "hello"
        assert forwarded == [f"POST {api.url}/bot{bot.token}/sendMessage HTTP/1.1".encode()]
        assert bot.token not in caplog.text
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with BotClient(bot.token, api=api.url) as client:
            await client.call("sendMessage", chat_id=42, text="hello")
        assert len(forwarded) == 1


async def test_every_message_arrives_in_order_over_a_bad_network(api: BotAPI, bot: Bot, chat: Person) -> None:
    async with Proxy(api.port, seed=7) as network:
        api.hosts = (f"127.0.0.1:{network.port}",)
        network.cut_rate = 0.2
        async with BotClient(bot.token, api=f"http://127.0.0.1:{network.port}", limits=None) as client:
            numbers = [str(number) for number in range(30)]
            await asyncio.gather(*(client.call("sendMessage", chat_id=42, text=number) for number in numbers))
    assert network.cuts
    # A message whose answer was lost is sent again, before the next one.
    assert [text for text, _ in itertools.groupby(texts(chat))] == numbers
