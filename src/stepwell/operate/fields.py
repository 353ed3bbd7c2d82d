"""Fields and their values as an operator writes them: ``name=Anna``, ``count=2``, ``to={"city": "Rome"}``."""

from __future__ import annotations

import json
from typing import Any

from stepwell.engine import quoted
from stepwell.errors import InvalidOption

__all__ = ["check_text", "is_json", "searched_field", "split_field"]


def searched_field(text: str) -> tuple[str, Any]:
    """Parse ``field=value`` of a search: the value is JSON, or else a text."""
    name, value = split_field(text)
    try:
        return name, _loaded(value)
    except RecursionError:
        raise InvalidOption(f"the value of {quoted(name)} is nested too deep") from None
    except ValueError:
        return name, value


def split_field(text: str) -> tuple[str, str]:
    """Return the name and the text of the value; raise ``InvalidOption`` if this is not ``field=value``."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidOption(f"{quoted(text[:40])} is not field=value")
    return name, value


def is_json(text: str) -> bool:
    """Return whether a text is JSON, perhaps nested too deep to be read."""
    try:
        _loaded(text)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def check_text(text: str, what: str) -> None:
    """Raise ``InvalidOption`` if a text that is not JSON was probably meant to be JSON."""
    if not text.lstrip().startswith(("{", "[", '"')):
        return
    try:
        _loaded(text)
    except json.JSONDecodeError as error:
        raise InvalidOption(
            f"{what} begins like JSON and is not JSON ({error.msg}, character {error.pos + 1}): correct it; to give a "
            'text that begins like this, put it in double quotes, with a backslash before each " and \\ in it'
        ) from None
    except (RecursionError, ValueError):
        return


def _loaded(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    # NaN and Infinity are texts: JSON has no such numbers.
    raise ValueError(constant)
