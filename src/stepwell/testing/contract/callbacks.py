"""Promises of the seven storage methods and of ``StateStorage``."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from stepwell.errors import InvalidKey, InvalidOption, StorageClosed, TooLarge, WrongLoop
from stepwell.record import Change, State
from stepwell.slot import Slot
from stepwell.storage import Apply, Claim, Release, StateStorage, Storage
from stepwell.testing.contract.suite import Suite

#: Names that a careless encoding would confuse.
BOTS = [
    "a", "b", "a:b", "a/b", "a\\/b", "{a}", "%", "% ", " a", "a ", "é", "e\u0301", "🤖", "a\nb", 'a"b', "A", "*", "a\0",
]  # fmt: skip
#: Keys that a careless encoding would confuse.
KEYS: list[Any] = [
    (1, "2"), ("1", 2), (True, 2), (1, (2,)), ((1,), 2), "1:2", (1, 2), ("1", "2"), ("1:2",), ("1", ""), ("", "1"),
    1, True, "1", "True", (1,), b"1", (b"1",), None, (None,), "None", (), ((),), "", 0, False, (0,), (False,),
    "a/b", ("a", "b"), "a,b", "(1,2)", "*", "a%", "a_", "{1}", "é", "e\u0301", "\0", "\\0", "\n", "🙂", -1, 10**30,
]  # fmt: skip


class CallbackPromises(Suite):
    async def test_init_may_be_called_any_number_of_times_or_not_at_all(self, storage: Storage) -> None:
        await storage.set_state("early", 1, State("f", "s", {"a": 1}))
        for _ in range(3):
            await storage.init("early")
        assert await storage.get_state("early", 1) == State("f", "s", {"a": 1})

    async def test_init_refuses_an_unknown_option(self, storage: Storage) -> None:
        with pytest.raises(InvalidOption, match="tll"):
            await storage.init("bot", tll=3)
        with pytest.raises(InvalidOption, match="ttl"):
            await storage.init("bot", ttl=-1)

    async def test_an_unknown_key_has_no_state_and_no_data(self, storage: Storage) -> None:
        assert await storage.get_state("bot", 1) is None
        assert await storage.get_data("bot", 1) is None

    async def test_a_record_without_data_has_empty_data(self, storage: Storage) -> None:
        await storage.set_state("bot", 1, State("f", "s"))
        assert await storage.get_data("bot", 1) == {}
        assert await storage.get_state("bot", 1) == State("f", "s", {})

    async def test_set_state_is_read_back_equal(self, storage: Storage) -> None:
        for state in (State(), State("f"), State("f", "s"), State(None, "s", {"a": 1}), State("f", "", {"": None})):
            await storage.set_state("bot", 1, state)
            assert await storage.get_state("bot", 1) == state

    async def test_set_state_replaces_the_whole_record(self, storage: Storage) -> None:
        await storage.set_state("bot", 1, State("f", "s", {"a": 1, "b": 2}))
        await storage.set_state("bot", 1, State(None, "t", {"b": 3}))
        assert await storage.get_state("bot", 1) == State(None, "t", {"b": 3})

    async def test_set_data_replaces_the_data_and_keeps_flow_and_state(self, storage: Storage) -> None:
        await storage.set_state("bot", 1, State("f", "s", {"a": 1}))
        await storage.set_data("bot", 1, {"b": 2})
        assert await storage.get_state("bot", 1) == State("f", "s", {"b": 2})
        await storage.set_data("bot", 1, {})
        assert await storage.get_data("bot", 1) == {}

    async def test_set_data_on_an_unknown_key_creates_a_record_without_flow_and_state(self, storage: Storage) -> None:
        await storage.set_data("bot", 1, {"a": 1})
        assert await storage.get_state("bot", 1) == State(None, None, {"a": 1})

    async def test_update_data_merges_shallowly_and_returns_the_merged_data(self, storage: Storage) -> None:
        await storage.set_state("bot", 1, State("f", "s", {"a": 1, "b": {"x": 1}}))
        merged = {"a": 1, "b": {"y": 2}, "c": 3}
        assert await storage.update_data("bot", 1, {"b": {"y": 2}, "c": 3}) == merged
        assert await storage.get_state("bot", 1) == State("f", "s", merged)

    async def test_update_data_on_an_unknown_key_creates_a_record(self, storage: Storage) -> None:
        assert await storage.update_data("bot", 1, {"a": 1}) == {"a": 1}
        assert await storage.get_state("bot", 1) == State(None, None, {"a": 1})
        assert await storage.update_data("bot", 2, {}) == {}
        assert await storage.get_state("bot", 2) == State()

    async def test_clear_removes_the_record_and_nothing_else(self, storage: Storage) -> None:
        for bot in ("bot", "other"):
            for key in (1, 2):
                await storage.set_state(bot, key, State("f", "s", {"a": 1}))
        await storage.clear("bot", 1)
        assert await storage.get_state("bot", 1) is None
        assert await storage.get_data("bot", 1) is None
        for bot, key in (("bot", 2), ("other", 1), ("other", 2)):
            assert await storage.get_state(bot, key) == State("f", "s", {"a": 1})

    async def test_clear_on_an_unknown_key_does_nothing(self, storage: Storage) -> None:
        await storage.clear("bot", 1)
        await storage.clear("bot", 1)
        assert await storage.get_state("bot", 1) is None

    async def test_a_record_created_after_clear_has_nothing_of_the_old_one(self, storage: Storage) -> None:
        await storage.set_state("bot", 1, State("f", "s", {"a": 1}))
        await storage.clear("bot", 1)
        assert await storage.update_data("bot", 1, {"b": 2}) == {"b": 2}
        assert await storage.get_state("bot", 1) == State(None, None, {"b": 2})

    async def test_bots_with_similar_names_never_share_records(self, storage: Storage) -> None:
        for number, bot in enumerate(BOTS):
            await storage.set_data(bot, 1, {"number": number})
        for number, bot in enumerate(BOTS):
            assert await storage.get_data(bot, 1) == {"number": number}, bot
        await storage.clear(BOTS[0], 1)
        assert await storage.get_data(BOTS[2], 1) == {"number": 2}

    async def test_a_bot_without_a_name_is_refused(self, storage: Storage) -> None:
        for bot in ("", None, 7, "\ud800"):
            with pytest.raises(InvalidKey):
                await storage.get_state(bot, 1)  # type: ignore[arg-type]

    async def test_keys_are_equal_only_if_type_and_value_are_equal(self, storage: Storage) -> None:
        for number, key in enumerate(KEYS):
            await storage.set_data("bot", key, {"number": number})
        for number, key in enumerate(KEYS):
            assert await storage.get_data("bot", key) == {"number": number}, repr(key)

    async def test_a_key_of_an_unsupported_type_is_refused_and_the_error_names_the_type(self, storage: Storage) -> None:
        for key, name in ((1.5, "float"), ([1], "list"), ((1, {2}), "set"), (object(), "object"), ("\ud800", "surr")):
            with pytest.raises(InvalidKey, match=name):
                await storage.set_data("bot", key, {})

    async def test_a_key_above_its_limit_is_refused(self, storage: Storage) -> None:
        with pytest.raises(TooLarge, match="key"):
            await storage.set_data("bot", "é" * storage.limits.key, {})

    async def test_long_keys_and_names_that_differ_only_at_the_end_are_kept_apart(self, storage: Storage) -> None:
        # As long as the limit allows.
        room = storage.limits.key - len(storage.address("a", "a").key)
        keys = ["x" * room + end for end in "ab"]
        bots = ["x" * (storage.limits.key - 10) + end for end in "ab"]
        places = [(bot, key) for bot in ("bot", *bots) for key in (1, *keys)]
        for number, (bot, key) in enumerate(places):
            await storage.set_data(bot, key, {"number": number})
        for number, (bot, key) in enumerate(places):
            assert await storage.get_data(bot, key) == {"number": number}
        await storage.clear("bot", keys[0])
        assert await storage.get_data("bot", keys[1]) == {"number": 2}

    async def test_a_returned_state_is_a_copy(self, storage: Storage) -> None:
        await storage.set_state("bot", 1, State("f", "s", {"list": [1]}))
        first = await storage.get_state("bot", 1)
        assert first is not None
        first.data["list"].append(2)
        first.data["new"] = 1
        merged = await storage.update_data("bot", 1, {"b": [1]})
        merged["b"].append(2)
        data = await storage.get_data("bot", 1)
        assert data is not None
        data["list"].append(3)
        assert await storage.get_state("bot", 1) == State("f", "s", {"list": [1], "b": [1]})

    async def test_data_passed_in_may_be_changed_afterwards(self, storage: Storage) -> None:
        given = {"list": [1]}
        await storage.set_state("bot", 1, State("f", "s", given))
        given["list"].append(2)
        assert await storage.get_data("bot", 1) == {"list": [1]}

    async def test_fifty_concurrent_updates_of_fifty_fields_leave_fifty_fields(self, storage: Storage) -> None:
        await asyncio.gather(*(storage.update_data("bot", 1, {f"f{n}": n}) for n in range(50)))
        assert await storage.get_data("bot", 1) == {f"f{n}": n for n in range(50)}

    async def test_writes_to_one_key_are_applied_in_call_order(self, storage: Storage) -> None:
        for turn in range(5):
            await storage.update_data("bot", "another", {"turn": turn})
            await asyncio.gather(*(storage.update_data("bot", 1, {"last": number}) for number in range(5)))
            assert await storage.get_data("bot", 1) == {"last": 4}
            await storage.update_data("bot", "another", {"turn": turn})
            await asyncio.gather(storage.update_data("bot", 1, {"more": turn}), storage.clear("bot", 1))
            assert await storage.get_state("bot", 1) is None
            address = storage.address("bot", 1)
            fields = [storage.seal(address).fields({"last": number}) for number in range(5)]
            await storage.update_data("bot", "another", {"turn": turn})
            await asyncio.gather(*[storage.perform(Apply(address, Change(storage.ids(), set=each))) for each in fields])
            assert await storage.get_data("bot", 1) == {"last": 4}

    async def test_many_tasks_on_many_keys_each_get_their_own_result(self, storage: Storage) -> None:
        async def work(key: int) -> None:
            for step in range(3):
                assert await storage.update_data("bot", key, {"key": key, "step": step}) == {"key": key, "step": step}
                assert await storage.get_data("bot", key) == {"key": key, "step": step}
            await storage.clear("bot", key)
            assert await storage.get_state("bot", key) is None

        await asyncio.gather(*(work(key) for key in range(40)))

    async def test_use_from_another_loop_raises_a_clear_error(self, storage: Storage) -> None:
        caught: list[BaseException] = []

        def elsewhere() -> None:
            try:
                asyncio.run(storage.get_state("bot", 1))
            except BaseException as error:  # noqa: BLE001 the test checks what the other thread raised
                caught.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert [type(error) for error in caught] == [WrongLoop]
        assert "loop" in str(caught[0])

    async def test_open_and_close_may_be_called_any_number_of_times(self, storage: Storage) -> None:
        await storage.open()
        await asyncio.gather(storage.open(), storage.open())
        await storage.set_data("bot", 1, {"a": 1})
        await storage.close()
        await storage.close()

    async def test_a_closed_storage_is_reopened_only_by_open(self, storage: Storage) -> None:
        await storage.close()
        address = storage.address("bot", 1)
        for use in (
            lambda: storage.init("bot"),
            lambda: storage.get_state("bot", 1),
            lambda: storage.update_data("bot", 1, {"a": 1}),
            lambda: storage.perform(Claim(address, "token", 10.0)),
            lambda: storage.perform(Release(address, "token")),
            lambda: Slot(storage, "bot", 1).__aenter__(),
        ):
            with pytest.raises(StorageClosed):
                await use()
            assert not storage.is_open
        await storage.open()
        assert await storage.update_data("bot", 1, {"b": 2}) == {"b": 2}

    async def test_state_storage_replaces_merges_and_cleans_up(self, storage: Storage) -> None:
        states = StateStorage(storage)
        assert await states.get_state("run-1") == {}
        assert await states.update_state("run-1", {"key": "value", "old": 1}) == {"key": "value", "old": 1}
        assert await states.update_state("run-1", {"key": "new"}) == {"key": "new"}
        assert await states.merge_state("run-1", {"another": [1]}) == {"key": "new", "another": [1]}
        assert await states.merge_state("run-2", {"other": 2}) == {"other": 2}
        assert await states.get_state("run-1") == {"key": "new", "another": [1]}
        await states.cleanup("run-1")
        await states.cleanup("run-3")
        assert await states.get_state("run-1") == {}
        assert await states.get_state("run-2") == {"other": 2}

    async def test_no_bot_name_collides_with_the_namespace_of_runs(self, storage: Storage) -> None:
        await StateStorage(storage).update_state("1", {"run": True})
        for bot in ("runs", '"runs"', "RUNS", "\\runs", "flows"):
            assert await storage.get_data(bot, "1") is None
