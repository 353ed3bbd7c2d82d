"""One record as an operator sees it: its position, data, times and damage, with secrets masked."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from stepwell import Limits, Storage
from stepwell.engine import (
    NO_HEAD,
    Address,
    Get,
    Stored,
    Version,
    decode_key,
    decode_namespace,
    displayed,
    encode_value,
    from_json,
    quoted,
    secret_fields_of,
)
from stepwell.errors import InvalidKey, InvalidOption, StepwellError, StoredDataError, Unsupported
from stepwell.fsm.engine import EXPIRY, TIMEOUT, Extension, entry_times, opened_extension, remembered
from stepwell.operate.masking import masked_field, masked_fields

__all__ = [
    "Missing",
    "RecordView",
    "addresses_of",
    "errors_of",
    "keys_of",
    "marked_fields",
    "parsed_version",
    "read",
    "resolve",
    "show",
    "show_at",
    "shown_field",
    "version_text",
    "view",
]


class Missing(StepwellError, LookupError):
    """The storage has no such record."""

    def __init__(self, bot: str, key: str, others: str = "") -> None:
        self.bot: str = bot
        self.key: str = key
        others = others or f"stepwell ls {shlex.quote(bot)} lists its records"
        super().__init__(f"bot {quoted(bot)} has no record at {displayed(key)}; {others}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """One record. Times are seconds since 1970 on the storage's clock."""

    bot: str
    #: The key as text, such as ``(42,42)``.
    key: str
    flow: str | None
    state: str | None
    revision: int | None
    #: The fields as JSON of the codec, with secrets masked.
    data: Mapping[str, Any]
    profile: Mapping[str, Any]
    #: The previous states, the most recent last.
    history: tuple[str, ...]
    #: When each state of ``history`` and then the present one was entered; ``None`` if the record does not say.
    entered_at: tuple[float | None, ...]
    #: The flows and states that wait for this flow to end, outermost first.
    waiting: tuple[tuple[str | None, str | None], ...]
    #: The users and chats that it belongs to.
    tags: tuple[str, ...]
    #: Guards an edit.
    version: str
    written_at: float
    expires_at: float | None
    #: When the timer of its state is due.
    deadline: float | None
    #: The seconds until the lease of its holder ends, unless it is extended; ``None`` if nobody holds it. Only in
    #: ``show``.
    held: float | None = None
    #: The token of that lease, another one for each holder. Only in ``show``.
    holder: str | None = None
    #: How many handled updates are remembered, and the id of the newest. Only in ``show``.
    handled: int = 0
    last_handled: str | None = None
    #: The number of expired conversations that no worker has handled.
    expired: int
    #: The number of groups of Bot API calls that are not sent yet.
    unsent: int
    #: What cannot be read, and why.
    damage: tuple[str, ...]


async def show(storage: Storage, bot: str, key: Any) -> RecordView:
    """Return one record; raise ``Missing`` if there is none."""
    return await show_at(storage, storage.address(bot, key))


async def show_at(storage: Storage, address: Address) -> RecordView:
    """Return the record at an address, with the lease of its holder; raise ``Missing`` if there is none."""
    shown = view(storage, address, await read(storage, address))
    with suppress(Unsupported):
        beside = await storage.beside(address)
        handled, last = 0, None
        if beside.memo is not None:
            # A damaged memo is treated as empty.
            with suppress(StoredDataError):
                handled, last = remembered(storage.seal(address).body("m", "", beside.memo))
        held = None if beside.holder is None else beside.remaining
        return replace(shown, held=held, holder=beside.holder, handled=handled, last_handled=last)
    return shown


async def read(storage: Storage, address: Address) -> Stored:
    """Return a record as it is stored; raise ``Missing`` if there is none."""
    stored: Stored | None = await storage.perform(Get(address))
    if stored is None:
        raise Missing(decode_namespace(address.namespace), address.key)
    return stored


async def resolve(storage: Storage, bot: str, text: str) -> Address:
    """Return the address of an existing record for a key as people write it.

    ``text`` is a key as ``ls`` shows it, or its parts: ``42,43`` or ``42``. A single id finds the record of a private
    chat or of a user.
    """
    candidates = addresses_of(storage, bot, text)
    found = [address for address in candidates if await storage.perform(Get(address)) is not None]
    if not found:
        raise Missing(bot, candidates[0].key)
    if len(found) > 1:
        raise InvalidOption(
            f"bot {quoted(bot)} has several records for {text}: {', '.join(each.key for each in found)}; "
            "give one of these keys, in quotes"
        )
    return found[0]


def addresses_of(storage: Storage, bot: str, text: str) -> list[Address]:
    """Return the addresses that a key as people write it may mean."""
    return [storage.address(bot, key) for key in keys_of(text)]


