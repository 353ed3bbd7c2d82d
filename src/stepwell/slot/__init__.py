"""One address in one storage: wait, claim, change, commit."""

from stepwell.slot.encoded import Json, Sealed
from stepwell.slot.fields import Changes
from stepwell.slot.slot import Slot

__all__ = ["Changes", "Json", "Sealed", "Slot"]
