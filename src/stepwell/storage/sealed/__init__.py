"""A storage that encrypts the records of another storage."""

from stepwell.storage.sealed.keys import new_key
from stepwell.storage.sealed.storage import SealedStorage

__all__ = ["SealedStorage", "new_key"]
