"""No error, repr or log line shows the password of a URL."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiogram.fsm.storage.base import StorageKey

from stepwell import MemoryStorage, StateStorage, configure, copy_records, open_storage
from stepwell.adapters.aiogram import StepwellIsolation, StepwellStorage
from stepwell.errors import InvalidOption, StepwellError, UnknownRun
from stepwell.fsm import FSM
from stepwell.nodes import NodeFlow, run_async_batch, worker
from stepwell.storage.postgres import PostgresStorage
from stepwell.storage.redis import RedisStorage
from tests.nodes.flows import A
from tests.servers.process import free_port

#: No error may show any of these parts, before or after a special character.
PARTS = ("hunterhunter", "swordfish")
PASSWORDS = [
    *(
        f"{PARTS[0]}{special}{PARTS[1]}"
        for special in ("", "#", "/", "?", "@", ":", "[", "]", "%", " ", "&", "=", ";", ",")
    ),
    f"{PARTS[0]}?timeout={PARTS[1]}",
    f"{PARTS[0]}?schema={PARTS[1]}",
    f"{PARTS[0]}@{PARTS[1]}#/?@{PARTS[0]}",
    f"#{PARTS[0]}",
    f"/{PARTS[0]}",
    f"{PARTS[0]}#",
]
FORMS = [
    "postgresql://user:{}@127.0.0.1:{}/database",
    "postgresql://:{}@127.0.0.1:{}/database?connect_timeout=x",
    "redis://user:{}@127.0.0.1:{}/0",
    "redis://:{}@127.0.0.1:{}",
    "rediss://:{}@127.0.0.1:{}/x",
    "redis+cluster://:{}@127.0.0.1:{},127.0.0.1:1",
    "redis+sentinel://:{}@127.0.0.1:{},127.0.0.1:1/mymaster/0",
    "unix://:{}@/no/such/socket?port={}",
    "sqlite://user:{}@127.0.0.1:{}/bot.db",
    "memory://user:{}@127.0.0.1:{}",
    "mongodb://user:{}@127.0.0.1:{}/database",
    "postgresql//user:{}@127.0.0.1:{}",
    "//user:{}@127.0.0.1:{}",
    "://{}@127.0.0.1:{}",
]


def urls() -> list[str]:
    port = free_port()
    return [form.format(password, port) for form in FORMS for password in PASSWORDS]


def shown(error: BaseException, log: str) -> str:
    """Return the texts of an error that a user, a log or an error tracker shows."""
    texts = [log]
    seen: BaseException | None = error
    while seen is not None:
        texts += [str(seen), repr(seen), repr(seen.args), repr(getattr(seen, "__dict__", ""))]
        texts += getattr(seen, "__notes__", [])
        seen = seen.__cause__ if seen.__suppress_context__ or seen.__cause__ else seen.__context__
    # Without source lines, because those of this test contain the passwords.
    texts += traceback.TracebackException.from_exception(error).format_exception_only()
    return "\n".join(texts)


def impatient(given: Any) -> Any:
    """Return a storage for a URL that does not retry."""
    if not isinstance(given, str) or given.startswith(("memory", "sqlite")):
        return open_storage(given)
    return open_storage(given, patience=0)


async def use_it(given: Any) -> None:
    storage = impatient(given)
    try:
        repr(storage)
        await storage.get_data("bot", 1)
    finally:
        await storage.close()


async def use_postgres(given: Any) -> None:
    storage = PostgresStorage(given, patience=0)
    try:
        await storage.get_data("bot", 1)
    finally:
        await storage.close()


async def run(given: Any) -> None:
    await NodeFlow(start=A()).run({}, storage=given)


async def list_runs(given: Any) -> None:
    async for _ in NodeFlow(start=A()).runs(storage=given):
        pass


async def made(maker: Callable[[Any], Any], given: Any) -> None:
    raise StepwellError(repr(maker(given)))


def makes(maker: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    return lambda given: made(maker, given)


def configured(given: Any) -> None:
    configure(storage=given)


#: Every public call that takes a storage. Only some of them connect, because waiting for a server takes time.
MAKERS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "open_storage": makes(open_storage),
    "RedisStorage.from_url": makes(RedisStorage.from_url),
    "PostgresStorage.from_url": makes(PostgresStorage.from_url),
    "PostgresStorage": makes(PostgresStorage),
    "FSM": makes(lambda given: FSM("bot", storage=given, flows=[])),
    "StateStorage": makes(StateStorage),
    "configure": makes(configured),
    "NodeFlow": makes(lambda given: NodeFlow(storage=given)),
    "worker": makes(lambda given: worker([NodeFlow(start=A())], storage=given)),
    "StepwellStorage": makes(StepwellStorage),
    "StepwellIsolation": makes(StepwellIsolation),
}
WRONG: dict[str, Callable[[Any], Any]] = {
    "bytes": str.encode,
    "path": Path,
    "list": lambda url: [url],
    "dict": lambda url: {"url": url},
    "set": lambda url: {url},
    "object": lambda url: type("Settings", (), {"__repr__": lambda self: url})(),
}


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    yield
    configure(storage=None)


async def check(call: Callable[[Any], Awaitable[Any]], given: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    try:
        await call(given)
    except StepwellError as error:
        text = shown(error, caplog.text)
        assert [part for part in PARTS if part in text] == [], f"for {given!r}: {text}"


@pytest.mark.parametrize("name", MAKERS)
async def test_no_password_is_shown_when_a_storage_is_made(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for url in urls():
        await check(MAKERS[name], url, caplog)


@pytest.mark.parametrize("call", [use_it, use_postgres], ids=lambda call: call.__name__)
async def test_no_password_is_shown_when_a_server_is_unreachable(
    call: Callable[[Any], Awaitable[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for url in urls():
        if call is use_it or url.startswith("postgresql://"):
            await check(call, url, caplog)


@pytest.mark.parametrize("wrong", WRONG)
async def test_no_password_is_shown_when_a_url_is_of_the_wrong_type(
    wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    flow = NodeFlow(start=A())
    calls: dict[str, Callable[[Any], Awaitable[Any]]] = {
        **MAKERS,
        "run": run,
        "resume": lambda given: flow.resume("x", storage=given),
        "status": lambda given: flow.status("x", storage=given),
        "runs": list_runs,
        "copy to": lambda given: copy_records(MemoryStorage(), given),
        "copy from": lambda given: copy_records(given, MemoryStorage()),
    }
    for form in FORMS[:1]:
        given = WRONG[wrong](form.format(PARTS[0], 1))
        for name, call in calls.items():
            await check(call, given, caplog)
            if not name.startswith(("Redis", "Postgres")):
                with pytest.raises(InvalidOption, match=r"sqlite:///bot\.db"):
                    await call(given)
        with pytest.raises(InvalidOption):
            run_async_batch(flow, {}, storage=given)


@pytest.mark.parametrize("special", "#/?")
def test_a_password_that_is_not_encoded_is_refused_and_the_error_shows_how_to_encode_it(special: str) -> None:
    for scheme in ("postgresql", "redis"):
        with pytest.raises(InvalidOption, match=r"# as %23"):
            open_storage(f"{scheme}://user:pass{special}word@host/0")


class Items(A):
    def prep(self, shared: Any) -> list[int]:
        return [1, 2]


async def test_every_call_that_takes_a_storage_takes_a_url_and_closes_the_storage(tmp_path: Path) -> None:
    url, other = f"sqlite:///{tmp_path}/bot.db", f"sqlite:///{tmp_path}/other.db"

    # Earlier tests may have left storages open.
    earlier = set(threading.enumerate())

    def check_closed() -> None:
        new = set(threading.enumerate()) - earlier
        assert [thread for thread in new if thread.name == "stepwell-sqlite"] == []

    flow = NodeFlow(start=A(), keep=True)
    state = await flow.run({}, storage=url, flow_id="one")
    check_closed()
    assert (await flow.status("one", storage=url)).status == "finished"
    assert [run.flow_id async for run in flow.runs("finished", storage=url)] == ["one"]
    assert await flow.resume("one", storage=url) == state
    check_closed()
    async with worker([flow], storage=url):
        pass
    check_closed()
    # The run, and the graph of its flow.
    assert (await copy_records(url, other)).written == 2
    check_closed()
    await run_async_batch(NodeFlow(start=Items()), {}, storage=url)
    check_closed()
    with pytest.raises(UnknownRun):
        await flow.resume("two", storage=url)
    check_closed()
    states = StateStorage(other)
    assert await states.get_state("one") == state
    await states.storage.close()
    kept = NodeFlow(start=A(), storage=other, keep=True)
    assert (await kept.status("one")).status == "finished"
    assert kept.storage is not None
    await kept.storage.close()
    configure(storage=other)
    assert await StateStorage().get_state("one") == state
    await StateStorage().storage.close()
    check_closed()


async def test_aiograms_storage_and_isolation_take_urls_and_close_the_storages(tmp_path: Path) -> None:
    storage = StepwellStorage(f"sqlite:///{tmp_path}/bot.db")
    isolation = StepwellIsolation(f"sqlite:///{tmp_path}/locks.db")
    key = StorageKey(bot_id=1, chat_id=2, user_id=3)
    # Earlier tests may have left storages open.
    earlier = set(threading.enumerate())
    for number in range(2):
        async with isolation.lock(key):
            pass
        assert await storage.update_data(key, {str(number): number}) == {str(each): each for each in range(number + 1)}
        await storage.close()
        await isolation.close()
        new = set(threading.enumerate()) - earlier
        assert [thread for thread in new if thread.name == "stepwell-sqlite"] == []
