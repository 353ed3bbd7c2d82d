"""The adapters that attach turns to the application of a framework.

They are in a layer above this one, and import their framework. So they are named here and imported when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, Protocol, cast

__all__ = ["Adapter", "adapter_of"]

#: The adapter by the package of a framework.
ADAPTERS: Final = {"aiogram": "stepwell.adapters.aiogram", "telegram": "stepwell.adapters.ptb"}


class Adapter(Protocol):
    """The adapter of a framework."""

    def attach_turns(self, application: Any, turns: Any, /) -> None:
        """Let an application pass on what none of its handlers takes."""
        ...


def adapter_of(application: object) -> Adapter | None:
    """Return the adapter for an application or an instance of a subclass of it; ``None`` if none is known."""
    for cls in type(application).__mro__:
        name = ADAPTERS.get(cls.__module__.partition(".")[0])
        if name is not None:
            return cast(Adapter, import_module(name))
    return None
