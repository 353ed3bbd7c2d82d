"""What runs beside the handlers of a router: functions at the start and the stop of the bot, and workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from stepwell.fsm.bot import BotMethods

__all__ = ["Beside", "RunsBeside", "WorkerOptions"]

#: Makes a block that lasts as long as the bot runs, from the client of the bot.
Beside: TypeAlias = Callable[[BotMethods], AbstractAsyncContextManager[Any]]


class WorkerOptions(NamedTuple):
    """The flows of a worker, and its options."""

    flows: tuple[Any, ...]
    options: dict[str, Any]


@dataclass
class RunsBeside:
    """What a router has beside its handlers."""

    startup: list[Callable[..., Any]] = field(default_factory=list)
    shutdown: list[Callable[..., Any]] = field(default_factory=list)
    #: In the order in which they are started.
    beside: list[Beside | WorkerOptions] = field(default_factory=list)
