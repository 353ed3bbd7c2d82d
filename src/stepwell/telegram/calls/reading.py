"""Reads the JSON of the Bot API, which may have text that is no Unicode and updates that are no JSON."""

from __future__ import annotations

import re
from typing import Any

from stepwell.codec.json import from_json, to_json

__all__ = ["is_update", "number_in", "read_answer", "read_json", "read_update"]

#: The largest update id. Telegram's are smaller; a larger offset would drop all its later updates.
LARGEST_ID = (1 << 53) - 1
#: The escape sequences of a JSON text. The group is a lone surrogate.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_UPDATES = re.compile(r'\s*\{\s*"ok"\s*:\s*true\s*,\s*"result"\s*:\s*\[')
_ACCEPTED = re.compile(r'\s*\{\s*"ok"\s*:\s*true\s*,\s*"result"\s*:')
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{},]', re.DOTALL)
_NUMBER = re.compile(r'\{\s*"update_id"\s*:\s*(\d{1,16})\s*[,}]')

#: Characters around an update that do not belong to it: white space, and the mark of UTF-8 files.
_AROUND = "\ufeff \t\r\n"


def read_json(body: bytes) -> Any:
    """Decode JSON. Bytes that are no UTF-8 and lone surrogates become U+FFFD. Raises ``ValueError``."""
    try:
        return _decoded(body)
    except ValueError:
        return _decoded(_repaired(body))


def read_update(body: bytes) -> dict[str, Any] | None:
    """Return an update that can be handled and stored; ``None`` for anything else."""
    try:
        update = read_json(body)
    except ValueError:
        return None
    return update if is_update(update) else None


def read_answer(body: bytes) -> Any:
    """Decode an answer. Raises ``ValueError``.

    If it has updates that are no JSON, these are texts in its result. Another result that is no JSON is ``None``.
    """
    try:
        return read_json(body)
    except ValueError:
        text = _repaired(body)
        begin = _UPDATES.match(text)
        if begin is not None:
            return {"ok": True, "result": _split(text, begin.end())}
        if _ACCEPTED.match(text) and _is_closed(text):
            return {"ok": True, "result": None}
        raise


def number_in(found: object) -> int | None:
    """Return the id of an update, or of the text of one; ``None`` if it has none that is valid."""
    if isinstance(found, str):
        match = _NUMBER.match(found.lstrip(_AROUND))
        number = None if match is None else int(match[1])
    else:
        number = found.get("update_id") if isinstance(found, dict) else None
    return number if type(number) is int and 0 <= number <= LARGEST_ID else None


def is_update(found: object) -> bool:
    """Return whether this is an update with a valid id that JSON can represent."""
    if not isinstance(found, dict) or number_in(found) is None:
        return False
    try:
        to_json(found)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return False
    return True


def _decoded(body: bytes | str) -> Any:
    try:
        return from_json(body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _repaired(body: bytes) -> str:
    text = body.decode("utf-8-sig", "replace")
    return _ESCAPE.sub(lambda escape: escape[0] if escape[1] is None else "\\ufffd", text)


def _split(text: str, begin: int) -> list[Any]:
    """Return the updates of an array: those that are no JSON as texts. The last one may be cut."""
    updates: list[Any] = []
    depth = 0
    end = len(text)
    for token in _TOKEN.finditer(text, begin):
        mark = token[0]
        if mark in "[{":
            depth += 1
        elif depth and mark in "]}":
            depth -= 1
        elif not depth and mark in ",]}":
            end = token.start()
            updates.append(_read(text[begin:end]))
            begin, end = token.end(), len(text)
            if mark != ",":
                return updates
    return [*updates, _read(text[begin:end])]


def _read(text: str) -> Any:
    try:
        return _decoded(text.strip(_AROUND))
    except ValueError:
        return text


def _is_closed(text: str) -> bool:
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "[{") - (token[0] in "]}")
    return depth == 0
