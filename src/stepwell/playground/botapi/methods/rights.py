"""The rights of administrators and the permissions of members."""

from __future__ import annotations

__all__ = ["PERMISSIONS", "administrator_rights"]

_RIGHTS = (
    "is_anonymous", "can_manage_chat", "can_delete_messages", "can_manage_video_chats", "can_restrict_members",
    "can_promote_members", "can_change_info", "can_invite_users", "can_post_stories", "can_edit_stories",
    "can_delete_stories", "can_send_welcome_messages", "can_pin_messages", "can_manage_topics",
)  # fmt: skip
PERMISSIONS: tuple[str, ...] = (
    "can_send_messages", "can_send_audios", "can_send_documents", "can_send_photos", "can_send_videos",
    "can_send_video_notes", "can_send_voice_notes", "can_send_polls", "can_send_other_messages",
    "can_add_web_page_previews", "can_react_to_messages", "can_edit_tag", "can_change_info", "can_invite_users",
    "can_pin_messages", "can_manage_topics",
)  # fmt: skip


def administrator_rights(*, all_of_them: bool = False) -> dict[str, bool]:
    """Return the rights of an administrator: none, or all except anonymity."""
    return {right: all_of_them and right != "is_anonymous" for right in _RIGHTS}
