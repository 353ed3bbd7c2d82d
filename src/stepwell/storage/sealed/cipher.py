"""AES-256-GCM for the texts of records. Each record has a key of its own, derived from the storage's key."""

from __future__ import annotations

import os
import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from functools import lru_cache

from stepwell._optional import require
from stepwell._secrets import quoted
from stepwell.codec.seal import ENCRYPTED as PREFIX
from stepwell.errors import KeyMissing, NotEncrypted, StepwellError
from stepwell.record import Address, Damage
from stepwell.storage.sealed.keys import SealingKey

require("cryptography", "sealed", minimum="42")

from cryptography.exceptions import InvalidTag  # noqa: E402
from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: E402

__all__ = ["Keyring", "NameCipher", "RecordCipher"]

#: The prefix and the id of the key.
_HEADER = len(PREFIX) + 6
_NONCE = 12
#: How many ciphers of records are kept.
_KEPT = 4096
#: A cipher remembers texts of up to so many characters, and so many of them.
_SHORT, _MANY = 4096, 32

_UNREADABLE = "cannot be decrypted: it was changed, shortened, or moved from another place"
#: A name that ``NameCipher`` has encrypted: at least a nonce and a tag in base64.
_HIDDEN = re.compile(re.escape(PREFIX) + r"([\w-]{6})[A-Za-z0-9+/]{37,}=*")

_nonces: list[bytes] = []
if hasattr(os, "register_at_fork"):
    # A forked child must not use the nonces of its parent.
    os.register_at_fork(after_in_child=_nonces.clear)


def _draw() -> bytes:
    """Return a new random nonce, and keep more of them: one system call for many."""
    drawn = os.urandom(_NONCE * 64)
    _nonces.extend([drawn[at : at + _NONCE] for at in range(_NONCE, len(drawn), _NONCE)])
    return drawn[:_NONCE]


class Keyring:
    """Encrypts with the first key, and decrypts with all. It has no public attribute with a secret."""

    def __init__(self, keys: list[SealingKey], *, allow_plaintext: bool) -> None:
        self._keys = {key.id: key for key in keys}
        self.newest: SealingKey = keys[0]
        self.allow_plaintext: bool = allow_plaintext
        #: Returns the cipher of an address.
        self.at: Callable[[Address], RecordCipher] = lru_cache(maxsize=_KEPT)(self._at)
        #: Returns the key of an address that was derived from the key with an id.
        self.aead: Callable[[str, Address], AESGCM | None] = lru_cache(maxsize=_KEPT)(self._aead)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._keys)})"

    @property
    def ids(self) -> list[str]:
        """The ids of the keys, the newest first."""
        return list(self._keys)

    def is_current(self, text: str) -> bool:
        """Return whether a stored text is encrypted with the newest key."""
        return text.startswith(PREFIX + self.newest.id)

    def _at(self, address: Address) -> RecordCipher:
        return RecordCipher(self, address)

    def _aead(self, key_id: str, address: Address) -> AESGCM | None:
        key = self._keys.get(key_id)
        # Line feeds cannot be in an address, so different addresses have different contexts.
        context = f"{address.namespace}\n{address.key}".encode("utf-8", "surrogatepass")
        return None if key is None else AESGCM(key.derive("record", context))


