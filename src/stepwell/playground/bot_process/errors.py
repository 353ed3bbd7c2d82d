"""In the bot's process: reports the errors that any framework logs, to the playground.

Errors of stepwell's own handlers are reported by ``reporter``.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Any

from stepwell.playground.bot_process.events import traceback_of
from stepwell.playground.bot_process.reporter import handled_update
from stepwell.playground.bot_process.runs import RunReporter

__all__ = ["install"]

#: As aiogram writes it: "Cause exception while process update id=123 by bot id=456".
_UPDATE = re.compile(r"\bupdate (?:id=)?(\d+)\b")


def install(reporter: RunReporter) -> None:
    """Report every record of ``logging`` that has an error.

    It is seen when it is made. A handler would change the logging of the bot: ``basicConfig`` does nothing then.
    """
    make = logging.getLogRecordFactory()

    def made(*args: Any, **options: Any) -> logging.LogRecord:
        record = make(*args, **options)
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.ERROR and error is not None and not record.name.startswith("stepwell"):
            update = _UPDATE.search(record.getMessage())
            reporter.send(
                {
                    "kind": "logged",
                    "at": time.time(),
                    "update_id": int(update[1]) if update else handled_update.get(),
                    "error": f"{type(error).__name__}: {error}"[:500],
                    "traceback": traceback_of(error),
                }
            )
        return record

    logging.setLogRecordFactory(made)
