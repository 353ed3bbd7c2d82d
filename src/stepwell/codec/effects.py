"""Effects: calls of functions that act on the world, such as payments, and must not repeat.

The intent is stored before the function runs, and its outcome after. Whoever finds an intent without an outcome knows
that the process died in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, Self, TypeAlias

from stepwell.codec import Seal
from stepwell.codec.json import Struct
from stepwell.options import check_choice

__all__ = ["REPLAYS", "Effect", "Replay", "check_replay"]

#: ``"safe"``: the function may run again after a crash. ``"never"``: it does not, and its outcome is unknown.
Replay: TypeAlias = Literal["safe", "never"]
REPLAYS: Final = ("safe", "never")


def check_replay(replay: object) -> None:
    """Raise ``InvalidOption`` unless the value is ``"safe"`` or ``"never"``."""
    check_choice(replay, REPLAYS, 'replay must be "safe" or "never", not {}')


class Effect(Struct, frozen=True, gc=False):
    """One call: what was called, and how it ended. It is stored as a part of the record of its turn or run."""

    #: The name of the function, for people.
    name: str
    #: Of the name and the arguments. Another digest at the same position is another call.
    digest: str
    replay: Replay
    #: ``None`` until the function has ended.
    outcome: Literal["returned", "raised"] | None = None
    #: What the function has returned, or the type and the text of its error.
    value: Any = None

    @classmethod
    def of(cls, seal: Seal, name: str, arguments: tuple[Sequence[Any], Mapping[str, Any]], replay: Replay) -> Self:
        """Return the intent to call a function. Raises ``EncodeError`` for an argument that cannot be stored."""
        body = seal.json([name, *arguments], seal.limit)
        return cls(name, blake2b(body.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest(), replay)

    def returned(self, value: Any) -> Effect:
        """Return the effect with what its function has returned."""
        return Effect(self.name, self.digest, self.replay, "returned", value)

    def raised(self, error: BaseException) -> Effect:
        """Return the effect with the error of its function."""
        return Effect(self.name, self.digest, self.replay, "raised", (type(error).__qualname__, str(error)))

    @property
    def unknown(self) -> bool:
        """Whether nobody knows if the function has run, if no process is running it now."""
        return self.outcome is None and self.replay == "never"

    def seal(self, seal: Seal, part: str) -> str:
        """Return the text of the part that stores the effect."""
        return seal.seal("p", part, [self.name, self.digest, self.replay, self.outcome, self.value])

    @classmethod
    def open(cls, seal: Seal, part: str, text: str) -> Self:
        """Return the effect of a stored part. Raises ``CorruptRecord``."""
        return cls(*seal.value("p", part, text))
