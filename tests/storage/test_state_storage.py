from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import stepwell
from stepwell import MemoryStorage, StateStorage
from stepwell.errors import InvalidOption
from stepwell.storage.state_storage import default_state_storage


@pytest.fixture(autouse=True)
def nothing_configured() -> Iterator[None]:
    stepwell.configure(storage=None, state_storage=None)
    yield
    stepwell.configure(storage=None, state_storage=None)


async def test_without_a_storage_the_configured_one_is_used() -> None:
    async with MemoryStorage() as storage:
        stepwell.configure(storage=storage)
        await StateStorage().update_state("configured", {"a": 1})
        assert await StateStorage(storage).get_state("configured") == {"a": 1}
        stepwell.configure(storage=None)
        assert await StateStorage().get_state("configured") == {}


async def test_by_default_there_is_one_memory_storage_per_process() -> None:
    await StateStorage().update_state("run", {"a": 1})
    assert await StateStorage().get_state("run") == {"a": 1}


async def test_configuring_no_storage_keeps_the_runs_in_the_memory_storage_of_the_process() -> None:
    await StateStorage().update_state("kept", {"a": 1})
    stepwell.configure(storage=None)
    assert await StateStorage().get_state("kept") == {"a": 1}
    stepwell.configure(storage="memory://")
    assert await StateStorage().get_state("kept") == {}
    stepwell.configure(storage=None)
    assert await StateStorage().get_state("kept") == {"a": 1}


def test_the_default_outlives_the_loop_that_used_it_first() -> None:
    asyncio.run(StateStorage().update_state("run", {"a": 1}))
    assert asyncio.run(StateStorage().get_state("run")) == {"a": 1}


async def test_a_custom_state_storage_is_used_where_one_is_configured() -> None:
    class Mine(StateStorage):
        async def get_state(self, flow_id: object) -> dict[object, object]:
            return {"mine": flow_id}

    stepwell.configure(state_storage=Mine())
    assert await default_state_storage().get_state("run") == {"mine": "run"}


def test_configuring_an_invalid_object_raises_and_says_what_to_pass() -> None:
    with pytest.raises(InvalidOption, match="Storage or a URL"):
        stepwell.configure(storage=object())  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="StateStorage"):
        stepwell.configure(state_storage=object())  # type: ignore[arg-type]
