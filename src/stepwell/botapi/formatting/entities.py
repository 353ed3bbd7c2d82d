"""Message entities: commands, links and others that Telegram finds in a text without formatting.

Offsets and lengths count UTF-16 code units.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from stepwell.botapi.errors import Refusal, bad_request

__all__ = ["Entity", "byte_offset", "date_time", "find_entities", "unreadable", "utf16_length"]

Entity: TypeAlias = dict[str, Any]

#: A sentence may end behind it.
_URL = r"(?P<url>https?://[^\s<>]*[^\s<>.,:;!?'\")])"
_EMAIL = r"(?P<email>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
_OTHERS = (
    # No command: a path such as /usr/bin, and a tag such as </b>.
    r"(?<![\w/<>])(?P<bot_command>/[A-Za-z0-9_]{1,64}(?:@\w{3,32})?)(?![\w/<>])"
    r"|(?<!\w)(?P<mention>@\w{3,32})"
    r"|(?<!\w)(?P<hashtag>#\w+)"
)
_FOUND = re.compile(f"{_URL}|{_EMAIL}|{_OTHERS}")
#: Looking for an email address in a long word takes 10 ms.
_FOUND_WITHOUT_EMAIL = re.compile(f"{_URL}|{_OTHERS}")


def utf16_length(text: str) -> int:
    """Return the length of a text in UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def byte_offset(text: str, at: int) -> int:
    """Return the offset of a character in bytes, as error messages name it."""
    return len(text[:at].encode("utf-8", "surrogatepass"))


def date_time(unix: str, shape: str) -> dict[str, Any]:
    """Return the fields of a date-time entity."""
    if not unix.isdigit():
        raise unreadable("Invalid date specified")
    return {"unix_time": int(unix), **({"date_time_format": shape} if shape else {})}


def find_entities(text: str) -> list[Entity]:
    """Return the entities that Telegram finds without formatting."""
    return [
        {"type": str(match.lastgroup), "offset": utf16_length(text[: match.start()]), "length": utf16_length(match[0])}
        for match in (_FOUND if "@" in text else _FOUND_WITHOUT_EMAIL).finditer(text)
    ]


def unreadable(why: str) -> Refusal:
    """Return the error for formatting that cannot be parsed."""
    return bad_request(f"can't parse entities: {why}")
