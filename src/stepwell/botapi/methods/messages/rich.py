"""Bot API methods that send rich messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.formatting.rich.blocks import MEDIA, checked_blocks
from stepwell.botapi.formatting.rich.html import parse_rich_html
from stepwell.botapi.formatting.rich.markdown import rich_markdown_to_html
from stepwell.botapi.methods.messages.media import media_object
from stepwell.botapi.methods.messages.sending import deliver
from stepwell.botapi.params import Params

__all__ = ["METHODS", "rich_message_of"]

#: Before it is parsed. The limit of Telegram counts the text.
MAX_RAW_TEXT = 128 * 1024
_LINK = "tg://"


def send_rich_message(call: Call) -> dict[str, Any]:
    content = rich_message_of(call)
    if content is None:
        raise bad_request("rich message must be non-empty")
    return deliver(call, **content)


def rich_message_of(call: Call, *, in_draft: bool = False) -> dict[str, Any] | None:
    """Return the field of a message for the rich message of a call; ``None`` if it has none."""
    given = call.params.json("rich_message", dict, "rich message")
    if given is None:
        return None
    blocks = checked_blocks(
        _given_blocks(given), _file_of(call, given), detects=given.get("skip_entity_detection") is not True,
        in_draft=in_draft,
    )  # fmt: skip
    return {"rich_message": {"blocks": blocks, **({"is_rtl": True} if given.get("is_rtl") is True else {})}}


def _given_blocks(given: dict[str, Any]) -> Any:
    # Telegram takes the first of these three that is given.
    if isinstance(given.get("blocks"), list):
        return given["blocks"]
    for name in ("markdown", "html"):
        text = given.get(name)
        if isinstance(text, str) and text:
            if len(text) > MAX_RAW_TEXT:
                raise bad_request("RICH_MESSAGE_TEXT_TOO_LONG")
            return parse_rich_html(rich_markdown_to_html(text) if name == "markdown" else text)
    raise bad_request("rich message must be non-empty")


def _file_of(call: Call, given: dict[str, Any]) -> Callable[[str, Any], Any]:
    """Return a function for the files of blocks: uploaded, by their id, or by a link to an item of ``media``."""
    listed = Params(given).objects("media")
    by_id = {f"{each.get('id')}": each.get("media") for each in listed}

    def file(kind: str, media: Any) -> Any:
        if not isinstance(media, dict):
            raise bad_request("can't parse InputMedia: object expected")
        source = str(media.get("media", ""))
        if source.startswith(_LINK):
            media = by_id.get(source.rpartition("?id=")[2])
            if not isinstance(media, dict):
                raise bad_request("media not found")
        sent = "voice" if kind == "voice_note" else kind
        assert kind in MEDIA
        return media_object(call, sent, Params(media), "media")[sent]

    return file


METHODS: dict[str, Method] = {"sendRichMessage": send_rich_message}
