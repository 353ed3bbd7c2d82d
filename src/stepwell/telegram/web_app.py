"""The data that a Mini App gets from Telegram, checked."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from urllib.parse import parse_qsl

from stepwell.codec.json import from_json
from stepwell.record import DAY

__all__ = ["read_init_data"]

#: The fields that are JSON.
_JSON = ("chat", "receiver", "user")
#: Telegram sends about a thousand characters.
_LONGEST = 16_384


def read_init_data(
    init_data: str, token: str, *, max_age: float = DAY, clock: Callable[[], float] = time.time
) -> dict[str, object] | None:
    """Return the fields of ``Telegram.WebApp.initData``, with ``user`` and ``chat`` as dicts.

    Return ``None`` if Telegram has not signed them for the bot with this token, or if they are older than ``max_age``
    seconds. Trust nothing else that a Mini App sends: whoever uses it can change that.

    Example::

        found = read_init_data("user=%7B%22id%22%3A42%7D&auth_date=1&hash=00", "42:secret")
        assert found is None
    """
    if len(init_data) > _LONGEST:
        return None
    fields = dict(parse_qsl(init_data, keep_blank_values=True))
    signed = fields.pop("hash", "")
    key = hmac.digest(b"WebAppData", token.encode(), "sha256")
    text = "\n".join(f"{name}={fields[name]}" for name in sorted(fields))
    if not hmac.compare_digest(
        hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256").hex().encode(), signed.encode()
    ):
        return None
    try:
        age = clock() - int(fields["auth_date"])
        return (
            {name: from_json(value) if name in _JSON else value for name, value in fields.items()}
            if age <= max_age
            else None
        )
    except (LookupError, ValueError):
        return None
