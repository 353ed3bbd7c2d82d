"""Files in calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell import open_storage
from stepwell.botapi import Bot, BotAPI, Person
from stepwell.errors import InvalidOption
from stepwell.telegram import BotClient, InputFile


def content(api: BotAPI, file: dict[str, Any]) -> tuple[str, bytes]:
    kept = api.world.files[file["file_id"]]
    return kept.name, kept.content


async def test_a_file_from_a_path_from_bytes_and_by_its_id(
    api: BotAPI, client: BotClient, chat: Person, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"from a path")
    sent = await client.call("sendDocument", chat_id=42, document=InputFile(path), caption="Notes")
    assert content(api, sent["document"]) == ("notes.txt", b"from a path")
    assert sent["caption"] == "Notes"
    again = await client.call("sendDocument", chat_id=42, document=InputFile(file_id=sent["document"]["file_id"]))
    assert again["document"]["file_id"] == sent["document"]["file_id"]
    photo = await client.call("sendPhoto", chat_id=42, photo=InputFile(content=b"\x89PNG", filename="cat.png"))
    assert content(api, photo["photo"][0]) == ("cat.png", b"\x89PNG")


async def test_the_other_parameters_of_an_upload_keep_their_meaning(client: BotClient, bot: Bot, chat: Person) -> None:
    keyboard = {"inline_keyboard": [[{"text": "Yes", "callback_data": "y"}]]}
    sent = await client.call(
        "sendDocument",
        chat_id=42,
        document=InputFile(content=b"x"),
        reply_markup=keyboard,
        protect_content=True,
        caption="<b>ä</b>",
        parse_mode="HTML",
        message_thread_id=None,
    )
    assert sent["reply_markup"] == keyboard
    assert sent["has_protected_content"] is True
    assert sent["caption_entities"] == [{"type": "bold", "offset": 0, "length": 1}]


async def test_an_album_has_files_of_every_kind(api: BotAPI, client: BotClient, chat: Person, tmp_path: Path) -> None:
    (tmp_path / "one.jpg").write_bytes(b"one")
    first = await client.call("sendPhoto", chat_id=42, photo=InputFile(content=b"old"))
    known = first["photo"][0]["file_id"]
    media = [
        {"type": "photo", "media": InputFile(tmp_path / "one.jpg"), "caption": "1"},
        {"type": "photo", "media": InputFile(content=b"two", filename="two.jpg")},
        {"type": "photo", "media": InputFile(file_id=known)},
        {"type": "photo", "media": known},
    ]
    sent = await client.call("sendMediaGroup", chat_id=42, media=media)
    assert [content(api, message["photo"][0])[1] for message in sent] == [b"one", b"two", b"old", b"old"]
    assert isinstance(media[0]["media"], InputFile)


async def test_an_upload_is_tried_again_as_a_whole(api: BotAPI, client: BotClient, bot: Bot, chat: Person) -> None:
    bot.cut()
    bot.refuse(502, "Bad Gateway")
    sent = await client.call("sendDocument", chat_id=42, document=InputFile(content=b"x" * 1_000_000))
    assert len(content(api, sent["document"])[1]) == 1_000_000


async def test_a_file_that_cannot_be_read_is_named(client: BotClient, bot: Bot, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"the file .*missing\.pdf cannot be read: No such file"):
        await client.call("sendDocument", chat_id=42, document=InputFile(tmp_path / "missing.pdf"))
    assert not bot.calls


async def test_a_caption_that_is_not_unicode_is_refused(client: BotClient, bot: Bot) -> None:
    with pytest.raises(InvalidOption, match="sendDocument: the parameters cannot be sent"):
        await client.call("sendDocument", chat_id=42, document=InputFile(content=b"x"), caption="a\ud800b")
    assert not bot.calls


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((), {}),
        (("a.jpg",), {"file_id": "b"}),
        ((), {"content": b"x", "file_id": "b"}),
        ((b"a.jpg",), {}),
        ((), {"content": "x"}),
    ],
)
def test_a_file_has_one_source(args: tuple[Any, ...], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="InputFile"):
        InputFile(*args, **options)


async def test_a_file_can_be_stored_with_the_calls_of_an_update(tmp_path: Path) -> None:
    files = [InputFile(tmp_path / "a.pdf"), InputFile(content=b"\x00", filename="b"), InputFile(file_id="c")]
    async with open_storage("memory://") as storage:
        await storage.set_data("bot", 42, {"files": files})
        assert await storage.get_data("bot", 42) == {"files": files}


def test_a_repr_shows_no_content() -> None:
    assert "secret" not in repr(InputFile(content=b"secret"))
