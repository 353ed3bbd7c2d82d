"""The methods of the Bot API, by subject."""

from stepwell.botapi.methods.table import METHODS, NO_EFFECT, perform

__all__ = ["METHODS", "NO_EFFECT", "perform"]
