"""A storage that encrypts the records of another storage."""

from stepwell.storage.sealed.keys import SealingKey, new_key
from stepwell.storage.sealed.rotation import Rotated, rotate_keys
from stepwell.storage.sealed.storage import SealedStorage

__all__ = ["Rotated", "SealedStorage", "SealingKey", "new_key", "rotate_keys"]
