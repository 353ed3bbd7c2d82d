"""The inbox: fetched updates stay in the storage until they are finished."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import MemoryStorage, copy_records
from stepwell.errors import StorageUnavailable
from stepwell.record import INBOX
from stepwell.storage.operations import Get
from stepwell.telegram.receiving.inbox import Inbox
from tests.backends import Backend
from tests.insides import cell_at
from tests.until import yields

pytestmark = pytest.mark.every_backend


def update(number: int, text: str = "hi") -> dict[str, Any]:
    return {"update_id": number, "message": {"message_id": 1, "text": text, "chat": {"id": 42, "type": "private"}}}


async def test_an_update_stays_until_it_is_finished(backend: Backend) -> None:
    async with backend.storage() as storage:
        inbox = Inbox(storage, "my_bot")
        assert await inbox.load() == []
        updates = [update(8), update(9), update(10)]
        await inbox.keep(updates)
        inbox.finish(9)
        await inbox.close()
        # In the order of the ids, not of their texts.
        assert await Inbox(storage, "my_bot").load() == [update(8), update(10)]
        assert await Inbox(storage, "another").load() == []


async def test_an_update_that_finishes_before_its_batch_is_written_leaves_nothing(backend: Backend) -> None:
    async with backend.storage() as storage:
        inbox = Inbox(storage, "my_bot")
        inbox.finish(1)
        await inbox.keep([update(1), update(2)])
        await inbox.close()
        assert await Inbox(storage, "my_bot").load() == [update(2)]


async def test_an_update_that_finishes_between_two_attempts_to_write_its_batch_leaves_nothing() -> None:
    class Away(MemoryStorage):
        away = True

        async def perform(self, operation: Any) -> Any:
            if self.away:
                raise StorageUnavailable("switched off", sent=False)
            return await super().perform(operation)

    async with Away() as storage:
        inbox = Inbox(storage, "my_bot")
        with pytest.raises(StorageUnavailable):
            await inbox.keep([update(1), update(2)])
        storage.away = False
        inbox.finish(1)
        # A removal that was started would be done now.
        await yields(10)
        await inbox.keep([update(1), update(2)])
        await inbox.close()
        assert await Inbox(storage, "my_bot").load() == [update(2)]


async def test_a_batch_that_comes_again_after_a_crash_is_not_new(backend: Backend) -> None:
    async with backend.storage() as storage:
        inbox = Inbox(storage, "my_bot")
        await inbox.keep([update(1), update(2)])
        inbox.finish(1)
        await inbox.close()

        restarted = Inbox(storage, "my_bot")
        assert await restarted.load() == [update(2)]
        again = [update(1), update(2), update(3)]
        assert restarted.select(again) == [update(3)]
        await restarted.keep(again)
        # Telegram's ids may start over, so an equal id with other content is a new update.
        assert restarted.select([update(1), update(2, "other")]) == [update(1), update(2, "other")]
        assert await Inbox(storage, "my_bot").load() == [update(2), update(3)]


async def test_a_batch_and_the_removals_before_it_are_one_write(backend: Backend) -> None:
    async with backend.storage() as storage:
        inbox = Inbox(storage, "my_bot")
        await inbox.keep([update(number) for number in range(100)])
        address = storage.address(INBOX, "my_bot")
        before = (await storage.perform(Get(address))).version
        for number in range(100):
            inbox.finish(number)
        await inbox.keep([update(100)])
        await inbox.close()
        stored = await storage.perform(Get(address, parts=True))
        assert stored.version.number == before.number + 1
        assert list(stored.parts) == ["100"]


async def test_an_inbox_can_be_copied(backend: Backend) -> None:
    async with backend.storage() as storage, MemoryStorage() as target:
        await Inbox(storage, "my_bot").keep([update(1), update(2)])
        copied = await copy_records(storage, target)
        assert (copied.written, copied.damaged) == (1, [])
        assert await Inbox(target, "my_bot").load() == [update(1), update(2)]


async def test_a_damaged_update_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async with MemoryStorage() as storage:
        inbox = Inbox(storage, "my_bot")
        await inbox.keep([update(1), update(2)])
        cell = cell_at(storage, INBOX, "my_bot")
        cell.parts["1"] = "00000000 " + cell.parts["1"][9:]
        assert await Inbox(storage, "my_bot").load() == [update(2)]
        assert "update 1 in the inbox is damaged" in caplog.text
