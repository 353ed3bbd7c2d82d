"""Hints for names that a context does not have."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from stepwell._secrets import quoted

__all__ = ["missing_name"]

#: Names that other libraries use, and what to use instead.
_INSTEAD = {
    "chat": "use ctx.update.chat",
    "chat_data": "use ctx.data or ctx.profile",
    "clear": "use ctx.clear_flow()",
    "delete_data": "use ctx.set_data({})",
    "edit_text": "use ctx.edit(text)",
    "event": "use ctx.update",
    "finish": "use ctx.clear_flow()",
    "from_user": "use ctx.update.user",
    "get_data": "use ctx.data, a dict",
    "get_state": "use ctx.state",
    "get_value": "use ctx.data.get(name)",
    "message": "use ctx.text, ctx.update or ctx.update.raw",
    "reply": "use ctx.answer(text)",
    "reply_text": "use ctx.answer(text)",
    "reset_data": "use ctx.set_data({})",
    "reset_state": "use ctx.clear_flow()",
    "send": "use ctx.answer(text)",
    "send_message": "use ctx.answer(text), or ctx.bot.send_message(...) for its result",
    "user": "use ctx.update.user",
    "user_data": "use ctx.data or ctx.profile",
}


def missing_name(given: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a name that a context does not have; ``known`` are those that it has."""
    hint = _INSTEAD.get(given)
    if hint is None:
        near = get_close_matches(given, (name for name in known if not name.startswith("_")), n=1)
        hint = f"did you mean {quoted(near[0])}?" if near else None
    return AttributeError(f"a context has no {quoted(given)}" + (f"; {hint}" if hint else ""))
