"""The rights of administrators and the permissions of members."""

from __future__ import annotations

from stepwell.botapi.errors import bad_request
from stepwell.botapi.params import Params

__all__ = ["PERMISSIONS", "RIGHTS", "administrator_rights", "permissions_of"]

RIGHTS: tuple[str, ...] = (
    "is_anonymous", "can_manage_chat", "can_delete_messages", "can_manage_video_chats", "can_restrict_members",
    "can_promote_members", "can_change_info", "can_invite_users", "can_post_stories", "can_edit_stories",
    "can_delete_stories", "can_send_welcome_messages", "can_pin_messages", "can_manage_topics",
)  # fmt: skip
_MEDIA = (
    "can_send_audios", "can_send_documents", "can_send_photos", "can_send_videos", "can_send_video_notes",
    "can_send_voice_notes",
)  # fmt: skip
PERMISSIONS: tuple[str, ...] = (
    "can_send_messages", *_MEDIA, "can_send_polls", "can_send_other_messages", "can_add_web_page_previews",
    "can_react_to_messages", "can_edit_tag", "can_change_info", "can_invite_users", "can_pin_messages",
    "can_manage_topics",
)  # fmt: skip


def administrator_rights(*, all_of_them: bool = False) -> dict[str, bool]:
    """Return the rights of an administrator: none, or all except anonymity."""
    return {right: all_of_them and right != "is_anonymous" for right in RIGHTS}


def permissions_of(params: Params) -> dict[str, bool]:
    """Return the ChatPermissions object of a call, with the permissions that others imply."""
    given = params.json("permissions", dict)
    if given is None:
        raise bad_request("can't parse permissions JSON object")
    given = {name: value is True for name, value in given.items()}
    independent = params.flag("use_independent_chat_permissions")
    allowed = {name: given.get(name, False) for name in PERMISSIONS}
    if given.keys().isdisjoint(_MEDIA):
        allowed |= dict.fromkeys(_MEDIA, given.get("can_send_media_messages", False))
    if not independent and (allowed["can_send_other_messages"] or allowed["can_add_web_page_previews"]):
        allowed |= dict.fromkeys((*_MEDIA, "can_send_messages"), True)
    if not independent and (allowed["can_send_polls"] or given.get("can_send_media_messages")):
        allowed["can_send_messages"] = True
    defaults = {
        "can_react_to_messages": "can_send_messages",
        "can_edit_tag": "can_pin_messages",
        "can_manage_topics": "can_pin_messages",
    }
    return {**allowed, **{name: allowed[other] for name, other in defaults.items() if name not in given}}
