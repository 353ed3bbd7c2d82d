"""Hides secrets in texts and in refused values: URLs with passwords, tokens, keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sized
from itertools import pairwise
from typing import Final

__all__ = ["MASK", "displayed", "is_secret", "masked_text", "quoted"]

MASK: Final = "•••"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET = frozenset(
    {
        "apikey", "authorization", "cookie", "credential", "credentials", "cvc", "cvv", "iban", "otp", "passphrase",
        "passwd", "password", "passwords", "pin", "pwd", "secret", "secrets", "token", "tokens",
    }
)  # fmt: skip
_SECRET_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("card", "number")})

#: Tokens by their form: of a bot, of the usual services, and JSON web tokens.
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])\d{5,}:[A-Za-z0-9_-]{10,}"
    r"|(?<![A-Za-z0-9])(?:sk|pk|rk|whsec|gh[opsu]|github_pat|glpat|xox[abprs]|AKIA)[-_]?[A-Za-z0-9][A-Za-z0-9_-]{7,}"
    r"|(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+)*"
)
#: A long text that may be random, such as a key for encryption. In a longer text it may be the path of a file.
_RANDOM = re.compile(r"[A-Za-z0-9+/_-]{32,}={0,2}")
#: 24 random bytes or more as hexadecimal digits, which are more than those of a UUID.
_HEX = re.compile(r"[0-9a-f]{48}|[0-9A-F]{48}")
#: A URL, credentials before a host, or bytes, which may be a key.
_LIKELY = re.compile(r"""[A-Za-z0-9]{2}:/|:[^\s@]{1,200}@|\bb'[^']|\bb"[^"]""")
#: The password in a URL, which may have special characters. A port and a path are none. Each part has a longest length,
#: so that the time for a large text is in proportion to its size.
_PASSWORD = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s:/@'\"]{0,200}):(?!\d+/)\S{1,1000}@")
#: The name and the value of ``name=value``, ``name: value`` and ``"name": "value"``.
_NAME = re.compile(r"""(?<![\w-])([A-Za-z_][\w-]*)["']?\s*[=:]\s*""")
_VALUE = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?:(?:Bearer|Basic)\s+)?[^\s,;&'")}\]]+""")
#: The shortest value of a masked field that is searched for in a text: a shorter one is part of other words.
_SHORTEST = 4


def is_secret(name: str) -> bool:
    """Return whether a field of this name probably holds a secret: ``api_key``, ``dbPassword``, ``PIN``.

    Example::

        from stepwell.engine import is_secret

        assert is_secret("api_key") and not is_secret("name")
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    return bool(_SECRET & set(words)) or any(pair in _SECRET_PAIRS for pair in pairwise(words))


def masked_text(text: str, values: Iterable[str] = ()) -> str:
    """Return a text with its secrets masked: passwords of URLs, tokens, fields with telling names, and ``values``.

    Example::

        from stepwell.engine import MASK, masked_text

        assert masked_text("token=abcdef, name=Ann") == f"token={MASK}, name=Ann"
    """
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, MASK)
    text = _PASSWORD.sub(rf"\1:{MASK}@", text)
    return _TOKEN.sub(MASK, "".join(_without_fields(text)))


def _without_fields(text: str) -> Iterator[str]:
    """Yield the pieces of a text, with the values of fields masked whose names tell of secrets."""
    at = 0
    # The value of one name may have the next name: "ValueError: password=...".
    while found := _NAME.search(text, at):
        yield text[at : found.end()]
        at = found.end()
        if is_secret(found[1]) and (value := _VALUE.match(text, at)):
            yield MASK
            at = value.end()
    yield text[at:]


def quoted(value: object) -> str:
    """Return a value for an error: its ``repr``, or its type and length if it looks like a URL, a token or a key.

    A secret that is passed in the place of another argument must not reach a log.

    Example::

        from stepwell.engine import quoted

        assert quoted("ten") == "'ten'"
    """
    text = repr(value)
    if not (isinstance(value, bytes | bytearray | memoryview) or _is_likely(text)):
        return text
    kind = type(value).__name__
    if isinstance(value, str):
        return f"<{kind} of {len(value)} characters>"
    return f"<{kind} of length {len(value)}>" if isinstance(value, Sized) else f"<{kind}>"


def displayed(text: str) -> str:
    """Return a text for an error without quotes; otherwise as ``quoted``.

    Example::

        from stepwell.engine import displayed

        assert displayed("orders.db") == "orders.db"
    """
    return quoted(text) if quoted(text) != repr(text) else text


def _is_likely(text: str) -> bool:
    if _LIKELY.search(text) or _TOKEN.search(text):
        return True
    return any(_is_random(found[0]) for found in _RANDOM.finditer(text))


def _is_random(text: str) -> bool:
    """Return whether a long text is likely random, and not the path of a file, the id of a run or a name."""
    # Base64 changes between capitals and other characters at every second one, a name in CamelCase twice a word.
    changes = sum(one.isupper() != other.isupper() for one, other in pairwise(text))
    return (changes * 5 >= len(text) and any(map(str.isdigit, text))) or _HEX.search(text) is not None
