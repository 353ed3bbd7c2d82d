"""The parameters of the most used Bot API methods, to find misspelled ones.

Telegram ignores a parameter that it does not know, so ``reply_makrup=`` would send a message without its keyboard.
Unknown methods, and parameters that resemble no known one, are passed on, because Telegram adds new ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption

__all__ = ["PARAMETERS", "check_parameters"]

#: The least similarity at which a name counts as a misspelling of another.
SIMILAR = 0.85
#: Names that other libraries use, and names that are often expected.
_MEANT = {
    "markup": "reply_markup",
    "keyboard": "reply_markup",
    "buttons": "reply_markup",
    "reply_to": "reply_parameters",
    "disable_preview": "link_preview_options",
}


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


_TARGET = "business_connection_id chat_id message_thread_id direct_messages_topic_id"
# The last line has older names, which Telegram still accepts.
_SENT = (
    f"{_TARGET} disable_notification protect_content allow_paid_broadcast message_effect_id suggested_post_parameters "
    "reply_parameters reply_markup callback_query_id receiver_user_id ephemeral_message_parameters "
    "reply_to_message_id allow_sending_without_reply"
)
_CAPTION = "caption parse_mode caption_entities"
_PREVIEW = "link_preview_options disable_web_page_preview"
_EDITED = "business_connection_id chat_id message_id inline_message_id reply_markup"
_FILM = "duration width height thumbnail thumb has_spoiler show_caption_above_media"

#: The parameters of each method.
PARAMETERS: dict[str, frozenset[str]] = {
    "sendMessage": _names(f"{_SENT} text parse_mode entities {_PREVIEW}"),
    "sendPhoto": _names(f"{_SENT} {_CAPTION} photo show_caption_above_media has_spoiler"),
    "sendDocument": _names(f"{_SENT} {_CAPTION} document thumbnail thumb disable_content_type_detection"),
    "sendVideo": _names(f"{_SENT} {_CAPTION} {_FILM} video cover start_timestamp supports_streaming"),
    "sendAnimation": _names(f"{_SENT} {_CAPTION} {_FILM} animation"),
    "sendAudio": _names(f"{_SENT} {_CAPTION} audio duration performer title thumbnail thumb"),
    "sendVoice": _names(f"{_SENT} {_CAPTION} voice duration"),
    "sendSticker": _names(f"{_SENT} sticker emoji"),
    "sendMediaGroup": _names(f"{_SENT} media"),
    "sendLocation": _names(
        f"{_SENT} latitude longitude horizontal_accuracy live_period heading proximity_alert_radius"
    ),
    "sendContact": _names(f"{_SENT} phone_number first_name last_name vcard"),
    "sendPoll": _names(
        f"{_SENT} question question_parse_mode question_entities options is_anonymous type allows_multiple_answers "
        "correct_option_id correct_option_ids explanation explanation_parse_mode explanation_entities open_period "
        "close_date is_closed allows_revoting shuffle_options allow_adding_options hide_results_until_closes "
        "description description_parse_mode description_entities media explanation_media members_only country_codes"
    ),
    "sendDice": _names(f"{_SENT} emoji"),
    "sendChatAction": _names("business_connection_id chat_id message_thread_id action"),
    "copyMessage": _names(f"{_SENT} {_CAPTION} from_chat_id message_id video_start_timestamp show_caption_above_media"),
    "forwardMessage": _names(f"{_SENT} from_chat_id message_id video_start_timestamp"),
    "editMessageText": _names(f"{_EDITED} text parse_mode entities rich_message {_PREVIEW}"),
    "editMessageCaption": _names(f"{_EDITED} {_CAPTION} show_caption_above_media"),
    "editMessageReplyMarkup": _names(_EDITED),
    "deleteMessage": _names("chat_id message_id"),
    "answerCallbackQuery": _names("callback_query_id text show_alert url cache_time"),
    "answerInlineQuery": _names(
        "inline_query_id results cache_time is_personal next_offset button switch_pm_text switch_pm_parameter"
    ),
    "setMyCommands": _names("commands scope language_code"),
}


def check_parameters(method: str, given: Iterable[str]) -> None:
    """Raise ``InvalidOption`` for a parameter that looks like a misspelled one of this method."""
    known = PARAMETERS.get(method)
    if known is None:
        return
    for name in given:
        if name in known:
            continue
        meant = _MEANT.get(name)
        near = [meant] if meant in known else get_close_matches(name, known, n=1, cutoff=SIMILAR)
        if near:
            raise InvalidOption(f"{method} has no parameter {quoted(name)}; did you mean {quoted(near[0])}?")
