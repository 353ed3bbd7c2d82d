"""Encryption keys: their text form, their ids, and the variables of the environment that hold them."""

from __future__ import annotations

import binascii
import os
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Final

from stepwell.errors import InvalidOption

__all__ = ["KEYS", "KEYS_FILE", "NAMES_KEY", "SealingKey", "keys_of_environment", "names_key_of_environment", "new_key"]

#: The variables of the environment with the keys, separated by spaces or commas, with the path of a file with one key
#: a line, and with the key for names.
KEYS: Final = "STEPWELL_KEYS"
KEYS_FILE: Final = "STEPWELL_KEYS_FILE"
NAMES_KEY: Final = "STEPWELL_NAMES_KEY"

#: Bytes of a key, for AES-256.
SIZE: Final = 32


def new_key() -> str:
    """Return a new random key as text, for ``keys=[...]`` or the variable ``STEPWELL_KEYS``."""
    return urlsafe_b64encode(os.urandom(SIZE)).decode().rstrip("=")


class SealingKey:
    """A key, and the id that is stored beside the texts it encrypts. Its representation shows only the id."""

    __slots__ = ("_secret", "id")

    def __init__(self, given: str | bytes, name: str = "keys") -> None:
        self._secret = _secret(given, name)
        #: Six characters, derived from the key, so that two keys never have one id by mistake.
        self.id: str = urlsafe_b64encode(self.derive("id", b"")[:6])[:6].decode()

    def __repr__(self) -> str:
        return f"SealingKey({self.id})"

    def derive(self, purpose: str, context: bytes) -> bytes:
        """Return the key for a purpose and a context: BLAKE2b with this key, as in libsodium's ``crypto_kdf``."""
        return blake2b(context, digest_size=SIZE, key=self._secret, person=purpose.encode()).digest()


def _secret(given: object, name: str) -> bytes:
    secret = given
    if isinstance(given, str):
        text = given.strip().rstrip("=").replace("-", "+").replace("_", "/")
        try:
            secret = binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
        except (binascii.Error, ValueError):
            secret = b""
    if not isinstance(secret, bytes) or len(secret) != SIZE:
        # Without the value, which may be a key with a typing error.
        raise InvalidOption(
            f"{name} has a value that is not a key: a key is {SIZE} random bytes, or their base64 text; "
            "'stepwell new-key' prints a new one"
        )
    return secret


def sealing_keys(given: object, name: str = "keys") -> list[SealingKey]:
    """Return the keys of an option, the newest first. Raises ``InvalidOption`` without showing them."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidOption(f"{name} must be a list of keys, the newest first, not {type(given).__name__}")
    keys = [SealingKey(each, name) for each in given]
    if not keys:
        raise InvalidOption(f"{name} is empty; 'stepwell new-key' prints a new key")
    if len({key.id for key in keys}) < len(keys):
        raise InvalidOption(f"{name} has the same key twice")
    return keys


def keys_of_environment() -> list[str]:
    """Return the keys in ``STEPWELL_KEYS``, or in the file named by ``STEPWELL_KEYS_FILE``."""
    text, path = os.environ.get(KEYS), os.environ.get(KEYS_FILE)
    if text and path:
        raise InvalidOption(f"both {KEYS} and {KEYS_FILE} are set; remove one of them")
    if path:
        try:
            lines = Path(path).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOption(f"{KEYS_FILE} names a file that cannot be read: {type(error).__name__}") from None
        text = " ".join([line.partition("#")[0] for line in lines])
    found = (text or "").replace(",", " ").split()
    if not found:
        raise InvalidOption(
            f"the storage is encrypted, and no keys are given; set {KEYS} to its keys, the newest first, or "
            f"{KEYS_FILE} to the path of a file with one key a line, or pass keys=[...]"
        )
    return found


def names_key_of_environment() -> str | None:
    """Return the key in ``STEPWELL_NAMES_KEY``."""
    return os.environ.get(NAMES_KEY) or None
