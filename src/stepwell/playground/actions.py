"""The actions of the page, by name. Each takes the playground and the JSON of the request."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from stepwell.botapi import KeyboardButton, Person
from stepwell.errors import UsageError
from stepwell.playground.events import undo
from stepwell.playground.events.replay import replay as replay_chat
from stepwell.playground.played import Play
from stepwell.playground.rooms import PICTURES

__all__ = ["ACTIONS", "LARGEST", "Action"]

Given: TypeAlias = dict[str, Any]
Action: TypeAlias = Callable[[Play, Given], Awaitable[Given | None]]

MAX_TEXT, MAX_CAPTION, MAX_NAME, MAX_FILE_NAME = 4096, 1024, 64, 255
#: Ten pictures as base64, of the size to which the page reduces them, or one file.
MAX_FILES = 16 * 1024 * 1024
MAX_PEOPLE, MAX_ROOMS, MAX_TOPICS = 12, 12, 12
BURST = 10


async def send(play: Play, given: Given) -> None:
    """Send a message."""
    await _person(play, given).send(_text(given, "text", MAX_TEXT))


async def send_photos(play: Play, given: Given) -> None:
    """Send pictures: one by itself, several as an album."""
    person, photos = _person(play, given), _photos(given)
    caption = _text(given, "text", MAX_CAPTION) if given.get("text") else ""
    if len(photos) == 1:
        await person.send_photo(photos[0], caption=caption)
    else:
        await person.send_album(*photos, caption=caption)


async def send_file(play: Play, given: Given) -> None:
    """Send a file as it is."""
    content = given.get("content")
    if not isinstance(content, str):
        raise UsageError("content must be a file as base64")
    caption = _text(given, "text", MAX_CAPTION) if given.get("text") else ""
    name = _text(given, "name", MAX_FILE_NAME)
    await _person(play, given).send_document(b64decode(content, validate=True), name=name, caption=caption)


async def edit_message(play: Play, given: Given) -> None:
    """Edit a message of the user."""
    await _person(play, given).edit(_text(given, "text", MAX_TEXT), message=_number(given, "message"))


async def stop(play: Play, given: Given) -> None:
    """Press the Stop button of what the bot is writing."""
    await _person(play, given).stop()


async def burst(play: Play, given: Given) -> None:
    """Send ten messages at once."""
    text = given.get("text")
    texts = [f"Message {n}" for n in range(1, BURST + 1)] if not text else [_text(given, "text", MAX_TEXT)] * BURST
    await _person(play, given).send_at_once(*texts)


async def press(play: Play, given: Given) -> None:
    """Press a button of a message or of the reply keyboard; one inside of a rich message by its data."""
    person = _person(play, given)
    number = given.get("message")
    if given.get("data") is not None:
        shown = person.room.messages.get(_number(given, "message"), {})
        button = next((each for each in person.buttons_on(shown) if each.data == given["data"]), None)
        if button is None:
            raise UsageError("this button no longer exists")
        await person.push(button, shown)
        return
    message: dict[str, Any] = {}
    if number is None:
        rows = (person.room.keyboard or {}).get("keyboard", [])
    else:
        message = person.room.messages.get(_number(given, "message"), {})
        rows = message.get("reply_markup", {}).get("inline_keyboard", [])
    try:
        raw = rows[_number(given, "row")][_number(given, "column")]
    except IndexError:
        raise UsageError("this button no longer exists") from None
    await person.push(KeyboardButton(raw["text"], raw.get("callback_data"), types=number is None, raw=raw), message)


async def repeat(play: Play, given: Given) -> None:
    """Deliver the last update, or the one with this id, again."""
    play.world.redeliver(play.bot, given.get("update_id"))


async def restart(play: Play, given: Given) -> None:
    """Kill the bot and start it again."""
    await play.restart()


async def fire_timer(play: Play, given: Given) -> None:
    """Fire a timer now."""
    await play.observer.time_out(*_record(given))


async def edit_record(play: Play, given: Given) -> None:
    """Change the state and the data of a record."""
    state, data = given.get("state"), given.get("data")
    if state is not None:
        state = _text(given, "state", 512)
    if not isinstance(data, str):
        raise UsageError("data must be the text of a JSON object")
    await play.observer.edit(*_record(given), version=_text(given, "version", 100), state=state, data=data)


async def clear_record(play: Play, given: Given) -> None:
    """End a conversation."""
    await play.observer.clear(*_record(given), version=_text(given, "version", 100))


async def step_back(play: Play, given: Given) -> Given:
    """Undo the last update of a conversation."""
    undone = await undo.step_back(play, *_record(given))
    return {"undone": undone.title}


async def start_over(play: Play, given: Given) -> None:
    """Delete the records of a chat, and empty it."""
    await undo.start_over(play, play.room(_text(given, "room", 32)))


async def replay(play: Play, given: Given) -> Given:
    """Send a whole chat again."""
    done = await replay_chat(play, play.room(_text(given, "room", 32)).id)
    return {
        "steps": done.steps,
        "differences": [{"said": said, "before": before, "now": now} for said, before, now in done.differences],
    }


async def copy_test(play: Play, given: Given) -> Given:
    """Return a test of a chat."""
    person = _person(play, given)
    test = play.write_test(person)
    return {"file": test.file, "text": test.text}


async def add_person(play: Play, given: Given) -> Given:
    """Add a user with a private chat, and to every group."""
    people = [user for user in play.world.users.values() if not user["is_bot"]]
    if len(people) >= MAX_PEOPLE:
        raise UsageError(f"the limit of {MAX_PEOPLE} users is reached")
    user = max(each["id"] for each in people) + 1
    play.api.chat(play.bot, user, first_name=_text(given, "name", MAX_NAME))
    for room in list(play.world.rooms.values()):
        if room.id < 0:
            # The bot gets the update of a newcomer.
            await Person(play.world, play.bot, user, room=room).join()
    play.places_changed()
    return {"room": str(user), "user": user}


async def add_group(play: Play, given: Given) -> Given:
    """Add a group with all users in it."""
    groups = [room.id for room in play.world.rooms.values() if room.id < 0]
    if len(groups) >= MAX_ROOMS:
        raise UsageError(f"the limit of {MAX_ROOMS} groups is reached")
    room = play.world.group(min(groups, default=-1000) - 1, title=_text(given, "name", MAX_NAME))
    for user in [each["id"] for each in play.world.users.values() if not each["is_bot"]]:
        Person(play.world, play.bot, user, room=room)
    play.places_changed()
    return {"room": str(room.id)}


async def add_topic(play: Play, given: Given) -> Given:
    """Add a topic to a group, which turns it into a forum."""
    person = _person(play, {**given, "thread": None})
    if len(person.room.topics) >= MAX_TOPICS:
        raise UsageError(f"the limit of {MAX_TOPICS} topics is reached")
    topic = person.topic(_text(given, "name", MAX_NAME))
    play.places_changed()
    return {"thread": topic.thread}


def _person(play: Play, given: Given) -> Person:
    thread = given.get("thread")
    return play.person(
        _text(given, "room", 32), _number(given, "user"), _number(given, "thread") if thread is not None else None
    )


def _record(given: Given) -> tuple[str, str]:
    return _text(given, "bot", 512), _text(given, "key", 1024)


def _text(given: Given, name: str, longest: int) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value.strip() or len(value) > longest:
        raise UsageError(f"{name} must be a text of 1 to {longest} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} contains a lone surrogate and cannot be sent") from None
    return value


def _photos(given: Given) -> list[bytes]:
    photos = given.get("photos")
    if not isinstance(photos, list) or not photos or not all(isinstance(each, str) for each in photos):
        raise UsageError("photos must be a list of pictures as base64")
    found = [b64decode(each, validate=True) for each in photos]
    if not all(any(start.match(content) for start in PICTURES.values()) for content in found):
        raise UsageError("a picture must be a JPEG, PNG, GIF or WebP file")
    return found


def _number(given: Given, name: str) -> int:
    value = given.get(name)
    if type(value) is not int or abs(value) >= 2**53 or (name in ("row", "column") and value < 0):
        raise UsageError(f"{name} must be a whole number")
    return value


_ACTIONS: tuple[Action, ...] = (
    send, send_photos, send_file, edit_message, stop, burst, press, repeat, restart, fire_timer, edit_record,
    clear_record, step_back, start_over, replay, copy_test, add_person, add_group, add_topic,
)  # fmt: skip
ACTIONS: dict[str, Action] = {action.__name__: action for action in _ACTIONS}
#: The largest request of an action in bytes, if it is larger than that of others.
LARGEST: dict[str, int] = {"send_photos": MAX_FILES, "send_file": MAX_FILES}