def keys_of(text: str) -> list[Any]:
    """Return the keys that a text may mean as people write it."""
    try:
        key = decode_key(text)
    except StoredDataError:
        key = None
        if text[:1] in ("(", '"') or not text:
            raise InvalidKey(
                f"{quoted(text)} is not a key; write it as stepwell ls shows it, such as '(42,42)'"
            ) from None
    else:
        if type(key) is not int:
            # A bare word such as None may be the text of a key, too.
            return [key] if text[:1] in ("(", '"', "x") else [key, text]
        return [(key, key), (key,), key, text]
    if "," not in text:
        return [text]
    return [tuple(int(part) if part.lstrip("-").isdecimal() else part for part in text.split(",")), text]


def view(storage: Storage, address: Address, stored: Stored) -> RecordView:
    """Return a stored record as it is shown. Damaged values are left out and named in ``damage``."""
    seal = storage.seal(address)
    damage: list[str] = []
    head, kept = NO_HEAD, Extension()
    try:
        head = seal.open_head(stored.head)
        kept = opened_extension(head.extension, address)
    except StoredDataError as error:
        damage.append(_reason(error, "its flow and state"))
    place, bot = head.place, decode_namespace(address.namespace)
    data: dict[str, Any] = {}
    marked = secret_fields_of("flow", place.flow)
    for name, text in stored.fields.items():
        try:
            value = from_json(seal.body("f", name, text))
        except (StepwellError, ValueError) as error:
            damage.append(_reason(error, f"the field {quoted(name)}"))
        else:
            data[name] = masked_field(name, value, marked)
    try:
        known = from_json(kept.profile) if kept.profile else {}
        profile = masked_fields(known, secret_fields_of("profile", bot))
    except ValueError as error:
        profile = {}
        damage.append(_reason(error, "its profile"))
    # The storage may keep the record longer than the conversation, and write its deadline a little later.
    expires_at = head.timers.get(EXPIRY) if kept.own_expiry else stored.expires_at
    deadline = head.timers.get(TIMEOUT) if kept.own_expiry else stored.deadline
    return RecordView(
        bot=bot,
        key=address.key,
        flow=place.flow,
        state=place.state,
        revision=place.revision,
        data=data,
        profile=profile,
        history=kept.history,
        entered_at=tuple(entry_times(kept.entered_at, len(kept.history) + 1)) if place.flow is not None else (),
        waiting=tuple((each.flow, each.state) for each in kept.stack),
        tags=stored.tags,
        version=version_text(stored.version),
        written_at=stored.written_at,
        expires_at=expires_at,
        deadline=deadline,
        expired=len(kept.expired),
        unsent=len(kept.outbox),
        damage=tuple(damage),
    )


def marked_fields(storage: Storage, address: Address, stored: Stored) -> frozenset[str]:
    """Return the fields of a record that the type of its flow marks as secret; of any flow if its own is unreadable."""
    try:
        flow = storage.seal(address).open_head(stored.head).place.flow
    except StoredDataError:
        flow = None
    return secret_fields_of("flow", flow)


def errors_of(storage: Storage, address: Address, stored: Stored) -> list[StepwellError]:
    """Return the errors of the texts of a record that cannot be read: of its flow and state, and of its fields."""
    seal = storage.seal(address)
    errors: list[StepwellError] = []
    try:
        opened_extension(seal.open_head(stored.head).extension, address)
    except StepwellError as error:
        errors.append(error)
    for name, text in stored.fields.items():
        try:
            seal.body("f", name, text)
        except StepwellError as error:
            errors.append(error)
    return errors


def shown_field(flow: str | None, name: str, value: Any) -> Any:
    """Return a value for a data field as it would be shown: as JSON of the codec, with secrets masked."""
    return masked_field(name, from_json(encode_value(value, Limits())), secret_fields_of("flow", flow))


def version_text(version: Version) -> str:
    """Return a version as text, for ``parsed_version``."""
    return f"{version.number}.{version.write}"


def parsed_version(text: str) -> Version:
    """Return the version that ``version_text`` was given; raise ``InvalidOption`` for other texts."""
    number, dot, write = text.partition(".")
    if not (dot and write and number.isdecimal()):
        raise InvalidOption(
            f"{quoted(text)} is not a version; copy it from stepwell show, such as 1763280000000000.0123abcd"
        )
    return Version(int(number), write)


def _reason(error: Exception, what: str) -> str:
    # Messages of the codec contain no values.
    text = str(error) if isinstance(error, StepwellError) else "is not valid JSON"
    return text if what in text else f"{what}: {text}"
