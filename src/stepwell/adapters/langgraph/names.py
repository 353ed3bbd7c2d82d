"""The names of the parts of a thread's record.

They are ``c/<namespace>/<checkpoint>``, ``v/<namespace>/<channel>/<version>``,
``w/<namespace>/<checkpoint>/<task>/<kind>`` and ``r/<run>``. Ids of checkpoints grow, so the last name of a namespace
is its newest checkpoint.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import b2a_base64
from functools import lru_cache
from typing import Final

__all__ = ["CHECKPOINT", "RUN", "VALUE", "WRITES", "checkpoint_name", "id_of", "long", "name", "namespace_of"]
__all__ += ["run_name", "short", "task_of"]

CHECKPOINT: Final = "c"
VALUE: Final = "v"
WRITES: Final = "w"
RUN: Final = "r"

#: The digits of base64, and digits that are sorted by value, so that short ids have the order of the ids.
_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SORTED: Final = bytes(sorted(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"))
_TO_SORTED: Final = bytes.maketrans(_BASE64, _SORTED)
_TO_BASE64: Final = bytes.maketrans(_SORTED, _BASE64)


def name(kind: str, *path: str) -> str:
    """Return the name of a part, or the prefix of the names below a path if the last element is empty."""
    return "/".join((kind, *map(short, path)))


def checkpoint_name(namespace: str, checkpoint_id: str) -> str:
    """Return the name of a checkpoint's part."""
    return f"{CHECKPOINT}/{short(namespace)}/{short(checkpoint_id)}"


def run_name(run_id: str) -> str:
    """Return the name of the part that marks a thread of a run."""
    return name(RUN, run_id)


def namespace_of(part: str) -> str:
    """Return the namespace in the name of a part."""
    return long(part.split("/")[1])


def id_of(part: str) -> str:
    """Return the checkpoint in the name of its part or of one of its writes."""
    return long(part.split("/")[2])


def task_of(part: str) -> str:
    """Return the task in the name of its writes."""
    return long(part.split("/")[3])


@lru_cache(maxsize=4096)
def short(text: str) -> str:
    """Return an element of a name without ``/``. A UUID takes 23 characters."""
    if len(text) == 36 and text[8] == text[13] == text[18] == text[23] == "-":
        digits = text.replace("-", "")
        try:
            number = bytes.fromhex(digits)
        except ValueError:
            pass  # It has other characters.
        else:
            if number.hex() == digits and len(number) == 16:
                return "~" + b2a_base64(number)[:22].translate(_TO_SORTED).decode()
    text = text.replace("%", "%25").replace("/", "%2F")
    return "%7E" + text[1:] if text[:1] == "~" else text


@lru_cache(maxsize=4096)
def long(text: str) -> str:
    """Return the text that ``short`` was given."""
    if text[:1] == "~":
        digits = b64decode(text[1:].encode().translate(_TO_BASE64) + b"==").hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    return text.replace("%7E", "~").replace("%2F", "/").replace("%25", "%")
