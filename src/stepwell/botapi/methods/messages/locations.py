"""Bot API methods that send locations and venues."""

from __future__ import annotations

from typing import Any

from stepwell.botapi.call import Call, Method
from stepwell.botapi.errors import bad_request
from stepwell.botapi.methods.messages.sending import deliver
from stepwell.botapi.params import Params

__all__ = ["LIVE", "METHODS", "live_location", "location_of", "venue_of"]

#: The fields that only a live location has.
LIVE: tuple[str, ...] = ("live_period", "heading", "proximity_alert_radius")


def location_of(params: Params) -> dict[str, Any]:
    """Return the Location object of a call."""
    for name in ("latitude", "longitude"):
        if not params.has(name):
            raise bad_request(f"{name} is empty")
    return params.fractions("latitude", "longitude", "horizontal_accuracy")


def live_location(call: Call) -> dict[str, Any]:
    """Return the Location object of a call with the fields of a live location."""
    return {**location_of(call.params), **call.params.numbers(*LIVE)}


def venue_of(params: Params) -> dict[str, Any]:
    """Return the Venue object of a call."""
    ids = params.strings("foursquare_id", "foursquare_type", "google_place_id", "google_place_type")
    return {
        "location": location_of(params),
        "title": params.required("title"),
        "address": params.required("address"),
        **ids,
    }


def send_location(call: Call) -> dict[str, Any]:
    return deliver(call, location=live_location(call))


def send_venue(call: Call) -> dict[str, Any]:
    venue = venue_of(call.params)
    return deliver(call, location=venue["location"], venue=venue)


METHODS: dict[str, Method] = {"sendLocation": send_location, "sendVenue": send_venue}
