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


class Mailbox(RunParts):
    """Reads the mail of one run, and drops used mail with the next commit."""

    def __init__(self, slot: Slot, flow_id: str) -> None:
        super().__init__(slot)
        self.flow_id = flow_id
        #: The mail that was read and is not used yet, by the name of its part.
        self.mail: dict[str, Any] = {}
        #: The names of mail that was used, or cannot be.
        self._used_mail: set[str] = set()
        #: The mail that has cancelled the run.
        self.cancel: Mapping[str, Any] | None = None
        #: Whether mail pauses the run after its current nodes.
        self.pausing: bool = False
        #: Called when mail cancels the run; given while nodes run.
        self.on_cancel: Callable[[], None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._unread = False
        #: The version up to which this runner knows the writes of others.
        self._read: Version | None = slot.version
        #: Whether others may have merged fields that the shared state of this runner does not have.
        self._unmerged: bool = False
        #: When the deadline of the run must be written again, on the monotonic clock.
        self._watched_until = 0.0

    async def look_for_mail(self) -> None:
        """Read mail. If the storage is unavailable, the next commit that succeeds looks again."""
        try:
            await self.read_mail()
        except StepwellError as error:
            logger.warning("the mail of run %s could not be read (%s); retrying", quoted(self.flow_id), error)

    async def read_mail(self) -> None:
        """Read the mail that others have written since the run was loaded."""
        version, mail = await self.slot.parts_of_others(MAIL)
        if version is None:
            # The record was replaced or removed, and the next commit raises.
            return
        if self._read is None or version.number > self._read.number:
            self._read, self._unmerged = version, True
        # The mail has set the deadline to the past.
        self._watched_until = 0.0
        self.accept_mail(mail)

    def accept_mail(self, mail: Mapping[str, Any]) -> None:
        """Keep mail until it is used."""
        for name in sorted(mail):
            if name in self._used_mail:
                continue
            problem = problem_of_part(name, mail[name])
            if problem is not None:
                # Later reads find it again.
                self._used_mail.add(name)
                text = "the mail %r of run %s has another form (%s) and is ignored"
                logger.warning(text, name, quoted(self.flow_id), problem)
                continue
            self.mail[name] = mail[name]
            if kind_of_mail(name) == "cancel":
                self.cancel = self.cancel or mail[name]
            elif kind_of_mail(name) == "pause":
                self.pausing = True
        if self.cancel is not None and self.on_cancel is not None:
            self.on_cancel()

    def check_version(self, version: Version) -> None:
        """Read mail in the background if the record has a version that this runner does not know."""
        if self._read is None or version.number > self._read.number:
            self.check_mail()

    def check_mail(self) -> None:
        """Read mail in the background."""
        self._unread = True
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read_unread(), name="stepwell-mail")

    async def _read_unread(self) -> None:
        # Mail that arrives during a read may need another one.
        while self._unread:
            self._unread = False
            await self.look_for_mail()

    def stop_reading(self) -> None:
        """Stop reading mail in the background."""
        if self._reading is not None:
            self._reading.cancel()

    def drop_pauses(self) -> list[str]:
        """Drop the mail that pauses the run with the next commit, and return its names."""
        names = [name for name in self.mail if kind_of_mail(name) == "pause"]
        for name in names:
            self.use_mail(name)
        return names

    def use_mail(self, name: str) -> Any:
        """Return the mail of this name, and drop it with the next commit."""
        self._pending[name] = None
        self._used_mail.add(name)
        return self.mail.pop(name)
