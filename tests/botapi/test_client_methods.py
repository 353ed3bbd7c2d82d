"""The methods of the local Bot API, called by aiogram, python-telegram-bot and telebot; each parses the results."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import aiogram
import pytest
import telebot
import telegram
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import TelegramAPIServer
from aiogram.exceptions import TelegramServerError
from aiogram.types import BufferedInputFile

from stepwell.botapi import BotAPI, Person

GROUP = -(10**12) - 1
CHANNEL = -(10**12) - 2


@pytest.fixture
async def served() -> AsyncIterator[BotAPI]:
    async with BotAPI() as api:
        yield api


@pytest.fixture
def person(served: BotAPI) -> Person:
    person = served.chat(served.bot("my_bot"), first_name="Alice")
    group = person.group(GROUP, title="Team")
    group.user(7, first_name="Bob")
    person.group(CHANNEL, title="News", type="channel")
    return person


async def test_aiogram(served: BotAPI, person: Person) -> None:
    types = aiogram.types
    session = AiohttpSession(api=TelegramAPIServer.from_base(served.url))
    async with aiogram.Bot(person.bot.token, session=session) as bot:
        photo = await bot.send_photo(42, BufferedInputFile(b"p", "p.jpg"), caption="c", has_spoiler=True)
        assert photo.has_media_spoiler
        media = types.InputMediaVideo(media=BufferedInputFile(b"v", "v.mp4"), duration=3,
                                      thumbnail=BufferedInputFile(b"t", "t.jpg"))  # fmt: skip
        edited = await bot.edit_message_media(media, chat_id=42, message_id=photo.message_id)
        assert isinstance(edited, types.Message)
        assert edited.video is not None
        assert edited.video.thumbnail is not None
        await bot.edit_message_caption(chat_id=42, message_id=photo.message_id, caption="d")
        assert len(await bot.copy_messages(42, 42, [photo.message_id])) == 1
        assert len(await bot.forward_messages(42, 42, [photo.message_id])) == 1
        poll = await bot.send_poll(42, "2 + 2", ["3", "4"], type="quiz", correct_option_ids=[1], explanation="Because")
        assert (await bot.stop_poll(42, poll.message_id)).is_closed
        await bot.set_message_reaction(42, photo.message_id, [types.ReactionTypeEmoji(emoji="👍")])
        await bot.pin_chat_message(42, photo.message_id)
        full = await bot.get_chat(42)
        assert full.pinned_message is not None
        await bot.unpin_chat_message(42)
        await bot.unpin_all_chat_messages(42)
        await bot.restrict_chat_member(GROUP, 7, types.ChatPermissions(can_send_messages=False), until_date=None)
        assert isinstance(await bot.get_chat_member(GROUP, 7), types.ChatMemberRestricted)
        await bot.promote_chat_member(GROUP, 7, can_pin_messages=True)
        assert isinstance(await bot.get_chat_member(GROUP, 7), types.ChatMemberAdministrator)
        await bot.promote_chat_member(GROUP, 7)
        await bot.ban_chat_member(GROUP, 7)
        assert isinstance(await bot.get_chat_member(GROUP, 7), types.ChatMemberBanned)
        await bot.unban_chat_member(GROUP, 7)
        link = await bot.create_chat_invite_link(GROUP, name="Friends")
        assert (await bot.edit_chat_invite_link(GROUP, link.invite_link, member_limit=3)).member_limit == 3
        assert (await bot.revoke_chat_invite_link(GROUP, link.invite_link)).is_revoked
        assert (await bot.export_chat_invite_link(GROUP)).startswith("https://t.me/")
        await bot.send_invoice(42, "Tea", "A cup", "tea-1", "XTR", [types.LabeledPrice(label="Tea", amount=3)])
        await person.pay()
        await person.add_photo(b"me")
        assert (await bot.get_user_profile_photos(42)).total_count == 1
        await bot.set_my_name("Tea house")
        assert (await bot.get_my_name()).name == "Tea house"
        await bot.set_my_description("d")
        assert (await bot.get_my_description()).description == "d"
        await bot.set_my_short_description("s")
        assert (await bot.get_my_short_description()).short_description == "s"
        assert isinstance(await bot.get_chat_menu_button(), types.MenuButtonCommands)
        assert not (await bot.get_my_default_administrator_rights()).can_manage_chat
        checkout = [update.pre_checkout_query for update in await bot.get_updates()][-1]
        assert checkout is not None
        await checkout.answer(ok=True)
        paid = (await bot.get_updates())[-1].message
        assert paid is not None
        assert paid.successful_payment is not None
        charge = paid.successful_payment.telegram_payment_charge_id
        assert await bot.refund_star_payment(42, charge)
        with pytest.raises(TelegramServerError, match="'sendGift' is not supported by the local Bot API"):
            await bot.send_gift("1", user_id=42)


async def test_python_telegram_bot(served: BotAPI, person: Person) -> None:
    async with telegram.Bot(person.bot.token, base_url=f"{served.url}/bot") as bot:
        photo = await bot.send_photo(42, b"p", caption="c", has_spoiler=True, show_caption_above_media=True)
        assert photo.has_media_spoiler
        edited = await bot.edit_message_media(telegram.InputMediaVideo(b"v", duration=3), 42, photo.message_id)
        assert isinstance(edited, telegram.Message)
        assert edited.video is not None
        await bot.edit_message_caption(42, photo.message_id, caption="d")
        assert len(await bot.copy_messages(42, 42, [photo.message_id])) == 1
        assert len(await bot.forward_messages(42, 42, [photo.message_id])) == 1
        assert (
            len(await bot.send_media_group(42, [telegram.InputMediaPhoto(b"a"), telegram.InputMediaPhoto(b"b")])) == 2
        )
        contact = await bot.send_contact(42, "+1", "A", last_name="B", vcard="BEGIN:VCARD")
        assert contact.contact is not None
        assert (contact.contact.last_name, contact.contact.vcard) == ("B", "BEGIN:VCARD")
        place = await bot.send_location(42, 1.5, 2.5, live_period=60, heading=9)
        assert isinstance(await bot.edit_message_live_location(42, place.message_id, latitude=3, longitude=4),
                          telegram.Message)  # fmt: skip
        assert isinstance(await bot.stop_message_live_location(42, place.message_id), telegram.Message)
        poll = await bot.send_poll(42, "Tea?", ["Yes", "No"], is_anonymous=False, open_period=60)
        await person.vote("Yes")
        assert (await bot.stop_poll(42, poll.message_id)).total_voter_count == 1
        assert await bot.set_message_reaction(42, photo.message_id, "👍")
        assert await bot.pin_chat_message(42, photo.message_id)
        pinned = (await bot.get_chat(42)).pinned_message
        assert pinned is not None
        assert await bot.unpin_chat_message(42, photo.message_id)
        assert await bot.unpin_all_chat_messages(42)
        assert await bot.restrict_chat_member(GROUP, 7, telegram.ChatPermissions.no_permissions())
        assert isinstance(await bot.get_chat_member(GROUP, 7), telegram.ChatMemberRestricted)
        assert await bot.promote_chat_member(GROUP, 7, can_pin_messages=True)
        assert isinstance(await bot.get_chat_member(GROUP, 7), telegram.ChatMemberAdministrator)
        assert await bot.promote_chat_member(GROUP, 7)
        assert await bot.ban_chat_member(GROUP, 7, revoke_messages=True)
        assert isinstance(await bot.get_chat_member(GROUP, 7), telegram.ChatMemberBanned)
        assert await bot.unban_chat_member(GROUP, 7)
        link = await bot.create_chat_invite_link(GROUP, name="Friends", creates_join_request=True)
        await person.group(GROUP).user(9).join(link.invite_link)
        assert await bot.approve_chat_join_request(GROUP, 9)
        assert (await bot.edit_chat_invite_link(GROUP, link, name="Others")).name == "Others"
        assert (await bot.revoke_chat_invite_link(GROUP, link)).is_revoked
        assert await bot.export_chat_invite_link(GROUP)
        assert (await bot.create_chat_subscription_invite_link(CHANNEL, 2592000, 5)).subscription_price == 5
        prices = [telegram.LabeledPrice("Tea", 3)]
        await bot.send_invoice(42, "Tea", "A cup", "tea-1", "XTR", prices, provider_token="")
        await person.pay()
        assert (await bot.create_invoice_link("Tea", "A cup", "tea-2", "XTR", prices)).startswith("https://")
        checkout = (await bot.get_updates(allowed_updates=telegram.Update.ALL_TYPES))[-1].pre_checkout_query
        assert checkout is not None
        assert await checkout.answer(ok=True)
        await person.react("🔥")
        *_, payment, reaction = await bot.get_updates()
        assert payment.message is not None
        assert payment.message.successful_payment is not None
        assert reaction.message_reaction is not None
        assert await bot.refund_star_payment(42, payment.message.successful_payment.telegram_payment_charge_id)
        await person.add_photo(b"me")
        assert (await bot.get_user_profile_photos(42)).total_count == 1
        assert await bot.set_my_name("Tea house")
        assert (await bot.get_my_name()).name == "Tea house"
        assert await bot.set_my_description("d")
        assert (await bot.get_my_description()).description == "d"
        assert await bot.set_my_short_description("s")
        assert (await bot.get_my_short_description()).short_description == "s"
        assert await bot.set_chat_menu_button(42, telegram.MenuButtonDefault())
        assert isinstance(await bot.get_chat_menu_button(42), telegram.MenuButtonDefault)
        assert await bot.set_my_default_administrator_rights(telegram.ChatAdministratorRights.all_rights())
        assert (await bot.get_my_default_administrator_rights()).can_manage_chat
        with pytest.raises(telegram.error.NetworkError, match="'sendGame' is not supported by the local Bot API"):
            await bot.send_game(42, "chess")


def _telebot(person: Person, act: Any) -> None:
    types = telebot.types
    bot = telebot.TeleBot(person.bot.token, threaded=False)
    photo = bot.send_photo(42, b"p", caption="c", has_spoiler=True)
    assert photo.has_media_spoiler
    media = types.InputMediaVideo(types.InputFile(io.BytesIO(b"v"), file_name="v.mp4"), duration=3)
    assert bot.edit_message_media(media, 42, photo.message_id).video.duration == 3
    assert bot.edit_message_caption("d", 42, photo.message_id).caption == "d"
    assert len(bot.copy_messages(42, 42, [photo.message_id])) == 1
    assert len(bot.forward_messages(42, 42, [photo.message_id])) == 1
    assert bot.send_contact(42, "+1", "A", last_name="B").contact.last_name == "B"
    assert bot.send_location(42, 1.5, 2.5, live_period=60).location.live_period == 60
    poll = bot.send_poll(42, "Tea?", ["Yes", "No"], open_period=60)
    assert bot.stop_poll(42, poll.message_id).is_closed
    assert bot.set_message_reaction(42, photo.message_id, [types.ReactionTypeEmoji("👍")])
    assert bot.pin_chat_message(42, photo.message_id)
    assert bot.get_chat(42).pinned_message.message_id == photo.message_id
    assert bot.unpin_chat_message(42)
    assert bot.unpin_all_chat_messages(42)
    assert bot.restrict_chat_member(GROUP, 7, permissions=types.ChatPermissions(can_send_messages=False))
    assert bot.get_chat_member(GROUP, 7).status == "restricted"
    assert bot.ban_chat_member(GROUP, 7)
    assert bot.get_chat_member(GROUP, 7).status == "kicked"
    assert bot.unban_chat_member(GROUP, 7)
    link = bot.create_chat_invite_link(GROUP, name="Friends")
    assert bot.edit_chat_invite_link(GROUP, link.invite_link, member_limit=3).member_limit == 3
    assert bot.revoke_chat_invite_link(GROUP, link.invite_link).is_revoked
    assert bot.export_chat_invite_link(GROUP)
    bot.send_invoice(42, "Tea", "A cup", "tea-1", "", "XTR", [types.LabeledPrice("Tea", 3)])
    act(person.pay())
    checkout = bot.get_updates()[-1].pre_checkout_query
    assert bot.answer_pre_checkout_query(checkout.id, ok=True)
    paid = bot.get_updates()[-1].message.successful_payment
    assert bot.refund_star_payment(42, paid.telegram_payment_charge_id)
    assert bot.get_user_profile_photos(42).total_count == 0
    assert bot.set_my_name("Tea house")
    assert bot.get_my_name().name == "Tea house"
    assert bot.get_my_description().description == ""
    assert bot.get_my_short_description().short_description == ""
    assert bot.get_chat_menu_button().type == "commands"
    assert not bot.get_my_default_administrator_rights().can_manage_chat
    assert bot.get_chat_members_count(GROUP) == 2
    with pytest.raises(telebot.apihelper.ApiTelegramException, match="'sendGame' is not supported"):
        bot.send_game(42, "chess")
    telebot.apihelper._get_req_session().close()


async def test_telebot(served: BotAPI, person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telebot.apihelper, "API_URL", f"{served.url}/bot{{0}}/{{1}}")
    loop = asyncio.get_running_loop()

    def act(action: Any) -> Any:
        """Run an action of the user in the event loop of the server."""
        return asyncio.run_coroutine_threadsafe(action, loop).result(timeout=10)

    await asyncio.to_thread(_telebot, person, act)
