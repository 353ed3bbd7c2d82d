"""No secret that is passed in the place of another argument is shown: in an error, a log or a warning."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import itertools
import logging
import os
import types
import warnings
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from secrets import token_urlsafe
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from celery import Celery

from stepwell import KeyValueStorage, Log, MemoryStorage, RedisStorage, StateStorage, configure
from stepwell._secrets import quoted
from stepwell.adapters.celery import CeleryRuns
from stepwell.botapi import Person as User
from stepwell.botapi import World
from stepwell.errors import InvalidOption
from stepwell.fsm import FSM, Context, Flow, Form, Router, Translations, state, text
from stepwell.inspector import Inspector, TrustedProxy, inspector
from stepwell.nodes import Node, NodeFlow, RunHandle, Schedule, Schedules, Wait, every, worker
from stepwell.record import Address, Version
from stepwell.storage import Get
from stepwell.storage.sealed.keys import new_key
from stepwell.telegram import BotClient
from stepwell.testing import Chat, Clock, StorageContract
from stepwell.testing.simulated_store import SimulatedStore
from stepwell.testing.simulation import SimulatedProcess, Simulation
from tests.reliability.dose import dose
from tests.test_reference import MODULES, functions, public

#: A part of every secret.
PART = "s3cret"
BYTES = b"s3cret-key-of-32-bytes-for-AES-6"
URLS = ["postgresql://user:s3cret-pass@127.0.0.1:1/db", "redis://:s3cret-pass@127.0.0.1:1"]
TOKENS = [
    "123456789:AAHs3cret-J5vGWJxfSeofSAs0K5PALDsaw",
    "sk-proj-s3cretJ5vGWJxfSeofSAs0K5PALDsaw",
    # A key of an encrypted storage, as text.
    "Zs3cretQ9xJ5vGW7fSeofSAs0K5PALDsawBN3kL8pYc",
]
#: In the place of each argument.
SECRETS: list[Any] = [*URLS, *TOKENS, BYTES]
#: One of them in the place of each argument.
FORMS: list[Any] = [[URLS[0]], (TOKENS[0], 1), {"url": URLS[1]}, URLS[0].encode(), {TOKENS[1]: 1}]
#: The fewest calls that are made: with one value in the place of each argument, or with all secrets and one form.
SMALL, LARGE = 1300, 8000
#: Seconds after which a call is cancelled: it waits for updates, messages or work.
PATIENCE = 0.02

#: Arguments that take the URL of a storage or of a server. The tests of storages pass them real URLs.
PLACES_OF_URLS = {"storage", "url", "source", "target", "client", "api", "token"}
#: Arguments of the engine that are texts of a program, such as a part of a message, or stored keys.
TEXTS_OF_CODE = {
    "message", "instead", "package", "extra", "distribution", "as_storage.name", "decoder.kind", "secret_fields.cls",
    "decode_key.text", "decode_name.text", "decode_namespace.text",
}  # fmt: skip
#: Calls that start bots, or that block the thread.
NOT_CALLED = {"run_polling", "run_polling_sync", "NodeFlow.run_sync"}
UPDATE = {
    "update_id": 1,
    "message": {
        "message_id": 1,
        "date": 0,
        "from": {"id": 42, "is_bot": False, "first_name": "Anna"},
        "chat": {"id": 42, "type": "private"},
        "text": "hi",
    },
}


class Order(Flow, name="secret_order"):
    """A flow to move in."""

    item = state(to=["paid"])
    paid = state(to=[])
    default_state = item


@dataclass
class Person:
    """The model of a form."""

    name: str


class Texts(KeyValueStorage):
    """A storage over a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[Address, str] = {}

    async def read(self, address: Address) -> str | None:
        return self.texts.get(address)

    async def write(self, address: Address, text: str) -> None:
        self.texts[address] = text

    async def delete(self, address: Address) -> None:
        self.texts.pop(address, None)


class Begin(Node):
    """A node that does nothing."""