class RecordCipher:
    """Encrypts and decrypts the texts of one record.

    The address is part of the record's key. The kind of a text and its name are associated data. So a text that was
    moved to another record, field or part cannot be decrypted.
    """

    __slots__ = ("_address", "_aead", "_header", "_known", "_ring")

    def __init__(self, ring: Keyring, address: Address) -> None:
        aead = ring._aead(ring.newest.id, address)
        assert aead is not None
        self._aead: AESGCM = aead
        self._header = PREFIX + ring.newest.id
        self._ring = ring
        self._address = address
        #: The last text of each kind and name with its plaintext, without parts. Most fields of a conversation are the
        #: same in its next update.
        self._known: dict[str, tuple[str, str]] = {}

    def encrypt(self, kind: str, name: str, text: str) -> str:
        """Return a text, encrypted with the newest key."""
        try:
            nonce = _nonces.pop()
        except IndexError:
            nonce = _draw()
        place = kind + name
        raw = nonce + self._aead.encrypt(nonce, text.encode("utf-8", "surrogatepass"), place.encode())
        sealed = self._header + b2a_base64(raw, newline=False).decode()
        if kind != "p":
            self._remember(place, sealed, text)
        return sealed

    def decrypt(self, kind: str, name: str, text: str) -> str:
        """Return the plaintext of a stored text. A text that cannot be decrypted is returned as ``Damage``."""
        place = kind + name
        known = self._known.get(place)
        if known is not None and known[0] == text:
            return known[1]
        header = text[:_HEADER]
        if header == self._header:
            aead: AESGCM | None = self._aead
        elif not text.startswith(PREFIX):
            return text if self._ring.allow_plaintext or isinstance(text, Damage) else self._not_encrypted(kind, name)
        else:
            aead = self._ring.aead(header[len(PREFIX) :], self._address)
        if aead is None:
            return self._key_missing(kind, name, header[len(PREFIX) :])
        try:
            raw = a2b_base64(text[_HEADER:], strict_mode=True)
            plain = aead.decrypt(raw[:_NONCE], raw[_NONCE:], place.encode()).decode("utf-8", "surrogatepass")
        except (InvalidTag, Base64Error, ValueError):
            key_id = _hidden_by(name) if kind == "f" else None
            # A reader without the key for names has the encrypted name.
            return Damage(_what(kind, name), _UNREADABLE, text) if key_id is None else self._names_key_missing(key_id)
        if kind != "p":
            self._remember(place, text, plain)
        return plain

    def _remember(self, place: str, text: str, plain: str) -> None:
        known = self._known
        if len(text) > _SHORT:
            known.pop(place, None)
        elif len(known) < _MANY or place in known:
            known[place] = (text, plain)

    def _not_encrypted(self, kind: str, name: str) -> Damage:
        what = _what(kind, name)
        return _damage(what, NotEncrypted(self._address.text, what))

    def _key_missing(self, kind: str, name: str, key_id: str) -> Damage:
        what = _what(kind, name)
        return _damage(what, KeyMissing(self._address.text, what, key_id, self._ring.ids))

    def _names_key_missing(self, key_id: str) -> Damage:
        what = "the name of a field"
        return _damage(what, KeyMissing(self._address.text, what, key_id, []))


def _damage(what: str, error: StepwellError) -> Damage:
    damage = Damage(what, "cannot be decrypted")
    damage.error = error
    return damage


def _what(kind: str, name: str) -> str:
    """Return how errors name a text."""
    known = {"h": "its flow and state", "m": "its memo of handled updates"}
    return known.get(kind) or (f"the field {quoted(name)}" if kind == "f" else f"the part {quoted(name)}")


class NameCipher:
    """Encrypts names for indexes: equal names of a namespace have equal texts, so that a store can compare them.

    The nonce is derived from the name, so it is used again for the same name only.
    """

    def __init__(self, key: SealingKey) -> None:
        self._key = key
        self._header = PREFIX + key.id
        #: Return the text of a name, and the name of a text. The arguments: kind, namespace, and name or text.
        self.hide: Callable[[str, str, str], str] = lru_cache(maxsize=_KEPT)(self._hide)
        self.reveal: Callable[[str, str, str], str] = lru_cache(maxsize=_KEPT)(self._reveal)

    def __repr__(self) -> str:
        return f"NameCipher({self._key.id})"

    def _hide(self, kind: str, namespace: str, name: str) -> str:
        context = f"{kind}\n{namespace}".encode()
        plain = name.encode("utf-8", "surrogatepass")
        nonce = self._key.derive("nonce", context + b"\n" + plain)[:_NONCE]
        sealed = AESGCM(self._key.derive("names", context)).encrypt(nonce, plain, None)
        return self._header + b2a_base64(nonce + sealed, newline=False).decode()

    def _reveal(self, kind: str, namespace: str, text: str) -> str:
        """Return a name, or ``Damage`` if a text is not a name that this key has encrypted."""
        what = f"the name of a {kind}"
        if not text.startswith(self._header):
            key_id = _hidden_by(text)
            if key_id is None:
                return _damage(what, NotEncrypted(namespace, what))
            return _damage(what, KeyMissing(namespace, what, key_id, [self._key.id]))
        try:
            raw = a2b_base64(text[_HEADER:], strict_mode=True)
            aead = AESGCM(self._key.derive("names", f"{kind}\n{namespace}".encode()))
            return aead.decrypt(raw[:_NONCE], raw[_NONCE:], None).decode("utf-8", "surrogatepass")
        except (InvalidTag, Base64Error, ValueError):
            return Damage(what, _UNREADABLE, text)


def _hidden_by(name: str) -> str | None:
    """Return the id of the key that has encrypted a name; ``None`` for a name in clear."""
    found = _HIDDEN.fullmatch(name) if name.startswith(PREFIX) else None
    return None if found is None else found[1]
