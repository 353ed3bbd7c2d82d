"""The mail of a durable run: what other processes have written for its runner, such as answers and cancellations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from stepwell._secrets import quoted
from stepwell.errors import StepwellError
from stepwell.nodes.run.parts import RunParts
from stepwell.nodes.run.table import MAIL, kind_of_mail, problem_of_part
from stepwell.record import Version
from stepwell.slot import Slot

__all__ = ["Mailbox"]

logger: logging.Logger = logging.getLogger(__name__)


class Mailbox:
    """Reads what others have written to one run, and drops used mail with the next commit."""

    def __init__(self, slot: Slot, parts: RunParts, flow_id: str) -> None:
        self._slot, self._parts, self._flow_id = slot, parts, flow_id
        #: The mail that was read and is not used yet, by the name of its part.
        self.mail: dict[str, Any] = {}
        #: The names of mail that was used, or cannot be.
        self._used: set[str] = set()
        #: The mail that has cancelled the run.
        self.cancel: Mapping[str, Any] | None = None
        #: Whether mail pauses the run after its current nodes.
        self.pausing: bool = False
        #: Called when mail cancels the run; given while nodes run.
        self.on_cancel: Callable[[], None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._unread = False
        #: The version up to which this runner knows the writes of others. The journal adds its own writes.
        self.version: Version | None = slot.version
        #: Whether others may have merged fields that the shared state of this runner does not have.
        self.unmerged: bool = False
        #: Whether mail may have set the deadline of the run to the past.
        self.is_due: bool = False

    def of_kind(self, kind: str) -> list[str]:
        """Return the names of unused mail of one kind, the oldest first."""
        return sorted(name for name in self.mail if kind_of_mail(name) == kind)

    def signal_for(self, wait: Mapping[str, Any]) -> str | None:
        """Return the mail with the oldest signal that a wait may take, or ``None``."""
        until = wait["until"]
        for name in self.of_kind("signal") if "signal" in wait else ():
            message = self.mail[name]
            if message["name"] == wait["signal"]:
                return None if until is not None and "at" in message and message["at"] >= until else name
        return None

    def use(self, name: str) -> Any:
        """Return the mail of this name, and drop it with the next commit."""
        self._parts.drop_mail([name])
        self._used.add(name)
        return self.mail.pop(name)

    def end(self, reason: str) -> None:
        """Cancel the run as mail would do, and cancel the nodes that run."""
        self.cancel = self.cancel or {"reason": reason}
        if self.on_cancel is not None:
            self.on_cancel()

    def drop_pauses(self) -> list[str]:
        """Drop the mail that pauses the run with the next commit, and return its names."""
        names = self.of_kind("pause")
        for name in names:
            self.use(name)
        return names

    def accept(self, mail: Mapping[str, Any]) -> None:
        """Keep mail until it is used."""
        for name in sorted(mail):
            if name in self._used:
                continue
            problem = problem_of_part(name, mail[name])
            if problem is not None:
                # Later reads find it again.
                self._used.add(name)
                text = "the mail %r of run %s has another form (%s) and is ignored"
                logger.warning(text, name, quoted(self._flow_id), problem)
                continue
            self.mail[name] = mail[name]
            if kind_of_mail(name) == "cancel":
                self.cancel = self.cancel or mail[name]
            elif kind_of_mail(name) == "pause":
                self.pausing = True
        if self.cancel is not None and self.on_cancel is not None:
            self.on_cancel()

    async def read(self) -> None:
        """Read the mail that others have written since the run was loaded."""
        version, mail = await self._slot.parts_of_others(MAIL)
        if version is None:
            # The record was replaced or removed, and the next commit raises.
            return
        if self._is_new(version):
            self.version, self.unmerged = version, True
        self.is_due = True
        self.accept(mail)

    async def look(self) -> None:
        """Read mail. If the storage is unavailable, the next commit that succeeds looks again."""
        try:
            await self.read()
        except StepwellError as error:
            logger.warning("the mail of run %s could not be read (%s); retrying", quoted(self._flow_id), error)

    def check_version(self, version: Version) -> None:
        """Read mail in the background if the record has a version that this runner does not know."""
        if self._is_new(version):
            self.look_soon()

    def look_soon(self) -> None:
        """Read mail in the background."""
        self._unread = True
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._look_while_unread(), name="stepwell-mail")

    def stop(self) -> None:
        """Stop reading mail in the background."""
        if self._reading is not None:
            self._reading.cancel()

    async def _look_while_unread(self) -> None:
        # Mail that arrives during a read may need another one.
        while self._unread:
            self._unread = False
            await self.look()

    def _is_new(self, version: Version) -> bool:
        return self.version is None or version.number > self.version.number
