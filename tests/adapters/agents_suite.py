"""A plugin that runs the session tests of the OpenAI Agents SDK with ``StepwellSession``, on STEPWELL_SUITE_URL."""

from __future__ import annotations

import os
from itertools import count
from typing import Any

import agents
import agents.memory

from stepwell.adapters.openai_agents import StepwellSession

_ids = count(1)


class SQLiteSession(StepwellSession):
    """Each file of the tests is a namespace."""

    def __init__(self, session_id: str, db_path: Any = ":memory:", *, session_settings: Any = None) -> None:
        name = f"{next(_ids)}" if str(db_path) == ":memory:" else str(db_path)
        namespace = f"suite-{os.getpid()}-{name}"
        super().__init__(
            session_id, os.environ["STEPWELL_SUITE_URL"], namespace=namespace, session_settings=session_settings
        )


agents.SQLiteSession = agents.memory.SQLiteSession = SQLiteSession  # type: ignore[misc,assignment]
