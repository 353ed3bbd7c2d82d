"""Words in messages."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``"1 run"``, or ``"2 runs"``; ``plural`` for a noun that does not only take an ``s``.

    Example::

        from stepwell.engine import counted

        assert counted(2, "reply", "replies") == "2 replies"
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
