"""Chats on the web with the agents of turns, and what the pages of the tools share."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stepwell.web.chat_app import WebChat, chat
    from stepwell.web.chat_conversation import Visitor

__all__ = ["Visitor", "WebChat", "chat"]

#: Imported at their first use, because they need starlette.
_LAZY: Final = {"Visitor": "chat_conversation", "WebChat": "chat_app", "chat": "chat_app"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
