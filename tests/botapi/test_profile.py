"""The bot itself: its name, commands, menu button and default rights."""

from __future__ import annotations

from stepwell.botapi import Bot, Person
from tests.botapi.conftest import Client


async def test_get_me_is_the_bot(call: Client, bot: Bot) -> None:
    me = await call("getMe")
    assert me["id"] == bot.id == int(bot.token.partition(":")[0])
    assert (me["is_bot"], me["username"]) == (True, "my_bot")


async def test_commands_are_kept_by_scope_and_language(call: Client) -> None:
    commands = [{"command": "start", "description": "Begin"}]
    assert await call("setMyCommands", commands=commands) is True
    assert await call("getMyCommands") == commands
    assert await call("getMyCommands", language_code="de") == []
    assert await call("setMyCommands", commands=[{"command": "No!", "description": "x"}]) == (
        400, "Bad Request: BOT_COMMAND_INVALID")  # fmt: skip
    assert await call("deleteMyCommands") is True
    assert await call("getMyCommands") == []


async def test_the_getters_return_what_the_bot_has_set(call: Client, chat: Person) -> None:
    assert await call("getMyName") == {"name": "my_bot"}
    for name in ("name", "description", "short_description"):
        method = "".join(word.title() for word in name.split("_"))
        assert await call(f"setMy{method}", **{name: "Tea house"}) is True
        assert await call(f"setMy{method}", **{name: "Teehaus"}, language_code="de") is True
        assert await call(f"getMy{method}") == {name: "Tea house"}
        assert await call(f"getMy{method}", language_code="de") == {name: "Teehaus"}
        assert await call(f"getMy{method}", language_code="fr") == {name: "Tea house"}
        assert await call(f"setMy{method}", language_code="de") is True
        assert await call(f"getMy{method}", language_code="de") == {name: "Tea house"}
    assert (await call("getMe"))["first_name"] == "Tea house"


async def test_the_menu_button_is_kept_for_a_chat_or_for_all(call: Client, chat: Person) -> None:
    button = {"type": "web_app", "text": "Shop", "web_app": {"url": "https://x.org"}}
    assert await call("getChatMenuButton") == {"type": "commands"}
    assert await call("setChatMenuButton", chat_id=42, menu_button=button) is True
    assert await call("getChatMenuButton", chat_id=42) == button
    assert await call("getChatMenuButton") == {"type": "commands"}
    assert await call("setChatMenuButton", menu_button={"type": "default"}) is True
    assert await call("getChatMenuButton") == {"type": "default"}
    assert (await call("setChatMenuButton", menu_button={"type": "x"}))[0] == 400


async def test_the_default_rights_are_kept_for_groups_and_channels(call: Client) -> None:
    assert not any((await call("getMyDefaultAdministratorRights")).values())
    assert await call("setMyDefaultAdministratorRights", rights={"can_pin_messages": True}) is True
    assert (await call("getMyDefaultAdministratorRights"))["can_pin_messages"] is True
    assert (await call("getMyDefaultAdministratorRights", for_channels=True))["can_pin_messages"] is False
