"""The parts of a durable run: large values of its nodes, in memory and for the next commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from stepwell.codec.large import in_thread, is_large
from stepwell.errors import EncodeError, Unstorable
from stepwell.nodes.history import BEFORE, HISTORY, VALUES
from stepwell.nodes.run.table import MAIL, PARAMS, REPLY, owner_of_part
from stepwell.slot import Sealed, Slot

__all__ = ["RunParts", "is_inside"]

#: How the names of parts begin that a run has when it has ended.
_KEPT = (BEFORE, HISTORY, PARAMS, REPLY, VALUES)

#: RunParts by name; ``None`` drops a part.
Pending = dict[str, Sealed | None]


class RunParts:
    """The parts of one run that were loaded, and those that its next commit writes or drops."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        #: The parts of each node, by its path. The values of parts that were written here are not kept.
        self.loaded: dict[str, dict[str, Any]] = {}
        #: What the next commit writes and drops.
        self.pending: Pending = {}

    async def load(self) -> None:
        """Load the parts as a resume would."""
        self.loaded = {}
        for name, value in (await self._slot.parts()).items():
            if not name.startswith(MAIL):
                self.add(name, value)

    def add(self, name: str, value: Any) -> None:
        """Add a part that was loaded."""
        self.loaded.setdefault(owner_of_part(name), {})[name] = value

    def put(self, path: str, kind: str, number: int | str, value: Any) -> None:
        """Add a part of a node to the next commit; raise ``Unstorable`` now if it cannot be stored."""
        name = f"{kind}:{path}:{number}"
        part = value if isinstance(value, Sealed) else self.seal(path, name, value, f"{kind} {{}}".format)
        self.pending[name] = part
        self.add(name, None)

    async def seal_soon(self, node: str, name: str, value: Any, where: Callable[[str], str]) -> Sealed:
        """Encode a part, in a thread if it is large."""
        if is_large(value):
            return await in_thread(self.seal, node, name, value, where, True)
        return self.seal(node, name, value, where)

    def seal(self, node: str, name: str, value: Any, where: Callable[[str], str], large: bool = False) -> Sealed:
        """Encode a part; ``where`` translates the path in the part to the words of the error message."""
        try:
            return self._slot.seal_part(name, value, large)
        except EncodeError as error:
            inside = error.path.removeprefix(f"${name}")
            raise Unstorable(node, where(inside), error.type_name, error.why) from error

    def drop(self, path: str) -> None:
        """Drop the parts of a node and of the nodes inside it with the next commit; "" is the whole run.

        The history of a run, its replies and its params stay as long as the run, the params for a fork of it.
        """
        for owner in [owner for owner in self.loaded if not path or is_inside(owner, path)]:
            names = self.loaded.pop(owner)
            self.pending.update(dict.fromkeys(name for name in names if not name.startswith(_KEPT)))

    def drop_old(self, path: str, name: str) -> None:
        """Drop a part of a node with the next commit, if there is one of this name."""
        if self.loaded.get(path, {}).pop(name, ...) is not ...:
            self.pending[name] = None

    def drop_mail(self, names: Iterable[str]) -> None:
        """Drop parts with mail with the next commit."""
        self.pending.update(dict.fromkeys(names))

    async def move(self, kind: str, path: str, number: str, value: Any) -> None:
        """Add a loaded part under the name of another node to the next commit."""
        name = f"{kind}:{path}:{number}"
        self.pending[name] = await self.seal_soon(path, name, value, f"{kind} {{}}".format)
        self.add(name, value)

    def forget(self, names: Iterable[str]) -> None:
        """Drop loaded parts with the next commit."""
        for name in names:
            owner = owner_of_part(name)
            del self.loaded[owner][name]
            if not self.loaded[owner]:
                del self.loaded[owner]
            self.pending[name] = None

    def get(self, path: str, kind: str, number: int | str = 0) -> Any:
        """Return a part of a node as it was loaded, or ``None``."""
        return self.loaded.get(path, {}).get(f"{kind}:{path}:{number}")

    def all_of(self, path: str, kind: str) -> list[Any]:
        """Return all parts of one kind that a node had when the run was loaded, in their order."""
        found: list[Any] = []
        while (value := self.get(path, kind, len(found))) is not None:
            found.append(value)
        return found

    def take_pending(self) -> Pending:
        """Return what the next commit writes and drops."""
        pending, self.pending = self.pending, {}
        return pending

    def give_back(self, pending: Pending) -> None:
        """Write and drop these with a later commit, because theirs was refused."""
        self.pending = {**pending, **self.pending}


def is_inside(path: str, around: str) -> bool:
    """Return whether a path is that of a node or of something inside it."""
    return path == around or path.startswith(f"{around}/")
