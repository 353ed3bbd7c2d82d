"""The registration bot for ``stepwell run``, with a short lease, so that a killed process does not delay the next."""

from __future__ import annotations

from examples.registration import Registration, handlers

from stepwell import Storage
from stepwell.fsm import FSM, Router


def make_router(storage: Storage | str) -> Router:
    router = Router(FSM("my_bot", storage=storage, flows=[Registration], lease=1.0))
    router.include(handlers)
    return router
