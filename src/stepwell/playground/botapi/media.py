"""Bot API methods that send media. The newest files are kept; their content is not inspected."""

from __future__ import annotations

import mimetypes
import secrets
from collections.abc import Mapping
from typing import Any

from stepwell.playground.botapi.call import Call, Method
from stepwell.playground.botapi.messages import deliver
from stepwell.playground.botapi.params import Params
from stepwell.playground.botapi.refusal import bad_request
from stepwell.playground.botapi.texts import text_of

__all__ = ["METHODS"]

#: The most uploaded files that are kept.
MAX_FILES = 100
#: For each kind of media, the fields that Telegram always sends.
_REQUIRED_FIELDS: dict[str, dict[str, Any]] = {
    "photo": {"width": 1, "height": 1},
    "document": {},
    "video": {"width": 1, "height": 1, "duration": 1},
    "animation": {"width": 1, "height": 1, "duration": 1},
    "audio": {"duration": 1},
    "voice": {"duration": 1},
    "video_note": {"length": 1, "duration": 1},
    "sticker": {"type": "regular", "width": 512, "height": 512, "is_animated": False, "is_video": False},
}


def keep_file(call: Call, kind: str, given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a file that is uploaded, attached, named by its id, or named by a URL."""
    value = given.get(name)
    attached = value.removeprefix("attach://") if isinstance(value, str) and value.startswith("attach://") else name
    upload = call.params.files.get(attached)
    if upload is not None:
        file_id = secrets.token_urlsafe(12)
        media_type = mimetypes.guess_type(upload.name)[0] or "application/octet-stream"
        call.world.files[file_id] = {"name": upload.name, "type": media_type, "content": upload.content, "kind": kind}
        while len(call.world.files) > MAX_FILES:
            del call.world.files[next(iter(call.world.files))]
    elif isinstance(value, str) and value in call.world.files:
        file_id = value
    elif isinstance(value, str) and value.startswith(("http://", "https://")):
        # Not downloaded: this server makes no requests to the web.
        file_id = secrets.token_urlsafe(12)
        call.world.files[file_id] = {"name": value.rpartition("/")[2], "type": "", "content": b"", "kind": kind}
    else:
        raise bad_request(f"there is no {kind} in the request" if not value else "wrong file identifier specified")
    file = call.world.files[file_id]
    about = {"file_id": file_id, "file_unique_id": file_id, "file_size": len(file["content"]), **_REQUIRED_FIELDS[kind]}
    if kind in ("document", "video", "animation", "audio"):
        about |= {"file_name": file["name"], "mime_type": file["type"]}
    return about


def _content(call: Call, kind: str, given: Mapping[str, Any], name: str) -> dict[str, Any]:
    file = keep_file(call, kind, given, name)
    # A photo is a list of sizes; an animation is also sent as a document.
    extra = {"document": file} if kind == "animation" else {}
    return {kind: [file] if kind == "photo" else file, **extra}


def _sender(kind: str) -> Method:
    def send(call: Call) -> dict[str, Any]:
        caption = text_of(call.params, "caption", "caption_entities")
        return deliver(call, **_content(call, kind, call.params.given, kind), **caption)

    return send


def send_group(call: Call) -> list[dict[str, Any]]:
    items = call.params.objects("media")
    if not 2 <= len(items) <= 10:
        raise bad_request("wrong number of messages: a media group has 2 to 10 items")
    album = secrets.token_urlsafe(8)
    sent = []
    for item in items:
        if str(item.get("type")) not in _REQUIRED_FIELDS:
            raise bad_request("can't parse media: wrong type")
        caption = text_of(Params(item), "caption", "caption_entities")
        sent.append(deliver(call, **_content(call, item["type"], item, "media"), **caption, media_group_id=album))
    return sent


def _plain(kind: str, *fields: str) -> Method:
    def send(call: Call) -> dict[str, Any]:
        given = call.params.given
        missing = [name for name in fields if name not in given]
        if missing:
            raise bad_request(f"{missing[0]} is empty")
        numbers = ("latitude", "longitude")
        content = {name: call.params.fraction(name) if name in numbers else call.params.text(name) for name in fields}
        return deliver(call, **{kind: content})

    return send


def send_venue(call: Call) -> dict[str, Any]:
    params = call.params
    place = {name: params.fraction(name, 0) for name in ("latitude", "longitude")}
    return deliver(call, venue={"location": place, "title": params.text("title"), "address": params.text("address")})


def send_dice(call: Call) -> dict[str, Any]:
    return deliver(call, dice={"emoji": call.params.text("emoji", "🎲"), "value": secrets.randbelow(6) + 1})


def send_poll(call: Call) -> dict[str, Any]:
    params = call.params
    given = params.json("options", list) or []
    options = [each.get("text") if isinstance(each, dict) else each for each in given]
    if not all(isinstance(text, str) for text in options):
        raise bad_request("can't parse options: expected an Array of InputPollOption")
    if not params.text("question") or not options:
        raise bad_request("poll must have a question and options")
    poll = {
        "id": secrets.token_hex(8),
        "question": params.text("question"),
        "options": [{"persistent_id": str(at), "text": text, "voter_count": 0} for at, text in enumerate(options)],
        "total_voter_count": 0,
        "is_closed": False,
        "is_anonymous": "is_anonymous" not in params.given or params.flag("is_anonymous"),
        "type": params.text("type", "regular"),
        "allows_multiple_answers": params.flag("allows_multiple_answers"),
        "allows_revoting": True,
        "members_only": False,
    }
    return deliver(call, poll=poll)


def get_file(call: Call) -> dict[str, Any]:
    file_id = call.params.text("file_id")
    file = call.world.files.get(file_id)
    if file is None:
        raise bad_request("invalid file_id")
    size = len(file["content"])
    return {"file_id": file_id, "file_unique_id": file_id, "file_size": size, "file_path": f"{file['kind']}/{file_id}"}


METHODS: dict[str, Method] = {
    **{f"send{kind.title().replace('_', '')}": _sender(kind) for kind in _REQUIRED_FIELDS},
    "sendMediaGroup": send_group,
    "sendLocation": _plain("location", "latitude", "longitude"),
    "sendContact": _plain("contact", "phone_number", "first_name"),
    "sendVenue": send_venue,
    "sendDice": send_dice,
    "sendPoll": send_poll,
    "getFile": get_file,
}
