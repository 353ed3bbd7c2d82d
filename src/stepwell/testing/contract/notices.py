"""Promises about notices between storage objects of one store, in one process and in two."""

from __future__ import annotations

import asyncio
import os

import pytest

from stepwell.storage import Storage
from stepwell.testing.contract.reopening import forked
from stepwell.testing.contract.suite import Suite

#: The maximum seconds until a notice arrives.
ARRIVES_WITHIN = 10.0

NOT_RECEIVED = (
    "no notice arrived. If notify() reaches listeners in its own process only, set notices = False; workers in other "
    "processes then poll"
)


class NoticePromises(Suite):
    """The listeners that a notice reaches."""

    async def test_a_notice_reaches_a_listener_of_a_second_object(self, storage: Storage) -> None:
        async with self.reopen(storage) as other:
            for sender, listener in ((storage, other), (other, storage)):
                woken = asyncio.Event()
                end = listener.listen("t", woken.set)
                await _notify_until(sender, woken)
                end()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork()")
    async def test_a_notice_reaches_a_listener_in_another_process(self, storage: Storage) -> None:
        # The storage is closed before the fork, so that none of its threads runs.
        await storage.close()
        read, write = os.pipe()
        child = forked(self._notify_in_a_process(storage, read, write))
        os.close(read)
        woken = asyncio.Event()
        try:
            async with self.reopen(storage) as own:
                own.listen("t", woken.set)
                try:
                    await asyncio.wait_for(woken.wait(), ARRIVES_WITHIN)
                except TimeoutError:
                    pytest.fail(NOT_RECEIVED)
        finally:
            os.close(write)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0, "the other process failed; its traceback is in the captured output"

    async def _notify_in_a_process(self, storage: Storage, read: int, write: int) -> None:
        # Closed here, so that the read ends when the parent closes its end.
        os.close(write)
        async with self.reopen(storage) as own:
            ended = asyncio.ensure_future(asyncio.to_thread(os.read, read, 1))
            while not ended.done():
                # One notice may be lost while the listener connects.
                await own.notify("t")
                await asyncio.wait([ended], timeout=0.05)


async def _notify_until(sender: Storage, woken: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(ARRIVES_WITHIN):
            while not woken.is_set():
                await sender.notify("t")
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(NOT_RECEIVED)
