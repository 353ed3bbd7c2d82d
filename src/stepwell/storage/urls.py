"""Opening a storage by URL."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from stepwell._secrets import quoted
from stepwell.errors import InvalidOption, StepwellError, UnknownScheme
from stepwell.storage.contract import Storage

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["as_storage", "check_url", "described", "open_storage", "take_options", "truth"]

_GROUP = "stepwell.storage"
_OURS = {
    "memory": "stepwell.storage.memory:MemoryStorage",
    "sqlite": "stepwell.storage.sqlite:SQLiteStorage",
    **dict.fromkeys(
        ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"),
        "stepwell.storage.redis:RedisStorage",
    ),
    "postgresql": "stepwell.storage.postgres:PostgresStorage",
    "postgres": "stepwell.storage.postgres:PostgresStorage",
}


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


def as_storage(given: object, name: str = "storage") -> Storage:
    """Return a storage unchanged, or create one for a URL; ``name`` is the argument's name for the error.

    Example::

        from stepwell.engine import as_storage

        assert as_storage(storage) is storage
    """
    if isinstance(given, Storage):
        return given
    if isinstance(given, str):
        return open_storage(given)
    raise InvalidOption(f"{name} must be a Storage or a URL such as 'sqlite:///bot.db', not {described(given)}")


def described(given: object) -> str:
    """Return a description of an invalid storage or URL, without parts that may contain a password."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    if not isinstance(given, str):
        return type(given).__name__
    scheme, separator, _ = given.partition("://")
    return f"{scheme}://..." if separator and _SCHEME.fullmatch(scheme) else "a text without a scheme"


def check_url(url: str) -> None:
    """Raise if this is not a str, or has an ``@`` after the host, because of special characters in the password."""
    if not isinstance(url, str):
        raise InvalidOption(f"the URL of a storage must be a str, not {described(url)}")
    after_host = re.split(r"[/?#]", url.partition("://")[2] or url, maxsplit=1)[1:]
    if after_host and "@" in after_host[0]:
        raise InvalidOption(
            f"{described(url)} has an @ after its host; in a password, write # as %23, / as %2F, ? as %3F and @ as %40"
        )


_TRUTHS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def truth(text: str) -> bool:
    """Return the value of an option that is on or off; raise ``KeyError`` for other texts."""
    return _TRUTHS[text.lower()]


_EXPECTED: dict[Callable[[str], Any], str] = {float: "a number of seconds", int: "a whole number"}


def take_options(url: str, parsers: Mapping[str, Callable[[str], Any]], kind: str) -> tuple[str, dict[str, Any]]:
    """Take the options of a storage, which ``parsers`` has, out of a URL; return the rest of the URL, and the options.

    ``kind`` names the URL in errors, such as ``a Redis URL``.
    """
    base, mark, query = url.partition("?")
    options: dict[str, Any] = {}
    others: list[tuple[str, str]] = []
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in parsers:
            others.append((name, text))
            continue
        try:
            options[name] = parsers[name](text)
        except (KeyError, ValueError):
            expected = _EXPECTED.get(parsers[name], "true or false")
            raise InvalidOption(f"{name} in {kind} must be {expected}") from None
    return base + mark + urlencode(others), options


def open_storage(url: str, **options: Any) -> Storage:
    """Return a storage for a URL. ``async with`` opens and closes it; the first operation opens it too.

    The schemes are ``memory://``, ``sqlite:///bot.db``, ``redis://``, ``rediss://``, ``unix://``,
    ``redis+cluster://``, ``redis+sentinel://``, ``postgresql://``, and those of backends in the entry point group
    ``stepwell.storage``. With ``sealed+`` before the scheme, the records are encrypted with the keys in
    ``STEPWELL_KEYS``. The options are those of the storage's class.

    Raises ``UnknownScheme`` if no installed backend has this scheme, and ``MissingExtra`` if a package is not
    installed.

    Example::

        async with open_storage("sqlite:///bot.db") as storage:
            await storage.set_state("my_bot", (42, 42), State("registration", "get_name"))
    """
    if not isinstance(url, str):
        raise InvalidOption(f"open_storage() takes a URL such as 'sqlite:///bot.db', not {described(url)}")
    scheme, separator, _ = url.partition(":")
    if not separator or not _SCHEME.fullmatch(scheme):
        raise UnknownScheme("", sorted(_OURS))
    if scheme.lower().startswith("sealed+"):
        # Its options are also those of the storage that it encrypts.
        return _sealed().from_url(url, **options)
    backend = _backend(scheme.lower())
    known, takes_any = _options(backend)
    unknown = sorted(set(options) - set(known))
    if unknown and not takes_any:
        raise _no_option(backend, ", ".join(unknown), known)
    try:
        return backend.from_url(url, **options)
    except TypeError as error:
        # A class with **options may pass them on to a class that does not accept them.
        named = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if named is None or named[1] not in options:
            raise
        raise _no_option(backend, named[1], known) from error


def _options(backend: type[Storage]) -> tuple[list[str], bool]:
    """Return the names of the options of a class and its bases, and whether it accepts any others."""
    known: list[str] = []
    takes_any = False
    for kind in backend.__mro__:
        if "__init__" not in vars(kind):
            continue
        parameters = inspect.signature(kind).parameters.values()
        known += [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
        takes_any = True
    return known, takes_any


def _no_option(backend: type[Storage], names: str, known: list[str]) -> InvalidOption:
    return InvalidOption(f"{backend.__name__} has no option {names}; it has {', '.join(sorted(set(known)))}")


def _backend(scheme: str) -> type[Storage]:
    if scheme in _OURS:
        return _imported(_OURS[scheme])
    # Reading the installed packages' metadata is slow, and only a third-party scheme needs it.
    from importlib.metadata import entry_points

    points = entry_points(group=_GROUP)
    for point in points:
        if point.name == scheme:
            return _load(point)
    raise UnknownScheme(scheme, sorted({*_OURS, *(point.name for point in points)}))


def _sealed() -> type[Storage]:
    return _imported("stepwell.storage.sealed:SealedStorage")


def _imported(where: str) -> type[Storage]:
    module, _, name = where.partition(":")
    ours: type[Storage] = getattr(import_module(module), name)
    return ours


def _load(point: EntryPoint) -> type[Storage]:
    try:
        theirs = point.load()
        if not (isinstance(theirs, type) and issubclass(theirs, Storage)):
            raise TypeError(f"{quoted(theirs)} is not a subclass of Storage")
    except StepwellError:
        # Its message already says what to do, such as installing a driver.
        raise
    except Exception as error:
        package = "a package" if point.dist is None else f"the package {point.dist.name}"
        raise InvalidOption(
            f"the storage for {point.name}:// cannot be loaded: {package} names {point.value} in the entry point group "
            f"{quoted(_GROUP)} ({type(error).__name__}: {error}); fix that, or install another release of it"
        ) from error
    return theirs
