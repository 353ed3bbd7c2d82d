"""Bot API methods that show what a bot is writing, before it sends the message."""

from __future__ import annotations

from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.formatting.texts import text_of
from stepwell.botapi.methods.messages.rich import rich_message_of
from stepwell.botapi.methods.messages.sending import topic_of
from stepwell.botapi.objects import Draft

__all__ = ["METHODS"]

#: Seconds for which a draft is shown after its last change.
SHOWN = 30.0


def send_draft(call: Call) -> bool:
    return _show(call, text_of(call.params, may_be_empty=True))


def send_rich_draft(call: Call) -> bool:
    content = rich_message_of(call, in_draft=True)
    if content is None:
        raise bad_request("rich message must be non-empty")
    return _show(call, content)


def _show(call: Call, content: dict[str, Any]) -> bool:
    # Telegram checks the text before the chat.
    params, room = call.params, call.room()
    if room.type != "private":
        raise bad_request("TEXTDRAFT_PEER_INVALID")
    number = params.number("draft_id", 0)
    if not number:
        raise bad_request("RANDOM_ID_INVALID")
    thread = params.number("message_thread_id", 0)
    if thread:
        topic_of(room, thread)
    flags = {name: params.flag(name) for name in ("can_stop", "keep_on_stop")}
    call.world.show_draft(room, Draft(number, content, call.world.clock() + SHOWN, thread, **flags))
    return True


METHODS: dict[str, Method] = {"sendMessageDraft": send_draft, "sendRichMessageDraft": send_rich_draft}
