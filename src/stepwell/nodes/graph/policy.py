"""How often and for how long a node tries its ``exec``."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from inspect import getattr_static
from typing import Any

from stepwell._secrets import quoted
from stepwell.codec.effects import Replay, check_replay
from stepwell.errors import InvalidOption
from stepwell.options import check_number, check_whole

__all__ = ["ExecPolicy", "Setting", "declared_settings"]

#: With a larger exponent a wait would overflow.
_MOST_BACKOFFS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecPolicy:
    """The validated settings of a node for its ``exec``."""

    max_retries: int = 1
    wait: float = 0
    backoff: float = 1
    jitter: float = 0
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception
    timeout: float | None = None
    inline: bool = False
    replay: Replay = "safe"

    def __post_init__(self) -> None:
        check_whole(
            self.max_retries, "max_retries={}: it counts all attempts, so give a whole number of at least 1", least=1
        )
        for name, least in (("wait", 0), ("backoff", 1), ("jitter", 0)):
            value = getattr(self, name)
            check_number(value, f"{name}={{}}: give a number of at least {least}", least=least)
        check_replay(self.replay)
        check_number(self.timeout, "timeout={}: give seconds above 0, or None", above=0, optional=True)
        kinds = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise InvalidOption(f"retry_on={quoted(self.retry_on)}: give an exception class or a tuple of them")

    @property
    def plain(self) -> bool:
        """Whether there is one attempt, without a timeout, that may run again after a crash."""
        return self.max_retries == 1 and self.timeout is None and self.replay == "safe"

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after a failed attempt; the first attempt is 1."""
        wait = self.wait * self.backoff ** min(attempt - 1, _MOST_BACKOFFS)
        return wait + random.random() * self.jitter if self.jitter else wait


class Setting:
    """An attribute of a node that is stored in its :class:`ExecPolicy`, so that a run compares one object."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, node: Any, owner: type) -> Any:
        return self if node is None else getattr(node._policy, self._name)

    def __set__(self, node: Any, value: Any) -> None:
        node._policy = replace(node._policy, **{self._name: value})


def declared_settings(cls: type) -> dict[str, Any]:
    """Return the settings that a class of nodes or its bases have as plain attributes, such as ``max_retries = 3``.

    The class gets the descriptors back that these attributes have replaced.
    """
    declared: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        declared.update(vars(base).get("_declared", {}))
    for base in cls.__mro__:
        for name, setting in vars(base).items():
            if not isinstance(setting, Setting):
                continue
            found = getattr_static(cls, name)
            # A method or a property of this name is no setting.
            if not hasattr(type(found), "__get__"):
                declared[name] = found
                setattr(cls, name, setting)
    return declared
