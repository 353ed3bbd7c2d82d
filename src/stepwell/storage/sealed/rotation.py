"""Encrypting stored records again with the newest key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from stepwell.codec import encode_namespace
from stepwell.errors import Conflict, StoredDataError, Unsupported
from stepwell.options import check_instance
from stepwell.record import (
    KEEP,
    Address,
    Change,
    Damage,
    Head,
    Keep,
    Range,
    ReservedNamespace,
    Stored,
)
from stepwell.storage.copying.claims import PatientClaims, all_ended
from stepwell.storage.copying.selection import OF_BOTS, belongs_to
from stepwell.storage.listing import Query
from stepwell.storage.operations import Apply, Get, Guard, Release
from stepwell.storage.sealed.storage import SealedStorage

__all__ = ["Rotated", "rotate_keys"]

#: The number of records that are rewritten concurrently.
AT_ONCE = 50
#: The number of parts of a record that are read at once.
PARTS_AT_ONCE = 500
LEASE = 10.0
#: How often a record is read again because it was written meanwhile.
MOST_ATTEMPTS = 20
#: A record is not limited when the same values are written again.
NO_LIMIT = 1 << 50


@dataclass(slots=True, kw_only=True)
class Rotated:
    """The progress and the result of ``rotate_keys``."""

    #: Encoded names, in the order of the work.
    namespaces: list[str]
    #: The namespace that is being read.
    namespace: str = ""
    #: Records that had a text without the newest key, and were written.
    rewritten: int = 0
    #: Records whose texts all had the newest key.
    current: int = 0
    #: Records that cannot be decrypted. They were left unchanged.
    unreadable: list[Address] = field(default_factory=list)
    #: Records that were held or written all the time. Call ``rotate_keys`` again.
    busy: list[Address] = field(default_factory=list)


async def rotate_keys(
    storage: SealedStorage,
    *,
    namespaces: Iterable[str] | None = None,
    wait: float = 10.0,
    progress: Callable[[Rotated], None] | None = None,
) -> Rotated:
    """Encrypt all records again with the first key of a storage, or those of some bots.

    ``namespaces``: names of bots, whose conversations, logs, turns, updates in the inbox and copies in quarantine
    are encrypted; ``record.RUNS`` for node runs.

    Bots may run meanwhile, if they have the new key. A record is written only in the version that was read, so no
    write of a bot is lost. You may repeat it after an interruption: records with the newest key are only read. With
    ``allow_plaintext`` it encrypts records in clear. ``wait``: how many seconds to wait for a record that is held, if
    its memo has to be written. ``progress`` is called after each page.

    It does not find memos of cleared records. They are kept for a day, so keep the old key for a day after it.
    """
    check_instance(storage, SealedStorage, "rotate_keys() takes a SealedStorage, not {type}")
    await storage.open()
    inner = storage.inner
    bots: Collection[str] = ()
    if namespaces is None:
        names = await inner.namespaces()
    else:
        given = list(namespaces)
        names = [encode_namespace(name, storage.limits) for name in given]
        bots = [name for name in given if not isinstance(name, ReservedNamespace)]
    # These have the records of all bots.
    shared = [name for name in OF_BOTS if bots and name not in names]
    names = [*names, *shared]
    rotated = Rotated(namespaces=names)
    rotation = _Rotation(storage, rotated, wait)
    for rotated.namespace in names:
        after: Any = None
        while True:
            records, after = await inner.page(Query(rotated.namespace), after, AT_ONCE)
            chosen = [address for address, _ in records if rotated.namespace not in shared or belongs_to(address, bots)]
            await all_ended([rotation.rotate(address) for address in chosen])
            if progress is not None:
                progress(rotated)
            if after is None:
                break
    return rotated


class _Rotation:
    """Rewrites single records."""

    def __init__(self, storage: SealedStorage, rotated: Rotated, wait: float) -> None:
        self._storage = storage
        self._rotated = rotated
        self._claims = PatientClaims(wait)

    async def rotate(self, address: Address) -> None:
        """Rewrite the texts of a record that do not have the newest key."""
        try:
            record = await self._texts(address)
            memo = await self._memo(address)
        except StoredDataError:
            self._rotated.unreadable.append(address)
        except Conflict:
            self._rotated.busy.append(address)
        else:
            if record or memo:
                self._rotated.rewritten += 1
            else:
                self._rotated.current += 1

    async def _texts(self, address: Address) -> bool:
        """Rewrite head, fields and parts, page by page of the parts; return whether there was something to write."""
        wanted = Range(limit=PARTS_AT_ONCE)
        written = False
        attempt = 0
        while True:
            stored: Stored | None = await self._storage.inner.perform(Get(address, wanted))
            if stored is None:
                return written
            change = self._change(address, stored)
            if change is not None:
                try:
                    await self._storage.perform(Apply(address, change, Guard(version=stored.version)))
                except Conflict:
                    attempt += 1
                    if attempt == MOST_ATTEMPTS:
                        raise
                    continue
                written = True
            parts = stored.parts or {}
            if len(parts) < PARTS_AT_ONCE:
                return written
            wanted = Range(next(reversed(parts)) + "\0", limit=PARTS_AT_ONCE)
            attempt = 0

    def _change(self, address: Address, stored: Stored) -> Change | None:
        """Return the write of all texts of a record without the newest key; ``None`` if there is none."""
        is_current = self._storage.keyring.is_current
        plain = self._storage.decrypted(address, stored)
        seal = self._storage.seal(address)
        for name in plain.fields:
            if isinstance(name, Damage):
                # Raises the error of this name.
                seal.body("f", name, name)
        fields = {
            name: text
            for (name, text), old in zip(plain.fields.items(), stored.fields.values(), strict=True)
            if not is_current(old)
        }
        parts = {name: text for name, text in (plain.parts or {}).items() if not is_current((stored.parts or {})[name])}
        head: Head | Keep = KEEP
        if stored.head is not None and not is_current(stored.head):
            flow, state = seal.open_head(plain.head).index_texts
            head = Head(flow, state, plain.head or "")
        if not fields and not parts and head is KEEP:
            return None
        for kind, texts in (("f", fields), ("p", parts)):
            for name, text in texts.items():
                if isinstance(text, Damage):
                    # Raises the error of this text.
                    seal.body(kind, name, text)
        return Change(write=self._storage.ids(), head=head, set=fields, parts=dict(parts), limit=NO_LIMIT)

    async def _memo(self, address: Address) -> bool:
        """Rewrite the memo, which needs a claim; return whether there was something to write."""
        storage, inner = self._storage, self._storage.inner
        is_current = storage.keyring.is_current
        with suppress(Unsupported):
            memo = (await inner.beside(address)).memo
            if memo is None or is_current(memo):
                return False
        token = storage.ids()
        claimed = await self._claims.claim(inner, address, token, LEASE)
        try:
            # Without a record, a write of the memo would create one.
            if claimed.record is None or claimed.memo is None or is_current(claimed.memo):
                return False
            plain = storage.decrypted_memo(address, claimed.memo)
            # Raises its error if it cannot be decrypted.
            storage.seal(address).body("m", "", plain)
            change = Change(write=storage.ids(), memo=plain, limit=NO_LIMIT)
            await storage.perform(Apply(address, change, Guard(token, claimed.base)))
        finally:
            await inner.perform(Release(address, token))
        return True