class Samples:
    """Plausible values for arguments and the objects that the calls are made on."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.storage = MemoryStorage()
        self.fsm = FSM("bot", storage=self.storage, flows=[Order], run_timers=False)
        self.world = World()
        #: Values of arguments by their names.
        self.named: dict[str, Callable[[], Any]] = {
            "address": lambda: Address("bot", "(1,1)"), "awaitable": handled, "bot": lambda: "bot",
            "chats": lambda: [42], "client": self.client, "clock": Clock,
            "conversation": lambda: (1, 1), "config": lambda: {"configurable": {"thread_id": "t", "checkpoint_ns": ""}},
            "expression": lambda: "0 8 * * *", "flow": self.flow, "flows": lambda: [self.flow()],
            "fsm": lambda: self.fsm, "handler": lambda: handled, "inner": lambda: text("hi"), "key": lambda: (1, 1),
            "kind": lambda: dict, "method": lambda: "sendMessage", "model": lambda: Person, "name": lambda: "name",
            "namespace": lambda: "bot", "node": Begin, "nodes": lambda: [Begin()],
            "operation": lambda: Get(Address("bot", "(1,1)")), "router": self.router,
            "schedule": lambda: every(5, self.flow(), name="schedule"), "secret_token": lambda: "t" * 40,
            "shared": dict,
            "source": lambda: self.storage, "start": Begin, "state": lambda: "item", "storage": lambda: self.storage,
            "target": MemoryStorage, "to": lambda: "paid", "token": lambda: "123456:token", "update": lambda: UPDATE,
            "version": lambda: Version(1, "w"), "world": lambda: self.world,
        }  # fmt: skip

    def flow(self) -> NodeFlow:
        return NodeFlow(Wait("ask"), name="flow", storage=self.storage)

    def router(self) -> Router:
        return Router(self.fsm)

    def translations(self) -> Translations:
        folder = Path(self.stack.enter_context(TemporaryDirectory()))
        (folder / "de.ftl").write_text("hello = Hallo")
        return Translations(folder)

    def client(self) -> BotClient:
        return BotClient("1:t", api="http://127.0.0.1:1", patience=0.01)

    async def made(self, cls: type) -> Any:
        """Return an object of a class."""
        makers: dict[type, Callable[[], Any]] = {
            MemoryStorage: lambda: self.storage,
            KeyValueStorage: Texts,
            RedisStorage: lambda: RedisStorage.from_url("redis://127.0.0.1:1", patience=0),
            StateStorage: lambda: StateStorage(self.storage),
            Log: lambda: Log(self.storage, "bot", "log"),
            FSM: lambda: self.fsm,
            Router: self.router,
            Context: lambda: self.stack.enter_async_context(self.fsm.conversation(UPDATE, key=(1, 1))),
            Form: lambda: Form(Person, name="form"),
            NodeFlow: self.flow,
            Schedules: lambda: Schedules(self.storage),
            Schedule: lambda: every(5, self.flow(), name="schedule"),
            Chat: lambda: self.stack.enter_async_context(Chat(self.router())),
            User: lambda: User(self.world, self.world.bot("bot"), 42),
            Inspector: lambda: inspector(self.storage, [], token="t" * 40),
            BotClient: self.client,
            Translations: self.translations,
            SimulatedProcess: lambda: Simulation().process("bot"),
            SimulatedStore: lambda: SimulatedStore(Simulation()),
            TrustedProxy: lambda: TrustedProxy(secret="t" * 40),
            CeleryRuns: lambda: CeleryRuns(Celery(broker="memory://"), [self.flow()], storage=self.storage),
        }
        if cls in makers:
            made = makers[cls]()
            return await made if inspect.isawaitable(made) else made
        return bound(cls, cls, self.required(cls))()

    def required(self, function: Any) -> dict[str, Any]:
        """Return values for the arguments that a function must get."""
        return {
            name: self.value(name, parameter)
            for name, parameter in parameters_of(function).items()
            if parameter.default is parameter.empty and parameter.kind not in VARIADIC
        }

    def value(self, name: str, parameter: inspect.Parameter) -> Any:
        """Return a plausible value for an argument, by its name or its annotation."""
        if name in self.named:
            return self.named[name]()
        hint = str(parameter.annotation)
        for part, value in (
            ("Callable", handled), ("Mapping", {}), ("dict", {}), ("Sequence", []), ("Iterable", []), ("list", []),
            ("tuple", ()), ("int", 1), ("float", 1.0), ("bytes", b"x"), ("str", "x"), ("bool", True), ("Any", {}),
        ):  # fmt: skip
            if part in hint:
                return value
        return None


async def handled(*args: Any, **kwargs: Any) -> None:
    """Handle whatever is given."""


VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@cache
def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, class or method without its object."""
    try:
        found = dict(inspect.signature(function).parameters)
    except ValueError:
        return {}
    found.pop("self", None)
    return found


