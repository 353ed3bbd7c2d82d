"""Pictures and albums that a user sends, and edits of them."""

from __future__ import annotations

import pytest
from aiogram.types import Update

from stepwell.botapi import NotPossible, Person
from tests.botapi.conftest import Client


async def test_an_album_of_a_user_is_one_update_each_with_one_media_group_id(call: Client, chat: Person) -> None:
    sent = await chat.send_album(b"one", b"two", b"three", caption="Look, /here")
    updates = [Update.model_validate(each) for each in await call("getUpdates")]
    messages = [update.message for update in updates if update.message is not None]
    assert [message.message_id for message in messages] == [each["message_id"] for each in sent]
    assert len({message.media_group_id for message in messages}) == 1
    assert [message.caption for message in messages] == ["Look, /here", None, None]
    assert [each.type for each in messages[0].caption_entities or []] == ["bot_command"]
    file = await call("getFile", file_id=sent[1]["photo"][-1]["file_id"])
    token = chat.bot.token
    download = await call.http.get(
        f"{str(call.http.base_url).partition('/bot')[0]}/file/bot{token}/{file['file_path']}"
    )
    assert download.content == b"two"


async def test_two_albums_have_two_ids(chat: Person) -> None:
    first, second = await chat.send_album(b"1", b"2"), await chat.send_album(b"1", b"2")
    assert first[0]["media_group_id"] != second[0]["media_group_id"]


@pytest.mark.parametrize("count", [0, 1, 11])
async def test_an_album_has_2_to_10_pictures(chat: Person, count: int) -> None:
    with pytest.raises(NotPossible, match=f"an album has 2 to 10 pictures, got {count}; send_photo sends one"):
        await chat.send_album(*[b"x"] * count)


async def test_one_picture_belongs_to_no_album(call: Client, chat: Person) -> None:
    await chat.send_photo(b"one")
    (update,) = await call("getUpdates")
    assert update["message"].keys() == {"message_id", "date", "chat", "from", "photo"}


async def test_a_file_has_its_name_and_type_and_can_be_downloaded(call: Client, chat: Person) -> None:
    sent = await chat.send_document(b"a,b", name="tea.csv", caption="/read it")
    document = sent["document"]
    assert (document["file_name"], document["mime_type"], document["file_size"]) == ("tea.csv", "text/csv", 3)
    assert (sent["caption"], sent["caption_entities"][0]["type"]) == ("/read it", "bot_command")
    assert (await call("getFile", file_id=document["file_id"]))["file_path"].endswith(".csv")
    assert (await chat.edit("read it"))["caption"] == "read it"
    with pytest.raises(NotPossible, match=r"the file 'empty\.txt' is empty"):
        await chat.send_document(b"", name="empty.txt")


async def test_a_user_edits_any_message_and_the_caption_of_a_picture(call: Client, chat: Person) -> None:
    first = await chat.send("one")
    await chat.send("two")
    photo = await chat.send_photo(b"x", caption="a")
    await chat.edit("ONE", message=first["message_id"])
    await chat.edit("b")
    edits = [each["edited_message"] for each in await call("getUpdates") if "edited_message" in each]
    assert [(each["message_id"], each.get("text"), each.get("caption")) for each in edits] == [
        (first["message_id"], "ONE", None), (photo["message_id"], None, "b")]  # fmt: skip
    with pytest.raises(NotPossible, match="sent no message 99 to edit"):
        await chat.edit("x", message=99)
