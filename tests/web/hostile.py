"""Hostile bodies and values for any server."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["BODIES", "REQUESTS", "VALUES"]

#: Requests to each method of the Bot API and to each action of the page.
REQUESTS = 40


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


BODIES = [
    b"",
    b"null",
    b"[]",
    b"{",
    b"\xff\xfe",
    b"\x00",
    b'"\\ud800"',
    b'{"chat_id": "\\udfff"}',
    b'{"chat_id": 1e999}',
    b'{"chat_id": Infinity, "text": "x"}',
    b'{"chat_id": -Infinity}',
    b'{"chat_id": NaN}',
    b'{"chat_id": 1' + b"0" * 400 + b"}",
    b'{"chat_id": 1' + b"0" * 5000 + b"}",
    b'{"chat_id": 42, "text": "\\ud83d"}',
    b'{"\\ud800": 1}',
    '{"chat_id": 42, "text": "\ud800"}'.encode("utf-16-le", "surrogatepass"),
    nested(65),
    nested(900),
    nested(100_000),
    b'{"chat_id": 42, "text": "x", "reply_markup": ' + nested(100_000) + b"}",
    b'{"chat_id": 42, "text": "x", "reply_markup": ' + nested(500, '{"a":', "}") + b"}",
    json.dumps({"chat_id": 42, "text": "x", "reply_markup": nested(100_000).decode()}).encode(),
]
VALUES: list[Any] = [
    None, True, -1, 0, 2**63, 10**300, 1.5, 1e308, "", " ", "x", "inf", "nan", "1e999", "-0", "²", "\0", "😀" * 3000,
    "<![x", "<b", "&#xD800;", "[a](b", "*", "http://[", "http://127.0.0.1:99999999/", "attach://x", "@", "{", "[[", [],
    [[]], [None], [1, "a", {}], [{}], [{"a": 1}], [{"offset": None}], [{"offset": "x", "length": 1}], {}, {"a": []},
    {"message_id": []}, {"message_id": "x"}, {"inline_keyboard": 1}, {"inline_keyboard": [[1]]},
    {"inline_keyboard": [{}]},
    {"inline_keyboard": [[{"text": {}, "callback_data": []}]]}, {"keyboard": [1]}, {"keyboard": [[[]]]},
    {"keyboard": [[{"text": 1}]]}, {"type": []}, "{\"type\": []}", "[1]", "[[[[[[[[", "\\ud800",
    [{"type": "photo", "media": []}, {"type": [], "media": {}}],
    [{"type": "photo", "media": "http://x/y", "caption_entities": [1]}] * 2,
    [{"text": []}, 1], [{"command": [], "description": {}}], [{"command": "a", "description": "b"}] * 3,
]  # fmt: skip
