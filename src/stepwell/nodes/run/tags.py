"""The tags of runs: names with values, stored as the texts ``name=value`` beside the tags of child runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stepwell.codec import check_name
from stepwell.options import check, check_instance

__all__ = ["checked_tags", "tag_texts", "tags_in"]

#: The most tags of a run.
MOST = 20


def checked_tags(tags: Mapping[str, str | int] | None) -> Mapping[str, str | int]:
    """Return tags as they were given; raise ``InvalidOption`` unless they are names with texts or whole numbers."""
    check_instance(tags, Mapping, "tags={}: give a dict such as {{'customer': 7}}, or None", optional=True)
    if not tags:
        return {}
    check(len(tags) <= MOST, f"tags has {{}} entries: give at most {MOST}", len(tags))
    for name, value in tags.items():
        # A tag of a child run is parent:ID.
        valid = isinstance(name, str) and name and "=" not in name and ":" not in name
        check(valid, "tags has the name {}: give a text without '=' and ':'", name)
        check(type(value) is int or isinstance(value, str), "tags has the value {}: give a str or an int", value)
        check_name("the tag", f"{name}={value}")
    return tags


def tag_texts(tags: Mapping[str, str | int]) -> list[str]:
    """Return tags as they are stored and searched."""
    return [f"{name}={value}" for name, value in tags.items()]


def tags_in(texts: Iterable[str]) -> dict[str, str]:
    """Return the tags of a record by name."""
    named: Iterable[tuple[str, Any, str]] = (text.partition("=") for text in texts)
    return {name: value for name, equals, value in named if equals and ":" not in name}
