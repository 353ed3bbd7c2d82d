"""Bot API methods that send media."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.formatting.texts import text_of
from stepwell.botapi.methods.files import keep_photo, take_file
from stepwell.botapi.methods.messages.sending import deliver
from stepwell.botapi.params import Params

__all__ = ["KINDS", "MAX_ALBUM", "METHODS", "input_media", "media_object"]

MAX_ALBUM = 10


@dataclass(frozen=True, slots=True)
class MediaKind:
    """A kind of media: the fields of its object."""

    #: Always sent, with these values if the bot gives no others.
    always: dict[str, Any] = field(default_factory=dict)
    #: Taken from the parameters of the call.
    numbers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    #: Whether it has the name of the file.
    named: bool = False
    captioned: bool = True


_SIZE: dict[str, Any] = {"width": 1, "height": 1}
_MOVING: dict[str, Any] = {**_SIZE, "duration": 1}
_STICKER: dict[str, Any] = {"type": "regular", "width": 512, "height": 512, "is_animated": False, "is_video": False}
KINDS: dict[str, MediaKind] = {
    "photo": MediaKind(_SIZE),
    "document": MediaKind(named=True),
    "video": MediaKind(_MOVING, ("width", "height", "duration", "start_timestamp"), named=True),
    "animation": MediaKind(_MOVING, ("width", "height", "duration"), named=True),
    "audio": MediaKind({"duration": 1}, ("duration",), ("performer", "title"), named=True),
    "voice": MediaKind({"duration": 1}, ("duration",)),
    "video_note": MediaKind({"length": 1, "duration": 1}, ("length", "duration"), captioned=False),
    "sticker": MediaKind(_STICKER, texts=("emoji",), captioned=False),
}
_DOCUMENT = frozenset({"file_id", "file_unique_id", "file_size", "file_name", "mime_type", "thumbnail"})
_INPUT_MEDIA = ("animation", "audio", "document", "photo", "video")


def media_object(call: Call, kind: str, params: Params, name: str) -> dict[str, Any]:
    """Return the field of a message for a file: ``{"video": {...}}``."""
    file = take_file(call, kind, params, name)
    about = KINDS[file.kind]
    if not file.json:
        named = {"file_name": file.name} if about.named else {}
        typed = {"mime_type": file.media_type} if about.named or kind == "voice" else {}
        given = {**params.numbers(*about.numbers), **params.strings(*about.texts)}
        thumbnail = keep_photo(call, params, "thumbnail", "thumb")
        file.json = {
            **file.base, **about.always, **named, **typed, **given, **({"thumbnail": thumbnail} if thumbnail else {})
        }  # fmt: skip
    result = dict(file.json)
    if file.kind == "video":
        result |= _cover(call, params)
    # A file that is sent by its id keeps its kind. A photo is a list of sizes; an animation is also sent as a document.
    document = {name: value for name, value in result.items() if name in _DOCUMENT}
    extra = {"document": document} if file.kind == "animation" else {}
    return {file.kind: [result] if file.kind == "photo" else result, **extra}


def _cover(call: Call, params: Params) -> dict[str, Any]:
    if not params.has("cover") and "cover" not in call.params.files:
        return {}
    return {"cover": media_object(call, "photo", params, "cover")["photo"]}


def _content(call: Call, kind: str, params: Params, name: str) -> dict[str, Any]:
    """Return the fields of a message for a file and its caption."""
    flags = {"has_spoiler": "has_media_spoiler", "show_caption_above_media": "show_caption_above_media"}
    return {
        **media_object(call, kind, params, name),
        **(text_of(params, "caption", "caption_entities") if KINDS[kind].captioned else {}),
        **{shown: True for name, shown in flags.items() if params.flag(name)},
    }


def input_media(call: Call, item: dict[str, Any] | None, *, in_album: bool = False) -> dict[str, Any]:
    """Return the fields of a message for an InputMedia object."""
    if item is None:
        raise bad_request('parameter "media" is required')
    kind = str(item.get("type"))
    if kind not in _INPUT_MEDIA or (in_album and kind == "animation"):
        why = "can't be used in sendMediaGroup" if kind == "animation" else "is unsupported"
        raise bad_request(f'can\'t parse InputMedia: type "{kind}" {why}')
    return _content(call, kind, Params(item), "media")


def _sender(kind: str) -> Method:
    def send(call: Call) -> dict[str, Any]:
        return deliver(call, **_content(call, kind, call.params, kind))

    return send


def send_group(call: Call) -> list[dict[str, Any]]:
    items = call.params.objects("media")
    if not items:
        raise bad_request("there are no messages to send")
    if len(items) > MAX_ALBUM:
        raise bad_request("too many messages to send as an album")
    album = secrets.token_urlsafe(8)
    # All are checked before the first one is sent.
    contents = [input_media(call, item, in_album=True) for item in items]
    return [deliver(call, **content, media_group_id=album) for content in contents]


METHODS: dict[str, Method] = {
    **{f"send{kind.title().replace('_', '')}": _sender(kind) for kind in KINDS},
    "sendMediaGroup": send_group,
}
