"""An entry of user, chat or bot data as fields of a record.

Each item of a dict is a field of its own, so that processes can change different items: ``user_data["name"]`` is the
field ``user_data.name``. The field ``user_data`` itself says that there is an entry, which may be empty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from typing import Any

from stepwell import Limits
from stepwell.adapters.ptb.data.merging import replace
from stepwell.engine import Seal, decode_name, encode_value, path_step, weight
from stepwell.errors import EncodeError, TooLarge

__all__ = [
    "check_size",
    "delete_item",
    "explain",
    "field_of",
    "items_of",
    "names_of",
    "pack",
    "seal_entry",
    "set_item",
    "texts_of",
    "unpack",
    "without",
]

#: The values of the field that marks an entry; a dict with a "value" is an entry that has no items.
_DICT, _OBJECT = "dict", "object"


def pack(kind: str, data: Any) -> dict[Any, Any]:
    """Return an entry as fields."""
    items = items_of(data)
    if items is None:
        return {kind: {"value": data}}
    fields: dict[Any, Any] = {kind: _DICT if isinstance(data, Mapping) else _OBJECT}
    for key, value in items.items():
        fields[field_of(kind, key)] = value
    return fields


def field_of(kind: str, key: Any) -> Any:
    """Return the field of an item."""
    return f"{kind}.{key}" if type(key) is str else (kind, key)


def unpack(kind: str, fields: Mapping[Any, Any], make: Callable[[], Any]) -> Any:
    """Return the entry that ``pack`` was given. ``make`` returns an empty one."""
    mark = fields.get(kind)
    if type(mark) is dict and "value" in mark:
        return mark["value"]
    data = make()
    for field, value in fields.items():
        if field != kind:
            set_item(data, _key(kind, field), value)
    return data


def items_of(data: Any) -> Mapping[Any, Any] | None:
    """Return the items of a mapping or the attributes of an object; ``None`` for a value such as an int."""
    if isinstance(data, Mapping):
        return data
    if hasattr(data, "__dict__"):
        attributes: dict[str, Any] = vars(data)
        return attributes
    names = getattr(data, "__struct_fields__", None) or getattr(type(data), "__slots__", None)
    if not names:
        return None
    return {name: getattr(data, name) for name in names if hasattr(data, name)}


def set_item(data: Any, key: Any, value: Any) -> None:
    """Set an item of a mapping or an attribute of an object."""
    if isinstance(data, MutableMapping):
        data[key] = value
    else:
        setattr(data, key, value)


def delete_item(data: Any, key: Any) -> None:
    """Delete an item of a mapping or an attribute of an object, if there is one."""
    if isinstance(data, MutableMapping):
        data.pop(key, None)
    elif hasattr(data, key):
        delattr(data, key)


def restore(kind: str, live: Any, stored: Mapping[Any, Any]) -> None:
    """Change an entry in place to what is stored, given all fields of the record."""
    now = items_of(live)
    if now is None:
        return
    was = {_key(kind, field): value for field, value in stored.items() if field != kind and _is_item(kind, field)}
    for key in [key for key in now if key not in was]:
        delete_item(live, key)
    for key, value in was.items():
        set_item(live, key, replace(now.get(key), value))


def names_of(kind: str, texts: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the stored name and the key of each item of an entry."""
    for name in texts:
        if name != kind and _belongs(kind, name):
            yield name, _key(kind, decode_name(name))


def texts_of(kind: str, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the stored fields of an entry among those of a record."""
    return {name: text for name, text in texts.items() if name == kind or _belongs(kind, name)}


def without(kinds: Collection[str], data: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the fields of a record except those of some entries."""
    starts = tuple([f"{kind}." for kind in kinds])
    return {
        field: value
        for field, value in data.items()
        if not (field in kinds or field.startswith(starts) if type(field) is str else field[0] in kinds)
    }


def seal_entry(seal: Seal, kind: str, key: Any, data: Any, limits: Limits) -> dict[str, str]:
    """Return an entry as sealed fields. Raises ``EncodeError`` with the path of an unsupported value."""
    try:
        return seal.fields(pack(kind, data))
    except EncodeError as error:
        raise explain(kind, key, data, limits) or error from None


def explain(kind: str, key: Any, data: Any, limits: Limits) -> EncodeError | None:
    """Return the error for the first unsupported value of an entry, with its path as users write it."""
    place = f"{kind}[{key}]" if type(key) is int else kind
    items = items_of(data)
    found = [(place, data)] if items is None else [(place + path_step(name), item) for name, item in items.items()]
    for path, value in found:
        try:
            encode_value(value, limits, path)
        except EncodeError as error:
            return error
    return None


def check_size(what: str, before: Mapping[str, str], after: Mapping[str, str], limit: int) -> None:
    """Raise ``TooLarge`` if a storage would refuse to replace these fields of a record by others.

    As in the storages, a record over the limit may become smaller.
    """
    size = sum([weight(name, text) for name, text in after.items()])
    if size > limit and size > sum([weight(name, text) for name, text in before.items()]):
        raise TooLarge(what, size, limit)


def _is_item(kind: str, field: Any) -> bool:
    return bool(field.startswith(f"{kind}.") if type(field) is str else field[0] == kind)


def _belongs(kind: str, name: str) -> bool:
    # The second form is a str with characters that are escaped, the third a key that is not a str.
    return name.startswith((f"{kind}.", f'$"{kind}.', f'${{"$tuple":["{kind}",'))


def _key(kind: str, field: Any) -> Any:
    return field[len(kind) + 1 :] if type(field) is str else field[1]