def bound(function: Any, described: Any, arguments: dict[str, Any]) -> partial[Any]:
    """Return a call with these arguments, some of which cannot be passed by name."""
    parameters = parameters_of(described)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if name not in arguments:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY or parameter.kind is parameter.VAR_POSITIONAL:
            positional.append(arguments[name])
        elif parameter.kind is parameter.VAR_KEYWORD:
            named["unknown"] = arguments[name]
        else:
            named[name] = arguments[name]
    if positional and any(each.kind is each.VAR_POSITIONAL for each in parameters.values()):
        # Arguments before *args have no names then.
        order = [name for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
        positional = [named.pop(name) for name in order if name in named] + positional
    return partial(function, *positional, **named)


class Target(NamedTuple):
    """A public function, class or method."""

    title: str
    #: The class to make an object of; ``None`` for functions, classes and class methods.
    owner: type | None
    function: Any


def targets() -> Iterator[Target]:
    """Yield every public callable once. Errors are made by the library only."""
    seen: set[int] = set()
    modules = sorted({*MODULES, "stepwell"})
    for module in modules:
        for name in public.names_of(module):
            value = getattr(importlib.import_module(module), name)
            if id(value) in seen or not callable(value) or isinstance(value, types.GenericAlias):
                continue
            seen.add(id(value))
            if not inspect.isclass(value):
                yield Target(name, None, value)
            elif not issubclass(value, BaseException | Enum | StorageContract) and not is_protocol(value):
                yield Target(name, None, value)
                for method, member in functions(value):
                    function = inspect.unwrap(getattr(member, "__func__", member))
                    if not isinstance(member, property) and id(function) not in seen:
                        seen.add(id(function))
                        of_class = inspect.ismethod(member) or isinstance(vars(value).get(method), staticmethod)
                        yield Target(f"{name}.{method}", None if of_class else value, member)


def is_protocol(cls: type) -> bool:
    return getattr(cls, "_is_protocol", False) or (inspect.isabstract(cls) and cls is not KeyValueStorage)


def texts_of(error: BaseException) -> Iterator[str]:
    """Yield the texts of an error that a user, a log or an error tracker shows."""
    seen: BaseException | None = error
    while seen is not None:
        yield str(seen)
        yield repr(seen)
        yield from getattr(seen, "__notes__", [])
        if isinstance(seen, BaseExceptionGroup):
            for inside in seen.exceptions:
                yield from texts_of(inside)
        seen = seen.__cause__ if seen.__suppress_context__ or seen.__cause__ else seen.__context__


async def used(result: Any) -> None:
    """Await, enter, iterate or call what a call has returned."""
    async with asyncio.timeout(PATIENCE):
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, AsyncIterator):
            with suppress(StopAsyncIteration):
                await anext(result)
        elif inspect.isgenerator(result):
            next(result, None)
        elif hasattr(result, "__aenter__") and type(result).__name__ in ("worker", "Conversation"):
            async with result:
                pass
        elif inspect.isfunction(result) or inspect.ismethod(result):
            # A decorator, or the end of a subscription.
            result = result() if not parameters_of(result) else result(handled)
            if inspect.isawaitable(result):
                await result


