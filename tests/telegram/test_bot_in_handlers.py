"""``ctx.bot``: calls of handlers whose results they need, downloads, and chat actions that are repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from stepwell.botapi import Bot, BotAPI, Person
from stepwell.botapi.official import OFFICIAL
from stepwell.errors import BotApiError, InvalidOption, UsageError
from stepwell.fsm import FSM, BotMethods, Context, Router, callback, command, keyboard
from stepwell.telegram import BotClient, InputFile, run_polling
from stepwell.testing import Chat
from tests.until import until


@pytest.fixture
def router() -> Router:
    return Router(FSM("my_bot", storage="memory://", flows=[]))


Polling: TypeAlias = Callable[[Router], AbstractAsyncContextManager[None]]


@pytest.fixture
def polling(api: BotAPI, bot: Bot) -> Polling:
    @asynccontextmanager
    async def run(router: Router) -> AsyncIterator[None]:
        task = asyncio.create_task(run_polling(router, bot.token, api=api.url))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))

    return run


async def test_a_handler_gets_the_results_of_its_calls(router: Router, polling: Polling, chat: Person) -> None:
    @router.on(command("pin"))
    async def pin(ctx: Context) -> None:
        sent = await ctx.bot.send_message(chat_id=42, text="Rules")
        again = await ctx.bot.call("editMessageText", chat_id=42, message_id=sent["message_id"], text="New rules")
        member = await ctx.bot.get_chat_member(chat_id=42, user_id=42)
        ctx.answer(f"{again['text']} for {member['user']['first_name']}")

    async with polling(router):
        await chat.send("/pin")
        assert [await chat.answer() for _ in range(2)] == ["Rules", "New rules for Alice"]


async def test_a_refused_call_of_a_handler_raises_and_names_the_method_that_was_meant(
    router: Router, polling: Polling, chat: Person
) -> None:
    @router.on()
    async def fail(ctx: Context) -> None:
        try:
            await ctx.bot.call("sendMesage", chat_id=42, text="Hello")
        except BotApiError as error:
            ctx.answer(str(error))

    async with polling(router):
        await chat.send("hi")
        assert "did you mean 'sendMessage'?" in (await chat.answer() or "")


async def test_the_log_of_a_refused_call_names_the_method_that_was_meant(
    router: Router, polling: Polling, chat: Person, caplog: pytest.LogCaptureFixture
) -> None:
    @router.on()
    async def fail(ctx: Context) -> None:
        ctx.call("sendMesage", chat_id=42, text="Hello")
        ctx.answer("Done")

    async with polling(router):
        await chat.send("hi")
        assert await chat.answer() == "Done"
    assert "did you mean 'sendMessage'?" in caplog.text


async def test_the_calls_of_a_handler_share_the_limits_of_its_chat(
    router: Router, polling: Polling, chat: Person, bot: Bot
) -> None:
    refused = asyncio.Event()

    @router.on()
    async def wait(ctx: Context) -> None:
        bot.refuse(429, "Too Many Requests: retry after 1", parameters={"retry_after": 1})
        await ctx.bot.send_message(chat_id=42, text="First")
        refused.set()
        ctx.answer("Second")

    async with polling(router):
        await chat.send("hi")
        assert [await chat.answer() for _ in range(2)] == ["First", "Second"]
    codes = [call["answer"].get("error_code") for call in bot.calls if call["method"] == "sendMessage"]
    assert codes == [429, None, None]


async def test_a_press_that_a_handler_answers_with_ctx_bot_is_answered_once(
    router: Router, polling: Polling, chat: Person, bot: Bot
) -> None:
    @router.on(command("menu"))
    async def menu(ctx: Context) -> None:
        ctx.answer("Menu", reply_markup=keyboard([["Tea"]]))

    @router.on(callback("Tea"))
    async def tea(ctx: Context) -> None:
        await ctx.bot.answer_callback_query(callback_query_id=ctx.update.callback_id, text="One tea")
        ctx.edit("Tea", toast="Not shown")

    async with polling(router):
        assert await chat.ask("/menu") == "Menu"
        query = await chat.press("Tea")
        assert query is not None
        notice = await chat.notice(query)
        assert notice is not None
        assert notice["text"] == "One tea"
        assert await chat.ask("/menu") == "Menu"
    assert [call["method"] for call in bot.calls].count("answerCallbackQuery") == 1


async def test_a_file_is_downloaded_as_bytes_to_a_path_and_into_a_folder(
    client: BotClient, chat: Person, tmp_path: Path
) -> None:
    sent = await client.send_document(chat_id=42, document=InputFile(content=b"x" * 100_000, filename="notes.txt"))
    file = sent["document"]["file_id"]
    assert await client.download(file) == b"x" * 100_000
    path = await client.download(file, to=tmp_path / "mine.txt")
    assert path == tmp_path / "mine.txt"
    assert path.read_bytes() == b"x" * 100_000
    inside = await client.download(file, to=tmp_path)
    assert inside.parent == tmp_path
    assert inside.suffix == ".txt"
    assert sorted(tmp_path.iterdir()) == sorted([path, inside])


async def test_a_download_of_an_unknown_file_is_refused_without_the_token(client: BotClient, bot: Bot) -> None:
    with pytest.raises(BotApiError, match="invalid file_id") as refused:
        await client.download("no such file")
    assert bot.token not in str(refused.value)


async def test_a_download_that_the_server_does_not_have_is_refused_without_the_token(
    client: BotClient, bot: Bot, api: BotAPI, chat: Person
) -> None:
    with pytest.raises(BotApiError, match="download was refused: 404 Not Found") as refused:
        await client._content_of("documents/gone.txt")
    assert bot.token not in str(refused.value)


async def test_a_download_is_tried_again_after_an_outage(api: BotAPI, bot: Bot, chat: Person) -> None:
    async with BotClient(bot.token, api="http://127.0.0.1:9", patience=0.5) as client:
        with pytest.raises(BotApiError, match="try it again later"):
            await client._content_of("documents/gone.txt")


async def test_typing_is_shown_again_until_the_block_ends(
    router: Router, polling: Polling, chat: Person, bot: Bot
) -> None:
    def shown() -> list[str]:
        return [call["action"] for call in bot.calls if call["method"] == "sendChatAction"]

    @router.on()
    async def slow(ctx: Context) -> None:
        async with ctx.typing("upload_photo", every=0.05):
            await until(lambda: len(shown()) >= 3)
        ctx.answer("Done")

    async with polling(router):
        await chat.send("hi")
        assert await chat.answer() == "Done"
        count = len(shown())
        await asyncio.sleep(0.2)
        assert shown() == ["upload_photo"] * count


async def test_a_refused_chat_action_does_not_concern_the_block(client: BotClient) -> None:
    async with client.typing(-12345):
        await client.get_me()


def test_a_client_has_every_method_of_the_bot_api_by_its_name() -> None:
    client = BotClient("42:token")
    names = {name: getattr(client, name) for name in BotMethods.__annotations__}
    assert {method.args[0] for method in names.values()} == set(OFFICIAL) - {"close"}


def test_an_unknown_method_of_a_client_is_refused() -> None:
    client: Any = BotClient("42:token")
    with pytest.raises(AttributeError, match=r"did you mean 'send_message'\?"):
        client.send_mesage(chat_id=42)
    with pytest.raises(AttributeError, match=r"call\('newMethod', ...\)"):
        _ = client.xyzzy


async def test_a_handler_without_a_runner_is_told_what_gives_it_a_client(router: Router) -> None:
    router.on()(lambda ctx: ctx.bot)
    with pytest.raises(UsageError, match=r"run it with run_polling\(\)"):
        await router.handle({"update_id": 1, "message": {"from": {"id": 42}, "chat": {"id": 42}, "text": "hi"}})
    with pytest.raises(InvalidOption, match="takes a BotClient"):
        Router(router.fsm, client="no client")  # type: ignore[arg-type]


async def test_ctx_bot_works_in_a_chat_of_a_test() -> None:
    def make_router(storage: Any) -> Router:
        router = Router(FSM("my_bot", storage=storage, flows=[]))

        @router.on(command("admin"))
        async def admin(ctx: Context) -> None:
            member = await ctx.bot.get_chat_member(chat_id=42, user_id=42)
            sent = await ctx.bot.send_message(chat_id=42, text="Just a moment")
            ctx.answer(f"{member['status']} {sent['message_id']}")

        @router.on(lambda ctx: "document" in ctx.update.event)
        async def document(ctx: Context) -> None:
            async with ctx.typing():
                content = await ctx.bot.download(ctx.update.event["document"]["file_id"])
            ctx.answer(content.decode())

        @router.on()
        async def other(ctx: Context) -> None:
            await ctx.bot.send_message(chat_id=42, text="")

        return router

    chat = Chat(make_router)
    assert await chat.send("/admin") == ["member 2"]
    chat.result("getChatMember", {"status": "creator"})
    assert await chat.send("/admin") == ["creator 5"]
    assert [message["text"] for message in chat.messages[-3:]] == ["/admin", "Just a moment", "creator 5"]
    await chat.restart()
    assert await chat.send(document={"file_id": chat.file(b"notes")}) == ["notes"]
    with pytest.raises(BotApiError, match="message text is empty"):
        await chat.send("hi")
    chat.refuse(403, "Forbidden: bot was kicked")
    with pytest.raises(BotApiError, match="kicked"):
        await chat.send("hi")
