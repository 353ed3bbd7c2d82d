"""News to all: killed in the middle, they continue at the next reader."""

from __future__ import annotations

import signal
from pathlib import Path

from examples.cookbook import broadcast
from stepwell.botapi import BotAPI
from stepwell.testing import Chat
from tests.telegram.test_run_command import command
from tests.until import until

#: The process is killed when so many of the readers have the news: more than a kill may repeat.
READERS, KILLED_AT = 70, 50
#: The most that a kill repeats: a group of results that was not stored yet, and the messages under way.
REPEATED = 25 + 10


async def test_news_that_are_killed_in_the_middle_reach_each_reader_and_begin_not_from_the_start(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/news.db"
    async with BotAPI() as api:
        bot = api.bot("news_bot")
        editor = api.chat(bot, broadcast.EDITOR, first_name="Ed")
        readers = [api.chat(bot, 1000 + number) for number in range(READERS)]
        await readers[0].block()
        fsm = broadcast.make_router(url).fsm
        assert fsm is not None
        async with fsm:
            for reader in readers:
                async with fsm.conversation(key=(reader.id, reader.id)) as ctx:
                    ctx.start_flow(broadcast.Reader)
        got = lambda: [reader for reader in readers if reader.last == "Tea is back"]  # noqa: E731
        arguments = ("run", str(broadcast.__file__), "--api", api.url, "--storage", url)
        async with command(*arguments, folder=tmp_path, BOT_TOKEN=bot.token) as run:
            await run.until("is running")
            assert await editor.ask("/send Tea is back", timeout=60) == "Tea is back"
            await editor.press("Send to all")
            await until(got, lambda found: len(found) >= KILLED_AT)
            await run.stop(signal.SIGKILL)
        before = len(got())
        assert before < READERS - 1
        async with command(*arguments, folder=tmp_path, BOT_TOKEN=bot.token) as run:
            await run.until("is running")
            done = f"Done: {READERS - 1} got it, 1 have blocked me, 0 failed."
            await until(lambda: editor.last, lambda last: last == done)
        sent = [len([each for each in reader.messages if each.get("text") == "Tea is back"]) for reader in readers]
        assert sent[0] == 0
        assert min(sent[1:]) == 1
        assert sum(sent) - (READERS - 1) <= REPEATED
        async with broadcast.make_router(url).fsm as fsm:  # type: ignore[union-attr]
            assert len([entry async for entry in fsm.find(flow="reader")]) == READERS - 1


async def test_only_the_editor_sends_and_each_draft_is_sent_once() -> None:
    editor = Chat(broadcast.make_router, user=broadcast.EDITOR)
    reader = editor.user(7)
    assert await reader.send("/start") == ["You get the news now. /stop ends it."]
    assert await reader.send("/send Buy this") == ["You get the news. /stop ends it."]
    assert await editor.send("/send Tea is back") == ["Tea is back"]
    editor.kill_next()
    await editor.press("Send to all")
    assert await editor.redeliver() == ["Tea is back\n\nOn its way."]
    assert await editor.redeliver() == ["Tea is back\n\nOn its way."]
    assert await editor.profile() == {}
    assert await editor.advance(0) == ["Done: 1 got it, 0 have blocked me, 0 failed."]
    assert reader.last == "Tea is back"
    assert await reader.send("/stop") == ["You get no more news."]
    assert await reader.send("Hello") == ["/start to get the news."]
