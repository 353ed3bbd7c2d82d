"""One address in one storage: wait, claim, change, commit."""

from stepwell.slot.slot import Json, Sealed, Slot

__all__ = ["Json", "Sealed", "Slot"]