class Leaks:
    """The calls, and those that show a secret."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.calls = 0
        self.found: list[str] = []
        self._caplog = caplog

    async def call(self, title: str, call: Callable[[], Any], caught: list[warnings.WarningMessage]) -> None:
        self.calls += 1
        shown: list[str] = []
        try:
            await used(call())
        except (Exception, asyncio.CancelledError) as error:
            shown += texts_of(error)
        shown += [str(each.message) for each in caught]
        for record in self._caplog.records:
            shown.append(record.getMessage())
            shown += texts_of(record.exc_info[1]) if record.exc_info and record.exc_info[1] else []
        caught.clear()
        self._caplog.clear()
        self.found += {f"{title}: {each}" for each in shown if PART in each}


async def call_all(leaks: Leaks, caught: list[warnings.WarningMessage], least: int) -> None:
    """Put every secret into the place of every argument; in the small dose the next one."""
    forms, all_in_turn = itertools.cycle(FORMS), itertools.cycle([*SECRETS, *FORMS])
    for target in targets():
        if target.title in NOT_CALLED:
            continue
        for name in parameters_of(target.function):
            if TEXTS_OF_CODE & {name, f"{target.title}.{name}"}:
                continue
            for secret in [*SECRETS, next(forms)] if least == LARGE else [next(all_in_turn)]:
                if isinstance(secret, str) and "://" in secret and name in PLACES_OF_URLS:
                    continue
                async with AsyncExitStack() as stack:
                    samples = Samples(stack)
                    function = target.function
                    if target.owner is not None:
                        function = getattr(await samples.made(target.owner), target.function.__name__)
                    arguments = samples.required(target.function) | {name: secret}
                    call = bound(function, target.function, arguments)
                    inspect.signature(call.func).bind(*call.args, **call.keywords)
                    await leaks.call(f"{target.title}({name}={secret!r})", call, caught)


async def test_no_secret_in_the_place_of_another_argument_is_shown(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Files with such names may be created.
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    leaks = Leaks(caplog)
    least = dose("SECRET_ARGUMENTS", SMALL, LARGE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            await call_all(leaks, caught, least)
        finally:
            configure(storage=None)
    assert leaks.found == [], "\n".join(leaks.found)
    assert leaks.calls >= least


@pytest.mark.parametrize(
    "draw",
    [
        new_key,
        lambda: b64encode(os.urandom(32)).decode(),
        lambda: os.urandom(32).hex(),
        lambda: os.urandom(24).hex().upper(),
        lambda: token_urlsafe(24),
    ],
    ids=["new_key", "base64", "hex", "HEX", "token"],
)
def test_random_keys_and_tokens_are_not_shown_in_errors(draw: Callable[[], str]) -> None:
    drawn = [draw() for _ in range(2000)]
    # By chance one of them may look like a name.
    assert len([each for each in drawn if each in quoted(each)]) <= 40


@pytest.mark.parametrize(
    "name",
    [
        "submit_0123456789abcdef/MyParentNode/1/child",
        "550e8400-e29b-41d4-a716-446655440000/MyParentNode/1/child",
        "550e8400e29b41d4a716446655440000",
        "/srv/bots/RegistrationBot/releases/2026-11-19T14/bot.py",
        "test_a_very_long_name_of_a_function_in_lower_case_1234",
    ],
)
def test_ids_of_runs_and_long_names_are_shown_in_errors(name: str) -> None:
    assert quoted(name) == repr(name)


@pytest.mark.parametrize("url", URLS)
def test_the_repr_of_an_object_with_a_url_hides_the_password(url: str) -> None:
    fsm = FSM("bot", storage=url, flows=[Order], run_timers=False)
    holders = [
        *(fsm, Router(fsm), Chat(Router(fsm)), Chat(lambda storage: Router(fsm), storage=url), StateStorage(url)),
        *(Schedules(url), NodeFlow(Begin(), storage=url), Log(fsm.storage, "bot", 1), inspector(fsm.storage, [])),
        *(RunHandle("id", NodeFlow(Begin()), url), worker([NodeFlow(Begin())], storage=url)),
    ]
    assert [repr(each) for each in holders if PART in f"{each!r} {each!s}"] == []


@pytest.mark.parametrize("credentials", ["user:s3cret-pass", ":s3cret-pass", "s3cret-pass"])
def test_a_client_refuses_a_server_with_credentials_in_its_url(credentials: str) -> None:
    with pytest.raises(InvalidOption, match="without the token") as refused:
        BotClient("1:t", api=f"https://{credentials}@127.0.0.1:1")
    assert PART not in str(refused.value)
