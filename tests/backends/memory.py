"""Memory: nothing to start."""

from __future__ import annotations

from tests.backends.base import Backend


class Memory(Backend):
    name = "memory"
    shared = False
    durable = False

    def place(self) -> str:
        return "memory://"
