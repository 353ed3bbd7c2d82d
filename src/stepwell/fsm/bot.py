"""The client in handlers: the methods of the Bot API by their names, downloads, and chat actions that are repeated."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

from stepwell._secrets import quoted
from stepwell.errors import BotApiError
from stepwell.options import check_number

__all__ = ["BotMethods", "Method", "like_method", "save_file"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds between two chat actions. Telegram shows one for 5 seconds.
REPEAT = 4.0


class Method(Protocol):
    """A method of the Bot API. It takes the parameters by their names there, and returns the result as JSON."""

    def __call__(self, **params: Any) -> Coroutine[Any, Any, Any]:
        """Call it."""


class BotMethods(ABC):
    """A client for the Bot API, as handlers have it in ``ctx.bot``. Each method has its name in snake case.

    A call is made at once, within the limits that all calls of the bot share, and returns its result. It is made
    again if the handler runs again, as after a kill. Use ``ctx.answer`` and ``ctx.call`` for calls whose result is not
    needed: they are made once the changes of the handler are committed.

    Example::

        @router.on(command("admins"))
        async def admins(ctx):
            member = await ctx.bot.get_chat_member(chat_id=ctx.update.chat.id, user_id=ctx.update.user.id)
            if member["status"] in ("creator", "administrator"):
                ctx.answer("You are an admin.")
    """

    @abstractmethod
    async def call(self, method: str, /, **params: Any) -> Any:
        """Call a method of the Bot API by its name there, such as ``"sendMessage"``, and return its result.

        Raises ``BotApiError`` if the call is refused.
        """

    async def try_call(self, method: str, /, **params: Any) -> Any:
        """Make one attempt of a call, for what is soon out of date, such as a draft. A client may make it as ``call``.

        Raises ``BotUnavailable`` if the call must wait, with the seconds in ``retry_after`` where they are known.
        """
        return await self.call(method, **params)

    @overload
    async def download(self, file_id: str, *, to: None = None) -> bytes: ...

    @overload
    async def download(self, file_id: str, *, to: str | os.PathLike[str]) -> Path: ...

    @abstractmethod
    async def download(self, file_id: str, *, to: str | os.PathLike[str] | None = None) -> bytes | Path:
        """Download a file that a user has sent, and return its content, or the path that it was saved to.

        ``to``: a path, or a folder in which the file gets Telegram's name for it. It appears there when it is complete.

        Raises ``BotApiError`` if Telegram refuses it, as for files of more than 20 MB.
        """

    def typing(
        self, chat_id: int | str, action: str = "typing", *, every: float = REPEAT, **params: Any
    ) -> AbstractAsyncContextManager[None]:
        """Show in a chat that the bot is typing, until the block ends: ``async with ctx.bot.typing(chat_id):``.

        ``action`` is one of ``sendChatAction``, such as ``"upload_photo"``. It is sent every ``every`` seconds, and a
        failure does not concern the block. In a handler, ``ctx.typing()`` knows the chat.
        """
        check_number(every, "typing(every=...) must be a number of seconds above 0, got {}", above=0, finite=True)
        return self._typing({"chat_id": chat_id, "action": action, **params}, every)

    @asynccontextmanager
    async def _typing(self, params: dict[str, Any], every: float) -> AsyncGenerator[None]:
        repeating = asyncio.create_task(self._repeat(params, every), name="stepwell-typing")
        try:
            yield
        finally:
            repeating.cancel()
            with suppress(asyncio.CancelledError):
                await repeating

    async def _repeat(self, params: dict[str, Any], every: float) -> None:
        while True:
            try:
                await self.call("sendChatAction", **params)
            except BotApiError as error:
                logger.debug("a chat action was not shown: %s", error)
            await asyncio.sleep(every)

    if not TYPE_CHECKING:
        # Type checkers would accept any name.
        def __getattr__(self, name: str) -> Any:
            if name not in BotMethods.__annotations__:
                near = get_close_matches(name, BotMethods.__annotations__, n=1)
                hint = f"did you mean {quoted(near[0])}?" if near else "call a newer one with call('newMethod', ...)"
                raise AttributeError(f"the Bot API has no method {quoted(name)}; {hint}")
            return partial(self.call, _in_camel_case(name))

    # The methods of Bot API 10.3, except for close, which is how a client is closed.
    add_sticker_to_set: Method
    answer_callback_query: Method
    answer_chat_join_request_query: Method
    answer_guest_query: Method
    answer_inline_query: Method
    answer_pre_checkout_query: Method
    answer_shipping_query: Method
    answer_web_app_query: Method
    approve_chat_join_request: Method
    approve_suggested_post: Method
    ban_chat_member: Method
    ban_chat_sender_chat: Method
    close_forum_topic: Method
    close_general_forum_topic: Method
    convert_gift_to_stars: Method
    copy_message: Method
    copy_messages: Method
    create_chat_invite_link: Method
    create_chat_subscription_invite_link: Method
    create_forum_topic: Method
    create_invoice_link: Method
    create_new_sticker_set: Method
    decline_chat_join_request: Method
    decline_suggested_post: Method
    delete_all_message_reactions: Method
    delete_business_messages: Method
    delete_chat_photo: Method
    delete_chat_sticker_set: Method
    delete_ephemeral_message: Method
    delete_forum_topic: Method
    delete_message: Method
    delete_message_reaction: Method
    delete_messages: Method
    delete_my_commands: Method
    delete_sticker_from_set: Method
    delete_sticker_set: Method
    delete_story: Method
    delete_webhook: Method
    edit_chat_invite_link: Method
    edit_chat_subscription_invite_link: Method
    edit_ephemeral_message_caption: Method
    edit_ephemeral_message_media: Method
    edit_ephemeral_message_reply_markup: Method
    edit_ephemeral_message_text: Method
    edit_forum_topic: Method
    edit_general_forum_topic: Method
    edit_message_caption: Method
    edit_message_checklist: Method
    edit_message_live_location: Method
    edit_message_media: Method
    edit_message_reply_markup: Method
    edit_message_text: Method
    edit_story: Method
    edit_user_star_subscription: Method
    export_chat_invite_link: Method
    forward_message: Method
    forward_messages: Method
    get_available_gifts: Method
    get_business_account_gifts: Method
    get_business_account_star_balance: Method
    get_business_connection: Method
    get_chat: Method
    get_chat_administrators: Method
    get_chat_gifts: Method
    get_chat_member: Method
    get_chat_member_count: Method
    get_chat_menu_button: Method
    get_custom_emoji_stickers: Method
    get_file: Method
    get_forum_topic_icon_stickers: Method
    get_game_high_scores: Method
    get_managed_bot_access_settings: Method
    get_managed_bot_token: Method
    get_me: Method
    get_my_commands: Method
    get_my_default_administrator_rights: Method
    get_my_description: Method
    get_my_name: Method
    get_my_short_description: Method
    get_my_star_balance: Method
    get_star_transactions: Method
    get_sticker_set: Method
    get_updates: Method
    get_user_chat_boosts: Method
    get_user_gifts: Method
    get_user_personal_chat_messages: Method
    get_user_profile_audios: Method
    get_user_profile_photos: Method
    get_webhook_info: Method
    gift_premium_subscription: Method
    hide_general_forum_topic: Method
    leave_chat: Method
    log_out: Method
    pin_chat_message: Method
    post_story: Method
    promote_chat_member: Method
    read_business_message: Method
    refund_star_payment: Method
    remove_business_account_profile_photo: Method
    remove_chat_verification: Method
    remove_my_profile_photo: Method
    remove_user_verification: Method
    reopen_forum_topic: Method
    reopen_general_forum_topic: Method
    replace_managed_bot_token: Method
    replace_sticker_in_set: Method
    repost_story: Method
    restrict_chat_member: Method
    revoke_chat_invite_link: Method
    save_prepared_inline_message: Method
    save_prepared_keyboard_button: Method
    send_animation: Method
    send_audio: Method
    send_chat_action: Method
    send_chat_join_request_web_app: Method
    send_checklist: Method
    send_contact: Method
    send_dice: Method
    send_document: Method
    send_game: Method
    send_gift: Method
    send_invoice: Method
    send_live_photo: Method
    send_location: Method
    send_media_group: Method
    send_message: Method
    send_message_draft: Method
    send_paid_media: Method
    send_photo: Method
    send_poll: Method
    send_rich_message: Method
    send_rich_message_draft: Method
    send_sticker: Method
    send_venue: Method
    send_video: Method
    send_video_note: Method
    send_voice: Method
    set_business_account_bio: Method
    set_business_account_gift_settings: Method
    set_business_account_name: Method
    set_business_account_profile_photo: Method
    set_business_account_username: Method
    set_chat_administrator_custom_title: Method
    set_chat_description: Method
    set_chat_member_tag: Method
    set_chat_menu_button: Method
    set_chat_permissions: Method
    set_chat_photo: Method
    set_chat_sticker_set: Method
    set_chat_title: Method
    set_custom_emoji_sticker_set_thumbnail: Method
    set_game_score: Method
    set_managed_bot_access_settings: Method
    set_message_reaction: Method
    set_my_commands: Method
    set_my_default_administrator_rights: Method
    set_my_description: Method
    set_my_name: Method
    set_my_profile_photo: Method
    set_my_short_description: Method
    set_passport_data_errors: Method
    set_sticker_emoji_list: Method
    set_sticker_keywords: Method
    set_sticker_mask_position: Method
    set_sticker_position_in_set: Method
    set_sticker_set_thumbnail: Method
    set_sticker_set_title: Method
    set_user_emoji_status: Method
    set_webhook: Method
    stop_message_live_location: Method
    stop_poll: Method
    transfer_business_account_stars: Method
    transfer_gift: Method
    unban_chat_member: Method
    unban_chat_sender_chat: Method
    unhide_general_forum_topic: Method
    unpin_all_chat_messages: Method
    unpin_all_forum_topic_messages: Method
    unpin_all_general_forum_topic_messages: Method
    unpin_chat_message: Method
    upgrade_gift: Method
    upload_sticker_file: Method
    verify_chat: Method
    verify_user: Method


def like_method(name: str) -> str | None:
    """Return the method that a wrong name resembles most; ``None`` if there is such a method, or none is like it."""
    if name.lower() in _BY_LOWER_NAME:
        return None
    near = get_close_matches(name.lower().replace("_", ""), _BY_LOWER_NAME, n=1, cutoff=0.8)
    return _BY_LOWER_NAME[near[0]] if near else None


def _in_camel_case(name: str) -> str:
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)


_BY_LOWER_NAME = {name.lower(): name for name in map(_in_camel_case, (*BotMethods.__annotations__, "close"))}


def save_file(content: bytes, to: Path, name: str) -> Path:
    """Write a downloaded file to a path, or into a folder under its name, and return the path."""
    path = to / name if to.is_dir() else to
    # Beside its place, so that it appears there completely or not at all.
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        part.write_bytes(content)
        return part.replace(path)
    finally:
        part.unlink(missing_ok=True)
