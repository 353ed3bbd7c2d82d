"""The names that servers know a connection by, since Redis 7.2."""

from __future__ import annotations

import uuid

import pytest
import redis.asyncio

from stepwell import RedisStorage, open_storage
from tests.servers.redis import the_server


async def test_the_server_knows_the_driver_whose_version_is_not_read_for_each_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redis.utils.get_lib_version", None)
    async with open_storage(the_server().url(f"?prefix={uuid.uuid4().hex}")) as storage:
        await storage.update_data("bot", 1, {"a": 1})
        monkeypatch.undo()
        with the_server().client() as client:
            versions = {each["lib-ver"] for each in client.client_list() if each["lib-name"] == "redis-py"}
    assert redis.__version__ in versions


async def test_the_name_of_a_given_client_is_kept() -> None:
    own = redis.DriverInfo("mine", "1.2")
    async with redis.asyncio.Redis(port=the_server().port, driver_info=own) as given:
        async with RedisStorage(given, prefix=uuid.uuid4().hex) as storage:
            await storage.update_data("bot", 1, {"a": 1})
            with the_server().client() as client:
                assert "mine" in {each["lib-name"] for each in client.client_list()}
