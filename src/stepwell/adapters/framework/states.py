"""States with names such as ``Form:name``, as aiogram and telebot have them."""

from __future__ import annotations

from stepwell.engine import NOWHERE, Place

__all__ = ["place_of", "state_name"]


def place_of(name: str | None) -> Place:
    """Return flow ``Form`` and state ``name`` for ``"Form:name"``; a name without a group has no flow."""
    if name is None:
        return NOWHERE
    # str() of an Enum with str values would return another text.
    flow, colon, state = str.__str__(name).rpartition(":")
    return Place(flow if colon else None, state)


def state_name(place: Place) -> str | None:
    """Return the name of a state: the reverse of ``place_of``."""
    return place.state if place.flow is None else f"{place.flow}:{place.state}"
