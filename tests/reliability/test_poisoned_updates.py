"""Updates that no Bot API server should send: none of them ends the bot or stops a chat."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from stepwell import MemoryStorage
from stepwell.log import Log
from stepwell.telegram import BotClient
from stepwell.texts import split
from tests.backends import Backend
from tests.reliability.dose import LARGE, dose
from tests.reliability.poisoned import Runner, by_polling, by_webhook
from tests.reliability.raw_telegram import RawTelegram, RawUpdate, message

ASIDE = "updates set aside"
#: The id of the poisoned update, and its chat.
NUMBER, CHAT = 7001, 42


def made(
    text: str = '"hi"', *, number: str = "7001", more: str = "", peer: str = '{"id":42,"type":"private"}'
) -> bytes:
    event = f'{{"message_id":1,"date":1,"chat":{peer},"from":{peer},"text":{text}{more}}}'
    return f'{{"update_id":{number},"message":{event}}}'.encode()


def wrong(value: Any) -> bytes:
    fields = ("message_id", "date", "chat", "from", "text", "entities", "reply_to_message", "message_thread_id")
    return json.dumps({"update_id": NUMBER, "message": dict.fromkeys(fields, value)}).encode()


def pieces(answer: str) -> list[str]:
    """Return the messages of an answer."""
    return [piece.text for piece in split(answer)]


DEEP = "[" * 100_000 + "]" * 100_000
#: The poisoned updates, and what chat 42 is answered; ``None`` if they are set aside, "" if they have no chat.
KINDS: dict[str, tuple[bytes, str | None]] = {
    "a lone surrogate in the text": (made('"a\\ud83d"'), "got a\ufffd"),
    "a low surrogate in the text": (made('"\\ude00b\\\\ud83d"'), "got \ufffdb\\ud83d"),
    "a lone surrogate in a name": (made(peer='{"id":42,"type":"private","first_name":"\\ud83d"}'), "got hi"),
    "a lone surrogate in a key": (made(more=',"\\ud83d":1'), "got hi"),
    "a lone surrogate in callback data": (
        b'{"update_id":7001,"callback_query":{"id":"1","chat_instance":"1","data":"\\ud83d","from":{"id":42},'
        b'"message":{"message_id":1,"date":1,"chat":{"id":42,"type":"private"}}}}',
        "got None",
    ),
    "bytes that are no UTF-8": (made('"a?"').replace(b"?", b"\xff\xfe"), "got a\ufffd\ufffd"),
    "nested 100,000 deep": (made(more=f',"x":{DEEP}'), None),
    "nested 900 deep": (made(more=f',"x":{"[" * 900}{"]" * 900}'), "got hi"),
    "an int of 30 digits": (made(more=f',"date":{10**30}'), "got hi"),
    "an int of 5,000 digits": (made(more=f',"x":1{"0" * 5000}'), None),
    "NaN": (made(more=',"x":NaN'), None),
    "Infinity": (made(more=',"x":-Infinity'), None),
    "a number out of range": (made(more=',"x":1e999'), None),
    "null bytes": (made('"a\\u0000b"'), "got a\x00b"),
    "a null byte in the JSON": (made('"a?b"').replace(b"?", b"\0"), None),
    "a list for each field": (wrong([1]), ""),
    "an object for each field": (wrong({"id": []}), ""),
    "a number for each field": (wrong(-1), ""),
    "a text for each field": (wrong("x"), ""),
    "null for each field": (wrong(None), ""),
    "a chat with a huge id": (made(peer=f'{{"id":{10**40},"type":"private"}}'), ""),
    "no update_id": (b'{"message":{"message_id":1,"chat":{"id":42},"text":"x"}}', None),
    "the same keys twice": (made(more=',"text":"two"').replace(b"{", b'{"update_id":7001,', 1), "got two"),
    "an array": (b'[{"update_id":7001}]', None),
    "an empty object": (b"{}", None),
    "a text": (b'"update"', None),
    "null": (b"null", None),
    "a huge text": (made(json.dumps("x" * 900_000)), "got " + "x" * 900_000),
    "a larger text": (made(json.dumps("x" * 3_000_000)), "got " + "x" * 3_000_000),
    "cut JSON": (made()[:60], None),
    "cut in a text": (made()[:-5], None),
    "a BOM": (b"\xef\xbb\xbf" + made(), "got hi"),
    "a negative update_id": (made(number="-5"), None),
    "a too large update_id": (made(number=str(1 << 60)), None),
    "an update_id of 40 digits": (made(number=str(10**40)), None),
    "a boolean update_id": (made(number="true"), None),
    "an update_id as text": (made(number='"7001"'), None),
    "a fractional update_id": (made(number="7001.5"), None),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runner", [by_polling, by_webhook], ids=["polling", "webhook"])
async def test_a_poisoned_update_ends_no_bot_and_stops_no_chat(
    runner: Runner, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    raw, answer = KINDS[kind]
    if runner is by_webhook and kind == "a larger text":
        answer = None
    # Without a name, because the page has one row for all kinds together.
    rounds = 10 if LARGE else 1
    storage = MemoryStorage()
    cut = kind.startswith("cut")
    async with storage, runner(storage) as bot:
        expected: dict[int, list[str]] = {CHAT: [], 43: []}
        for at in range(rounds):
            number = NUMBER + 10 * at
            # As the first update of a batch, behind others, and alone.
            for chat in (CHAT, 43):
                await bot.deliver(message(number - 3 + chat % 42, chat, f"before {at}"))
                expected[chat].append(f"got before {at}")
            if at % 2:
                await bot.until(lambda: len(bot.telegram.sent.get(43, ())) == len(expected[43]))
            await bot.deliver(RawUpdate(number, raw.replace(b"7001", str(number).encode()), ends_body=cut))
            if answer:
                expected[CHAT] += pieces(answer)
            for chat in (CHAT, 43):
                await bot.deliver(message(number + 1 + chat % 42, chat, f"after {at}"))
                expected[chat].append(f"got after {at}")
            await bot.until(lambda: all(bot.telegram.sent.get(chat) == expected[chat] for chat in expected))
            sent = bot.telegram.sent
            assert {chat: sent.get(chat) for chat in expected} == expected
        assert not bot.ended
        assert bot.refused == []
        kept = await Log(storage, "my_bot", ASIDE).read()
    assert len(kept) == (rounds if answer is None else 0)
    skipped = [each for each in caplog.records if "is skipped after" in each.message and each.levelno == logging.ERROR]
    assert len(skipped) == len(kept)
    if kept and raw and b"7001" in raw and kind == "nested 100,000 deep":
        assert kept[0].value["update_id"] == NUMBER
        assert '"update_id":7001' in kept[0].value["update"]


@pytest.mark.parametrize("runner", [by_polling, by_webhook], ids=["polling", "webhook"])
async def test_poisoned_updates_of_all_kinds_in_a_row_are_handled_or_set_aside_on_each_backend(
    backend: Backend, runner: Runner
) -> None:
    if not LARGE and runner is by_polling and backend.name != "postgres":
        pytest.skip("polling waits between its attempts to read an update; the large dose runs on all backends")
    rounds = dose("POISONED_ROUNDS", 1, 10)
    storage = backend.storage()
    number, aside = 1000, 0
    expected: dict[int, list[str]] = {CHAT: [], 43: []}
    async with storage, runner(storage) as bot:
        for _ in range(rounds):
            for kind, (raw, answer) in KINDS.items():
                number += 2
                poisoned = raw.replace(b"7001", str(number).encode())
                await bot.deliver(RawUpdate(number, poisoned, ends_body=kind.startswith("cut")))
                await bot.deliver(message(number + 1, 43, kind))
                expected[43].append(f"got {kind}")
                too_large = runner is by_webhook and kind == "a larger text"
                aside += answer is None or too_large
                if answer and not too_large:
                    expected[CHAT] += pieces(answer)
            await bot.until(lambda: all(bot.telegram.sent.get(chat) == expected[chat] for chat in expected))
            assert {chat: bot.telegram.sent.get(chat) for chat in expected} == expected
        assert not bot.ended
        assert bot.refused == []
        log = Log(storage, "my_bot", ASIDE)
        assert await log.last() == aside
        assert len({entry.value["why"] for entry in await log.read()}) <= 2
    print(f"{rounds * len(KINDS)} poisoned updates, {aside} set aside, {sum(map(len, expected.values()))} answers")


@pytest.mark.parametrize(
    "result",
    [b'{"ok":true,"result":{"message_id":1,"chat":{"first_name":"\\ud83d"}}}', b'{"ok":true,"result":"\xff"}',
     b'{"ok":true,"result":' + DEEP.encode() + b"}"],
    ids=["a lone surrogate", "no UTF-8", "nested deeply"],
)  # fmt: skip
async def test_a_message_is_sent_once_if_its_result_cannot_be_read(result: bytes) -> None:
    async with RawTelegram() as telegram, BotClient("1:x", api=telegram.url) as client:
        telegram.results.append(result)
        await client.call("sendMessage", chat_id=1, text="Hello")
        assert telegram.sent == {1: ["Hello"]}
