"""Notices between processes: sent in the background, and received over one connection while there are listeners."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from stepwell._backoff import backoff, jittered
from stepwell.errors import StepwellError, StorageError, StorageUnavailable
from stepwell.storage.transport import outage
from stepwell.storage.transport.wakeups import Callback, Listener, call_soon

__all__ = ["NoticeChannel", "Outbox", "payload_of"]

logger: logging.Logger = logging.getLogger(__name__)

#: Seconds between attempts to connect: the first pause, and the longest.
PAUSES = (0.1, 10.0)
#: Seconds without a notice after which the connection is checked.
CHECK_EVERY = 15.0
#: Seconds that a storage waits at its close for notices that are being sent.
LAST_NOTICES = 1.0
#: Seconds after which a task that is still running is cancelled again.
CANCEL_EVERY = 0.2


def payload_of(topic: str) -> str:
    """Return the text that is sent for a topic: the topic, or its hash if a server cannot store the text."""
    if "\0" not in topic:
        with suppress(UnicodeEncodeError):
            topic.encode()
            return topic
    return f"sha256:{hashlib.sha256(topic.encode('utf-8', 'surrogatepass')).hexdigest()}"


class Outbox:
    """Sends notices in the background, one at a time for each topic."""

    def __init__(self) -> None:
        #: The topics that are being sent, and whether one more notice is needed afterwards.
        self._sending: dict[str, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, topic: str, notify: Callable[[str], Awaitable[None]]) -> None:
        """Call ``notify(topic)`` soon. Errors of the storage are ignored: listeners poll too."""
        if topic in self._sending:
            # The notice that is being sent may be older than the change that this one announces.
            self._sending[topic] = True
            return
        self._sending[topic] = False
        task = asyncio.get_running_loop().create_task(self._send(topic, notify), name="stepwell-notify")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, topic: str, notify: Callable[[str], Awaitable[None]]) -> None:
        try:
            while True:
                self._sending[topic] = False
                with suppress(StorageError):
                    await notify(topic)
                if not self._sending[topic]:
                    return
        finally:
            self._sending.pop(topic, None)

    async def close(self) -> None:
        """Wait until all notices are sent, at most ``LAST_NOTICES`` seconds."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(set(self._tasks), timeout=LAST_NOTICES)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def reset(self) -> None:
        """Forget the tasks of a closed event loop."""
        self._sending, self._tasks = {}, set()


class NoticeChannel(ABC):
    """Exchanges notices with the other processes of a store, over its server.

    It opens a connection for the first listener, and keeps it until the last one is removed or the storage closes. A
    lost connection is opened again. Notices that were sent meanwhile are lost.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}
        #: Notices of this storage that its own connection will receive. Its listeners have got them in the process.
        self._echoes: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._connected = False
        #: ``False`` after the server has refused it for good.
        self._can_send = self._can_receive = True
        self._calm: asyncio.TimerHandle | None = None
        self._outage = outage.OutageLog(
            logger,
            "notices from other processes do not arrive, and workers poll meanwhile: %s",
            "notices from other processes arrive again; they did not for %.1f s",
        )

    @abstractmethod
    async def _send(self, payload: str) -> None:
        """Send a text to all connections of this channel."""

    @abstractmethod
    async def _receive(self) -> str:
        """Connect, call ``_begin()``, and then ``_received()`` with each text, until the connection is lost.

        Raises ``StorageError`` when it is lost. Returns only if the server cannot send notices here, with the reason.
        """

    async def send(self, topic: str) -> None:
        """Send a notice to the other processes."""
        if not self._can_send:
            return
        payload = payload_of(topic)
        echo = self._connected and payload in self._listeners
        if echo:
            self._echoes[payload] += 1
        try:
            try:
                await self._send(payload)
            except StorageUnavailable as error:
                if error.final:
                    raise
                # The connection may have been broken for long, unnoticed.
                await self._send(payload)
        except BaseException as error:
            if echo:
                self._is_echo(payload)
            if not isinstance(error, StorageUnavailable) or not error.final:
                raise
            self._can_send = False
            logger.warning("notices are not sent to other processes, whose workers poll instead: %s", error)

    def add(self, topic: str, callback: Callback) -> Callable[[], None]:
        """Call ``callback`` in the running event loop after each notice of another process; return how to end it."""
        payload, listener = payload_of(topic), (asyncio.get_running_loop(), callback)
        self._listeners.setdefault(payload, []).append(listener)

        def remove() -> None:
            left = [each for each in self._listeners.pop(payload, ()) if each is not listener]
            if left:
                self._listeners[payload] = left
            elif not self._listeners:
                self._stop()

        return remove

    def start(self) -> None:
        """Connect in the background if there are listeners."""
        if self._listeners and self._can_receive and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="stepwell-notices")

    async def close(self) -> None:
        """Close the connection."""
        self._stop()
        while self._ending:
            await asyncio.wait(set(self._ending), timeout=CANCEL_EVERY)
            for task in self._ending:
                # A driver may have lost the first cancellation.
                task.cancel()
        self._can_send = self._can_receive = True

    def reset(self) -> None:
        """Forget the task of a closed event loop."""
        self._task, self._ending, self._calm, self._connected = None, set(), None, False

    def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None and not task.get_loop().is_closed():
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _keep(self) -> None:
        failures = 0
        while True:
            try:
                reason = await self._receive()
                self._can_receive = False
                logger.warning("notices from other processes do not arrive here, and workers poll instead: %s", reason)
                return
            except StepwellError as error:
                failures = 1 if self._connected else failures + 1
                self._outage.failed(error)
            except Exception:
                failures += 1
                logger.exception("receiving notices from other processes failed")
            finally:
                self._connected = False
                if self._calm is not None:
                    self._calm.cancel()
                    self._calm = None
            await asyncio.sleep(jittered(backoff(failures, *PAUSES)))

    def _begin(self) -> None:
        """Note that the connection receives notices from now on."""
        self._connected = True
        self._echoes.clear()
        # The outage is over if the connection stays.
        self._calm = asyncio.get_running_loop().call_later(outage.CALM + 0.1, self._outage.worked)

    def _received(self, payload: str) -> None:
        if not self._is_echo(payload):
            call_soon(self._listeners.get(payload, ()), payload)

    def _is_echo(self, payload: str) -> bool:
        """Return whether a notice of this storage is expected, and expect one less."""
        if payload not in self._echoes:
            return False
        self._echoes[payload] -= 1
        if not self._echoes[payload]:
            del self._echoes[payload]
        return True
