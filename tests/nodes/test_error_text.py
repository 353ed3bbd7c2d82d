"""The errors that a durable run keeps: tracebacks, attempts and times."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepwell.nodes import BatchNode, Node, NodeFlow, linear
from stepwell.nodes.run.errors import MESSAGE, TRACEBACK, message_of, traceback_of
from stepwell.nodes.run.monitor import RunError
from stepwell.storage import MemoryStorage, Storage
from stepwell.testing import Clock


@pytest.fixture
async def storage() -> AsyncIterator[Storage]:
    async with MemoryStorage() as storage:
        yield storage


class Boom(Exception):
    pass


def fail_deeply(password: str) -> None:
    raise Boom("no luck")


class Fails(Node):
    async def exec(self, prep_res: Any) -> None:
        fail_deeply("hunter2")


async def kept(flow: NodeFlow, kind: type[BaseException] = Boom) -> RunError:
    with pytest.raises(kind):
        await flow.run({}, flow_id="r")
    return (await flow.status("r")).errors[0]


async def test_an_error_is_kept_with_its_traceback_and_without_local_variables(storage: Storage) -> None:
    error = await kept(linear(Fails(name="a"), storage=storage))
    first, *_, last = error.traceback.splitlines()
    assert "in exec" in first
    assert last == "Boom: no luck"
    assert "in fail_deeply" in error.traceback
    assert "walk/runner.py" not in error.traceback
    assert "hunter2" not in error.traceback.replace('fail_deeply("hunter2")', "")


async def test_the_number_of_the_attempt_that_failed_is_kept(storage: Storage) -> None:
    assert (await kept(linear(Fails(3, name="a"), storage=storage))).attempt == 3


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_the_number_of_the_attempt_of_a_failed_item_is_kept(storage: Storage, concurrency: int) -> None:
    class Items(BatchNode):
        def prep(self, shared: Any) -> Any:
            return range(5)

        async def exec(self, item: int) -> None:
            if item == 3:
                raise Boom

    error = await kept(linear(Items(4, concurrency=concurrency), storage=storage))
    assert error.attempt == 4
    assert "item 3 of batch" in error.traceback


async def test_the_time_of_an_error_is_that_of_the_storage() -> None:
    clock = Clock()
    async with MemoryStorage(clock=clock) as storage:
        assert (await kept(linear(Fails, storage=storage))).at == clock()


def caught(action: Any, *args: Any) -> BaseException:
    try:
        action(*args)
    except BaseException as error:
        return error
    raise AssertionError


def recurse(n: int) -> None:
    recurse(n + 1)


def ping(n: int) -> None:
    pong(n)


def pong(n: int) -> None:
    if n == 0:
        raise Boom("x" * 10_000 + "\n" * 10_000)
    ping(n - 1)


def raise_group(width: int, depth: int) -> None:
    errors: list[Exception] = [caught(fail_deeply, "") for _ in range(width)]  # type: ignore[misc]
    group = ExceptionGroup("several", errors)
    for _ in range(depth):
        group = ExceptionGroup("deeper", [group])
    raise group


def raise_chain(length: int) -> None:
    error: Exception | None = None
    for number in range(length):
        try:
            raise Boom(number) from error
        except Boom as raised:
            error = raised
    assert error is not None
    raise error


@pytest.mark.parametrize(
    ("action", "args"),
    [(recurse, (0,)), (ping, (100,)), (raise_group, (1000, 0)), (raise_group, (2, 50)), (raise_chain, (1000,))],
)
def test_a_traceback_is_bounded(action: Any, args: tuple[Any, ...]) -> None:
    text = traceback_of(caught(action, *args))
    assert 100 < len(text) <= TRACEBACK
    assert f"in {action.__name__}" in text


def test_a_chain_begins_with_its_first_causes() -> None:
    try:
        try:
            fail_deeply("")
        except Boom as error:
            raise ValueError("outer") from error
    except ValueError as error:
        text = traceback_of(error)
    assert text.index("Boom: no luck") < text.index("then:") < text.index("ValueError: outer")


def test_an_error_whose_class_raises_has_a_text() -> None:
    class Dumb(Exception):
        __notes__ = property(lambda self: 1 / 0)  # type: ignore[assignment]

        def __str__(self) -> str:
            raise Boom

    assert (message_of(Dumb()), traceback_of(Dumb())) == ("", "")
    assert len(message_of(Boom("x" * 10_000))) == MESSAGE
    assert traceback_of(Boom("caf\udce9.txt")) == "Boom: caf\\udce9.txt"
