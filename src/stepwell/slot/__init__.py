"""One address in one storage: wait, claim, change, commit."""

from stepwell.slot.fields import Changes
from stepwell.slot.slot import Json, Sealed, Slot

__all__ = ["Changes", "Json", "Sealed", "Slot"]
