"""A process that runs one role on a storage, until it is done, stopped or killed.

``python -m tests.reliability.worker ROLE URL LOG OPTIONS`` runs one role in this process;
``python -m tests.reliability.worker serve`` reads such lines as JSON from its standard input and forks a
process for each, which is faster than starting Python; modules whose names follow ``serve`` are imported before.

A worker appends its reports to a log, one line of JSON each, so that they survive a kill.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from stepwell import open_storage
from tests.reliability import (
    agent_roles,
    child_roles,
    control_roles,
    effect_roles,
    failover_roles,
    log_roles,
    queue_roles,
    roles,
    run_roles,
    saga_roles,
    storm_roles,
    stream_roles,
    thread_roles,
    timer_roles,
    turn_roles,
)

MODULES = (
    *(roles, run_roles, queue_roles, control_roles, child_roles, saga_roles, effect_roles),
    *(storm_roles, log_roles, stream_roles, thread_roles, timer_roles, failover_roles, turn_roles, agent_roles),
)


def serve(modules: list[str]) -> None:
    # Each worker would import the drivers again.
    for module in [*(f"stepwell.storage.{backend}" for backend in ("sqlite", "redis", "postgres")), *modules]:
        import_module(module)
    # Collecting garbage would copy the pages that a worker shares with this process.
    gc.collect()
    gc.freeze()
    # The exit status is not needed, because a worker logs how it ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        role, url, log, options = json.loads(line)
        pid = os.fork()
        if pid == 0:
            # End with the server, which ends with the test run.
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            work(role, url, log, options)
            os._exit(0)
        print(pid, flush=True)


def work(role: str, url: str, log: str, options: dict[str, Any]) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def report(*line: Any) -> None:
        os.write(out, json.dumps(line).encode() + b"\n")

    async def main() -> None:
        found = [getattr(module, role) for module in MODULES if hasattr(module, role)]
        act: Callable[..., Awaitable[None]] = found[0]
        async with open_storage(url) as storage:
            await act(storage, report, **options)

    try:
        asyncio.run(main())
    except BaseException:
        report("failed", traceback.format_exc())
    else:
        report("done")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2:])
    else:
        work(*sys.argv[1:4], json.loads(sys.argv[4]))
