"""Help for tests of bots, of flows and of storages. Needs ``stepwell[testing]`` for ``StorageContract``."""

from stepwell.testing.clock import Clock

__all__ = ["Clock"]
