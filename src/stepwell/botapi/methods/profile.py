"""Bot API methods for the bot itself: its name, descriptions, commands, menu button and default rights."""

from __future__ import annotations

import json
import re
from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.methods.chats.rights import administrator_rights

__all__ = ["METHODS"]


def get_me(call: Call) -> dict[str, Any]:
    abilities = {
        "can_join_groups": True,
        "can_read_all_group_messages": True,
        "supports_inline_queries": True,
        "can_connect_to_business": False,
        "has_main_web_app": False,
    }
    return {**call.bot.user, **abilities}


def set_commands(call: Call) -> bool:
    commands = call.params.objects("commands")
    for command in commands:
        if not re.fullmatch(r"[a-z0-9_]{1,32}", str(command.get("command", ""))):
            raise bad_request("BOT_COMMAND_INVALID")
        if not 1 <= len(str(command.get("description", ""))) <= 256:
            raise bad_request("BOT_COMMAND_DESCRIPTION_INVALID")
    call.bot.commands[_scope(call)] = commands
    return True


def get_commands(call: Call) -> list[Any]:
    return call.bot.commands.get(_scope(call), [])


def delete_commands(call: Call) -> bool:
    call.bot.commands.pop(_scope(call), None)
    return True


def _scope(call: Call) -> tuple[str, str]:
    scope = call.params.json("scope", dict) or {"type": "default"}
    return json.dumps(scope, sort_keys=True), call.params.text("language_code")


def set_name(call: Call) -> bool:
    _set_text(call, "name")
    # The name in the default language is the one in messages.
    call.bot.user["first_name"] = call.bot.profile.get(("name", ""), call.bot.name)
    return True


def get_name(call: Call) -> dict[str, str]:
    return {"name": _text(call, "name", call.bot.name)}


def set_description(call: Call) -> bool:
    return _set_text(call, "description")


def get_description(call: Call) -> dict[str, str]:
    return {"description": _text(call, "description")}


def set_short_description(call: Call) -> bool:
    return _set_text(call, "short_description")


def get_short_description(call: Call) -> dict[str, str]:
    return {"short_description": _text(call, "short_description")}


def _set_text(call: Call, name: str) -> bool:
    return _set(call, (name, call.params.text("language_code")), call.params.text(name))


def _text(call: Call, name: str, default: str = "") -> str:
    """Return a text in the language of the call; without one, in the default language."""
    profile = call.bot.profile
    text: str = profile.get((name, call.params.text("language_code")), profile.get((name, ""), default))
    return text


def set_menu_button(call: Call) -> bool:
    button = call.params.json("menu_button", dict)
    if button is not None and button.get("type") not in ("commands", "web_app", "default"):
        raise bad_request("MenuButton has unsupported type")
    if button is not None and button["type"] == "web_app":
        address = button.get("web_app")
        if not button.get("text") or not isinstance(address, dict) or not address.get("url"):
            raise bad_request("can't parse menu button: a button of type web_app has text and web_app.url")
    return _set(call, ("menu_button", _chat(call)), button)


def get_menu_button(call: Call) -> dict[str, Any]:
    profile = call.bot.profile
    button: dict[str, Any] = profile.get(
        ("menu_button", _chat(call)), profile.get(("menu_button", ""), {"type": "commands"})
    )
    return button


def _chat(call: Call) -> str:
    return str(call.room().id) if "chat_id" in call.params.given else ""


def set_default_rights(call: Call) -> bool:
    rights = call.params.json("rights", dict)
    return _set(call, _rights_key(call), rights and {name: value is True for name, value in rights.items()})


def get_default_rights(call: Call) -> dict[str, bool]:
    return {**administrator_rights(), **call.bot.profile.get(_rights_key(call), {})}


def _rights_key(call: Call) -> tuple[str, str]:
    return "default_rights", "channels" if call.params.flag("for_channels") else "groups"


def _set(call: Call, key: tuple[str, str], value: Any) -> bool:
    """Set an entry of the profile; an empty value restores the default."""
    if value:
        call.bot.profile[key] = value
    else:
        call.bot.profile.pop(key, None)
    return True


METHODS: dict[str, Method] = {
    "getMe": get_me,
    "setMyCommands": set_commands,
    "getMyCommands": get_commands,
    "deleteMyCommands": delete_commands,
    "setMyName": set_name,
    "getMyName": get_name,
    "setMyDescription": set_description,
    "getMyDescription": get_description,
    "setMyShortDescription": set_short_description,
    "getMyShortDescription": get_short_description,
    "setChatMenuButton": set_menu_button,
    "getChatMenuButton": get_menu_button,
    "setMyDefaultAdministratorRights": set_default_rights,
    "getMyDefaultAdministratorRights": get_default_rights,
}
