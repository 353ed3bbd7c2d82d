"""A storage from a URL."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from stepwell.errors import InvalidOption, UnknownScheme
from stepwell.storage.contract import Storage

__all__ = ["open_storage"]

_GROUP = "stepwell.storage"
_OURS = {
    "memory": "stepwell.storage.memory:MemoryStorage",
    "sqlite": "stepwell.storage.sqlite:SQLiteStorage",
    **dict.fromkeys(
        ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"), "stepwell.storage.redis:RedisStorage"
    ),
    "postgresql": "stepwell.storage.postgres:PostgresStorage",
    "postgres": "stepwell.storage.postgres:PostgresStorage",
}


def open_storage(url: str, **options: Any) -> Storage:
    """The storage for a URL, not connected yet: ``async with`` opens and closes it, the first use opens it too.

    ``memory://``, ``sqlite:///bot.db``, ``redis://``, ``rediss://``, ``unix://``, ``redis+cluster://``,
    ``postgresql://``, or the scheme of a backend that is installed under the entry point group
    ``stepwell.storage``. Options are those of the storage's class.
    """
    if not isinstance(url, str):
        raise InvalidOption(f"open_storage() takes a URL such as 'sqlite:///bot.db', not {url!r}")
    scheme, separator, _ = url.partition(":")
    if not separator:
        raise UnknownScheme(url, sorted(_OURS))
    backend = _backend(scheme.lower())
    parameters = inspect.signature(backend).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    unknown = sorted(set(options) - set(known))
    if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        raise InvalidOption(f"{backend.__name__} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    return backend.from_url(url, **options)


def _backend(scheme: str) -> type[Storage]:
    if scheme in _OURS:
        module, _, name = _OURS[scheme].partition(":")
        ours: type[Storage] = getattr(import_module(module), name)
        return ours
    # Reading the installed packages' metadata is slow, and only a third-party scheme needs it.
    from importlib.metadata import entry_points

    for point in entry_points(group=_GROUP):
        if point.name == scheme:
            theirs: type[Storage] = point.load()
            return theirs
    raise UnknownScheme(scheme, sorted({*_OURS, *(point.name for point in entry_points(group=_GROUP))}))
