"""Encrypts the changes that are written to a store, and decrypts the records that it returns."""

from __future__ import annotations

from stepwell.codec.json import replaced
from stepwell.record import KEEP, Address, Change, Damage, Head, Queue, Stored
from stepwell.storage.operations import Applied, Apply, Claimed, EncryptedQueue, Result
from stepwell.storage.sealed.cipher import Keyring, NameCipher

__all__ = ["RecordCodec"]

#: The characters of four encrypted texts beyond four thirds of their plaintext.
_FOUR = 4 * 48


class RecordCodec:
    """Translates operations and results between plaintext and the store."""

    def __init__(self, ring: Keyring, names: NameCipher | None) -> None:
        self._ring = ring
        self._names = names

    def encrypted(self, apply: Apply) -> Apply:
        """Return a write with encrypted texts."""
        address, change = apply.address, apply.change
        head, fields, unset, memo, parts = change.head, change.set, change.unset, change.memo, change.parts
        queue, limit = change.queue, change.limit
        encrypt = self._ring.at(address).encrypt
        names = self._names
        if head is not KEEP:
            flow, state = head.flow, head.state
            if names is not None:
                flow = None if flow is None else names.hide("flow", address.namespace, flow)
                state = None if state is None else names.hide("state", address.namespace, state)
            head = Head(flow=flow, state=state, text=encrypt("h", "", head.text))
        if fields:
            fields = {name: encrypt("f", name, text) for name, text in fields.items()}
        if names is not None:
            if fields:
                fields = {names.hide("field", address.namespace, name): text for name, text in fields.items()}
            unset = tuple([names.hide("field", address.namespace, name) for name in unset])
            if isinstance(queue, Queue):
                queue = EncryptedQueue(names.hide("queue", address.namespace, queue.name), queue.priority)
        if memo is not KEEP:
            memo = encrypt("m", "", memo)
        if parts:
            parts = {name: None if text is None else encrypt("p", name, text) for name, text in parts.items()}
        # The store counts encrypted texts. There is room for the overhead of four of them.
        limit = limit * 4 // 3 + min(limit, _FOUR)
        encrypted: Change = replaced(
            change, head=head, set=fields, unset=unset, memo=memo, parts=parts, limit=limit, queue=queue
        )
        return replaced(apply, change=encrypted)

    def decrypted(self, address: Address, result: Result) -> Result:
        """Return a result with plaintext."""
        if isinstance(result, Claimed):
            record, memo = result.record, result.memo
            return replaced(
                result,
                record=None if record is None else self.stored(address, record),
                memo=None if memo is None else self.memo(address, memo),
            )
        if isinstance(result, Applied):
            return result if result.record is None else replaced(result, record=self.stored(address, result.record))
        return self.stored(address, result) if isinstance(result, Stored) else result

    def stored(self, address: Address, stored: Stored) -> Stored:
        """Return a record with plaintext. Texts that cannot be decrypted are returned as ``Damage``."""
        decrypt = self._ring.at(address).decrypt
        head, fields, parts, queue = stored.head, stored.fields, stored.parts, stored.queue
        if self._names is None:
            plain = {name: decrypt("f", name, text) for name, text in fields.items()}
        else:
            plain = self._named_fields(self._names, address, fields)
            if queue is not None:
                queue = Queue(self._names.reveal("queue", address.namespace, queue.name), queue.priority)
        return replaced(
            stored,
            head=None if head is None else decrypt("h", "", head),
            fields=plain,
            parts=None if parts is None else {name: decrypt("p", name, text) for name, text in parts.items()},
            queue=queue,
        )

    def _named_fields(self, names: NameCipher, address: Address, fields: dict[str, str]) -> dict[str, str]:
        """Return plaintext fields of a record with encrypted names."""
        decrypt = self._ring.at(address).decrypt
        plain: dict[str, str] = {}
        for stored_name, text in fields.items():
            name = stored_name if isinstance(text, Damage) else names.reveal("field", address.namespace, stored_name)
            # If the name cannot be decrypted, neither can the text.
            plain[name] = name if isinstance(name, Damage) else decrypt("f", name, text)
        return plain

    def head(self, address: Address, text: str | None) -> str | None:
        """Return the plaintext of a stored head."""
        return None if text is None else self._ring.at(address).decrypt("h", "", text)

    def memo(self, address: Address, text: str) -> str:
        """Return the plaintext of a stored memo."""
        return self._ring.at(address).decrypt("m", "", text)
