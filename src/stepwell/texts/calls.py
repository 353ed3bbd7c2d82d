"""Calls of the Bot API with texts: the defaults of the bot, and calls for the pieces of texts that are too long."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from stepwell.errors import BotApiError
from stepwell.options import check
from stepwell.texts.formatting import COMMONMARK, read_formatting
from stepwell.texts.pieces import MAX_CAPTION, MAX_TEXT, FormattedText, split, units

__all__ = ["Formatting", "MakeCall", "fit", "is_unmodified", "is_unparsable", "make_call", "without_formatting"]

logger: logging.Logger = logging.getLogger("stepwell.telegram")

Call: TypeAlias = dict[str, Any]
#: Makes a call of the Bot API: a method, and its parameters by name. Raises ``BotApiError``.
MakeCall: TypeAlias = Callable[..., Awaitable[Any]]


class Formatting(NamedTuple):
    """What the texts of a bot have unless a call says otherwise."""

    parse_mode: str | None = None
    link_preview_options: dict[str, Any] | None = None

    @classmethod
    def of(
        cls, parse_mode: str | None, link_preview_options: Mapping[str, Any] | None, owner: str
    ) -> Formatting | None:
        """Return the checked defaults; ``None`` if there are none."""
        modes = ("HTML", "MarkdownV2", "Markdown", "CommonMark")
        check(
            parse_mode is None or (isinstance(parse_mode, str) and parse_mode.lower() in map(str.lower, modes)),
            f"{owner}(parse_mode=...) takes {', '.join(modes)} or None, got {{}}",
            parse_mode,
        )
        check(
            link_preview_options is None or isinstance(link_preview_options, Mapping),
            f'{owner}(link_preview_options=...) takes a dict such as {{{{"is_disabled": True}}}}, got {{}}',
            link_preview_options,
        )
        options = None if link_preview_options is None else dict(link_preview_options)
        return cls(parse_mode, options) if parse_mode or options else None


class _Field(NamedTuple):
    """Where a call has a text."""

    name: str
    entities: str
    limit: int


_TEXT, _CAPTION = _Field("text", "entities", MAX_TEXT), _Field("caption", "caption_entities", MAX_CAPTION)
_FIELDS = {
    **dict.fromkeys(("sendMessage", "editMessageText"), _TEXT),
    **dict.fromkeys(
        (
            "sendPhoto", "sendVideo", "sendAnimation", "sendAudio", "sendDocument", "sendVoice", "sendPaidMedia",
            "copyMessage", "editMessageCaption",
        ),
        _CAPTION,
    ),
}  # fmt: skip
_PREVIEWED = frozenset({"sendMessage", "editMessageText"})
_PREVIEW = ("link_preview_options", "disable_web_page_preview")
#: What the further messages of a text have of its call.
_FOLLOWING = (
    "business_connection_id", "chat_id", "message_thread_id", "direct_messages_topic_id", "disable_notification",
    "protect_content", "allow_paid_broadcast", "receiver_user_id", *_PREVIEW,
)  # fmt: skip
_MARKUP = ("parse_mode", "entities", "caption_entities")


def fit(calls: Sequence[Call], defaults: Formatting | None = None) -> list[Call]:
    """Return calls that Telegram takes: with the defaults of the bot, and several for a text that is too long.

    The first call of a text keeps what it sends or edits. The others are messages with the rest; the keyboard of a
    text is below its last one, that of a caption below its picture. Calls that fit are the same objects.
    """
    fitted: list[Call] = []
    for call in calls:
        field = _FIELDS.get(call.get("method", ""))
        if field is not None:
            fitted += _fit(call, field, defaults)
        elif call.get("method") == "sendMediaGroup":
            fitted += _fit_album(call, defaults)
        else:
            fitted.append(call)
    return fitted


def without_formatting(call: Mapping[str, Any]) -> list[Call] | None:
    """Return the calls that send a text as it is, without markup; ``None`` if it has no formatting."""
    plain = {name: value for name, value in call.items() if name not in _MARKUP}
    media = call.get("media")
    if call.get("method") == "sendMediaGroup" and isinstance(media, list | tuple):
        plain["media"] = [
            {name: value for name, value in each.items() if name not in _MARKUP} if isinstance(each, Mapping) else each
            for each in media
        ]
    return None if plain == dict(call) else fit([plain])


async def make_call(make: MakeCall, call: Mapping[str, Any]) -> Any:
    """Make a call, and return its result. A text whose formatting is refused is sent as it is, without markup.

    An edit that would change nothing counts as made; its result is ``None``.
    """
    try:
        return await _make(make, call)
    except BotApiError as error:
        if is_unmodified(error.description):
            return None
        plain = without_formatting(call) if is_unparsable(error.description) else None
        if plain is None:
            raise
        logger.warning("%s is sent without formatting: %s", call.get("method"), error.description)
    first, *others = plain
    result = await _make(make, first)
    for each in others:
        await _make(make, each)
    return result


def _make(make: MakeCall, call: Mapping[str, Any]) -> Awaitable[Any]:
    return make(call["method"], **{name: value for name, value in call.items() if name != "method"})


def is_unmodified(description: str) -> bool:
    """Return whether Telegram has refused an edit because the message has this text already."""
    return "message is not modified" in description.lower()


def is_unparsable(description: str) -> bool:
    """Return whether Telegram has refused a call because of its formatting."""
    return "can't parse" in description.lower()


def _fit(call: Call, field: _Field, defaults: Formatting | None) -> list[Call]:
    if defaults is not None:
        call = _with_defaults(call, field, defaults)
    text, mode = call.get(field.name), call.get("parse_mode")
    if not isinstance(text, str):
        return [call]
    is_ours = isinstance(mode, str) and mode.lower() == COMMONMARK
    # Most texts are so short that their units need not be counted.
    if not is_ours and (len(text) <= field.limit // 2 or units(text) <= field.limit):
        return [call]
    pieces = _pieces(text, mode, call.get(field.entities), field.limit)
    if len(pieces) == 1 and not is_ours and mode:
        # Only its markup makes it long. Telegram counts the text without it.
        return [call]
    if len(pieces) > 1 and call.get("chat_id") is None:
        # A message that was sent inline: nothing can follow it.
        return [call]
    return list(_calls(call, field, pieces))


def _with_defaults(call: Call, field: _Field, defaults: Formatting) -> Call:
    added: Call = {}
    if defaults.parse_mode is not None and field.name in call and not any(name in call for name in _MARKUP):
        added["parse_mode"] = defaults.parse_mode
    preview = defaults.link_preview_options
    if preview is not None and call["method"] in _PREVIEWED and not any(name in call for name in _PREVIEW):
        added["link_preview_options"] = dict(preview)
    return {**call, **added} if added else call


def _pieces(text: str, mode: object, entities: object, limit: int) -> list[FormattedText]:
    """Return the parts of a text for its first message and the others. Text that cannot be parsed is split as it is."""
    listed = list(filter(_is_entity, entities)) if isinstance(entities, list | tuple) else []
    if isinstance(mode, str) and mode:
        read = read_formatting(text, mode)
        text, listed = (text, []) if read is None else read
    pieces = split(text, listed, limit=MAX_TEXT, first=limit)
    # Telegram refuses messages of spaces.
    return [piece for piece in pieces if piece[0].strip()] or [FormattedText(text[:1], [])]


def _is_entity(value: object) -> bool:
    return isinstance(value, dict) and type(value.get("offset")) is int and type(value.get("length")) is int


def _calls(call: Call, field: _Field, pieces: list[FormattedText]) -> Iterator[Call]:
    (text, entities), *others = pieces
    first = {name: value for name, value in call.items() if name not in _MARKUP}
    first[field.name] = text
    if entities:
        first[field.entities] = entities
    keyboard = first.pop("reply_markup", None) if others and field is _TEXT else None
    yield first
    following: Call = {"method": "sendMessage"} | {name: call[name] for name in _FOLLOWING if name in call}
    if call["method"].startswith("edit") and call.get("message_id") is not None:
        # An edit does not name its topic. The answer to the message goes there.
        following["reply_parameters"] = {"message_id": call["message_id"], "allow_sending_without_reply": True}
    for number, (text, entities) in enumerate(others, 1):
        last = {"reply_markup": keyboard} if keyboard is not None and number == len(others) else {}
        yield {**following, "text": text, **({"entities": entities} if entities else {}), **last}


def _fit_album(call: Call, defaults: Formatting | None) -> list[Call]:
    """Return an album whose captions fit, and messages with the rest of them."""
    media = call.get("media")
    if not isinstance(media, list | tuple):
        return [call]
    items: list[Any] = []
    following: list[Call] = []
    for each in media:
        if isinstance(each, dict) and isinstance(each.get("caption"), str):
            about = {name: call[name] for name in _FOLLOWING if name in call}
            first, *others = _fit({**about, **each, "method": "sendMediaGroup"}, _CAPTION, defaults)
            items.append({name: value for name, value in first.items() if name != "method" and name not in about})
            following += others
        else:
            items.append(each)
    return [call] if items == list(media) else [{**call, "media": items}, *following]
